"""What was loaded of a workload: vacuumed, analyzed, and told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import sql

from pgservers.files import size_text
from pgservers.servers.managed import ManagedServer
from pgservers.sessions import within
from pgservers.terminal import notice

if TYPE_CHECKING:
    from pgstudies.measuring.trial import Trial

_LONGEST_S = 6 * 3600.0
"""The limit for a vacuum (s), as it runs functions of the schema."""

_OF_THE_SERVER = """
    SELECT relname FROM pg_class
    WHERE relkind = 'r'
      AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'pg_catalog')
"""

_LOADED = r"""
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
      AND pg_catalog.pg_has_role(c.relowner, 'USAGE')
"""

_TABLES = f"SELECT n.nspname, c.relname {_LOADED} AND c.relkind IN ('r', 'm', 'p')"

_HELD = f"""
    SELECT pg_catalog.count(*),
           COALESCE(pg_catalog.sum(GREATEST(c.reltuples, 0)), 0),
           COALESCE(pg_catalog.sum(pg_catalog.pg_total_relation_size(c.oid)), 0)
    {_LOADED} AND c.relkind IN ('r', 'm')
"""


def vacuum(trial: Trial) -> None:
    """Vacuum and analyze what was loaded, and on a managed server the catalogs."""
    # By name, because VACUUM without a name warns of every table of another role.
    with within(trial.connection, _LONGEST_S, "VACUUM"):
        for schema, name in trial.execute(_TABLES).fetchall():
            table = sql.Identifier(schema, name)
            trial.execute(sql.SQL("VACUUM ANALYZE {}").format(table))
    server = trial.server
    if isinstance(server, ManagedServer):
        # Only these: in the role's tables, its functions would run with the superuser's rights.
        with server.as_superuser(trial.connection.info.dbname) as connection:
            for (name,) in connection.execute(_OF_THE_SERVER).fetchall():
                table = sql.Identifier("pg_catalog", name)
                connection.execute(sql.SQL("VACUUM ANALYZE {}").format(table))


def tell_loaded(trial: Trial) -> None:
    """Record and report the contents of the trial's database after ``vacuum``."""
    tables, rows, size = trial.execute(_HELD).fetchone() or (0, 0, 0)
    trial.record("load", "tables", tables, "tables")
    trial.record("load", "rows", rows, "rows")
    trial.record("load", "size_bytes", size, "bytes")
    notice(
        f"Loaded into {trial.server.version_text}: {tables:,} tables, {rows:,.0f} rows, "
        f"{size_text(int(size))}."
    )
