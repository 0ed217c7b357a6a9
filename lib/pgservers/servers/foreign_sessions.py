"""Sessions on the servers of others: with empty search_path, and what our role may do there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import make_conninfo

from ..addresses import explain
from ..errors import ServerError
from ..foreign import STATEMENT_TIMEOUT_S, ForeignSession, connect
from .settings import startup_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from psycopg.rows import TupleRow


_FIRST_SETTINGS = {"search_path": "", "statement_timeout": f"{STATEMENT_TIMEOUT_S}s"}
"""A database's owner chooses where sessions look for functions, which would run with our rights.
With this, only what belongs to the server is found by its bare name."""

# A function could take any role that ours is a member of, and with pg_read_all_data read what
# passwords are checked by.  CREATEROLE and the like are of no use to it: the transaction is
# read-only to its end.
_RIGHTS = """
    SELECT CASE WHEN r.rolsuper THEN 'a superuser'
                ELSE pg_catalog.format('a member of %s', r.rolname) END
    FROM pg_catalog.pg_roles r
    WHERE (r.rolsuper OR r.rolname IN ('pg_execute_server_program', 'pg_read_server_files',
                                       'pg_write_server_files', 'pg_read_all_data'))
      AND pg_catalog.pg_has_role(session_user, r.oid, 'MEMBER')
    ORDER BY r.rolsuper DESC, 1 LIMIT 1
"""

# Whoever owns anything here could have a function called by it, even one in pg_temp.
_OTHERS = """
    SELECT r.rolname
    FROM pg_catalog.pg_roles r, pg_catalog.pg_database b
    WHERE b.datname = pg_catalog.current_database()
      AND r.oid >= 16384 AND r.rolname <> session_user AND NOT EXISTS (
        SELECT 1 FROM pg_catalog.pg_roles s
        WHERE s.rolsuper AND pg_catalog.pg_has_role(r.oid, s.oid, 'MEMBER')
      )
      AND (pg_catalog.has_database_privilege(r.oid, b.oid, 'CREATE')
        OR EXISTS (
            SELECT 1 FROM pg_catalog.pg_namespace n
            WHERE pg_catalog.has_schema_privilege(r.oid, n.oid, 'CREATE')
        ) OR EXISTS (
            SELECT 1 FROM pg_catalog.pg_shdepend d
            WHERE d.dbid = b.oid AND d.deptype = 'o' AND d.refobjid = r.oid
              AND d.refclassid = 'pg_catalog.pg_authid'::pg_catalog.regclass
        ))
    ORDER BY 1 LIMIT 1
"""

# What a dump locks, and whether our role may read it.
_TABLES = """
    SELECT pg_catalog.format('%I.%I', n.nspname, c.relname),
           pg_catalog.has_schema_privilege(n.oid, 'USAGE')
           AND pg_catalog.has_table_privilege(c.oid, 'SELECT')
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
      AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema' AND NOT EXISTS (
        SELECT 1 FROM pg_catalog.pg_depend d
        WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass
          AND d.objid = c.oid AND d.deptype = 'e'
    )
    ORDER BY 1
"""


def foreign_session(
    parts: Mapping[str, str], spec: str, settings: Mapping[str, str] = {}, **kwargs: Any
) -> ForeignSession:
    """A session at an address, in autocommit mode, whose search_path is empty from its start.

    ``parts`` are libpq's, ``spec`` is the address for messages, ``settings`` may name another
    search_path or statement_timeout.  Raises ServerError where there is no connection or no answer
    in time, or a connection through a pooler that drops its settings.
    """
    wanted = _FIRST_SETTINGS | dict(settings)
    # Last, so that neither the address nor PGOPTIONS has another.
    given = parts.get("options") or os.environ.get("PGOPTIONS", "")
    options = f"{given} {startup_options(wanted)}".strip()
    session = None
    try:
        session = connect(make_conninfo(**parts), parts, **({"options": options} | kwargs))
        row = session.execute("SELECT pg_catalog.current_setting('search_path')").fetchone()
    except psycopg.Error as error:
        if session is not None:
            session.close()
        raise explain(error, spec) from error
    if row != (wanted["search_path"],):
        session.close()
        raise ServerError(
            f"{spec} ignores the settings of a connection, as some connection poolers do: give the "
            f"address of the server itself."
        )
    session.trust()
    return session


def may_read(connection: psycopg.Connection[TupleRow]) -> dict[str, bool]:
    """Whether our role may read each table of its database, by its qualified name."""
    rows = connection.execute(_TABLES).fetchall()
    # One that was dropped meanwhile has no rights.
    return {str(name): bool(readable) for name, readable in rows if readable is not None}


def rights_lent(connection: psycopg.Connection[TupleRow]) -> tuple[str, str] | None:
    """Our role's attribute, and a role that could use it through a function; or None.

    The planner computes immutable functions in a query and in the objects that it names.
    """
    right, other = connection.execute(_RIGHTS).fetchone(), connection.execute(_OTHERS).fetchone()
    return (str(right[0]), str(other[0])) if right and other else None
