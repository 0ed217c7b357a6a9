"""The unprivileged role of a managed server, which loads and runs what comes from others."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from psycopg import sql

from ...programs.versions import has
from ..instance import GUEST

if TYPE_CHECKING:
    from collections.abc import Iterable

    import psycopg
    from psycopg.rows import TupleRow


_MONITOR_ROLE, CHECKPOINT_ROLE = 100000, 150000
"""The first versions with pg_monitor and with pg_checkpoint."""

_TRUSTS_EXTENSIONS = 130000
"""The first version with trusted extensions."""

_HARMLESS = re.split(
    r"\s+",
    "bloom btree_gin btree_gist citext cube dict_int earthdistance fuzzystrmatch hstore intarray "
    "isn lo ltree pg_buffercache pg_stat_statements pg_trgm pgcrypto plpgsql postgis seg tablefunc "
    "tsm_system_rows tsm_system_time unaccent uuid-ossp vector",
)
"""Extensions that reach no file, no program and no other server; before 13 none is marked so."""


def make_guest(connection: psycopg.Connection[TupleRow]) -> None:
    """Create the unprivileged role; of the existing databases it can connect to ours only."""
    version, guest = connection.info.server_version, sql.Identifier(GUEST)
    connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(guest))
    for name, since in (("pg_monitor", _MONITOR_ROLE), ("pg_checkpoint", CHECKPOINT_ROLE)):
        if version >= since:
            connection.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(name), guest))
    for database in ("postgres", "template1"):
        closed = sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(sql.Identifier(database))
        connection.execute(closed)


def open_to_guest(connection: psycopg.Connection[TupleRow]) -> None:
    """Give the unprivileged role, and roles that it grants to, all rights in this database.

    The superuser stays its owner, as an owner could choose settings for our sessions.
    """
    database, guest = sql.Identifier(connection.info.dbname), sql.Identifier(GUEST)
    connection.execute(sql.SQL("GRANT ALL ON DATABASE {} TO PUBLIC").format(database))
    connection.execute(sql.SQL("ALTER SCHEMA public OWNER TO {}").format(guest))
    connection.execute("GRANT ALL ON SCHEMA public TO PUBLIC")


def harmless_extensions(
    connection: psycopg.Connection[TupleRow], wanted: Iterable[str]
) -> list[str]:
    """The extensions of ``wanted`` that are installed here and harmless or trusted, by name."""
    version = connection.info.server_version
    if not has(version, "extensions"):
        return []
    trusted = "trusted OR NOT superuser" if version >= _TRUSTS_EXTENSIONS else "NOT superuser"
    query = f"""
        SELECT DISTINCT name FROM pg_available_extension_versions
        WHERE name = ANY (%s) AND (name = ANY (%s) OR {trusted}) ORDER BY name
    """  # noqa: S608  (one of two texts)
    rows = connection.execute(query.encode(), [list(wanted), _HARMLESS]).fetchall()
    return [name for (name,) in rows]
