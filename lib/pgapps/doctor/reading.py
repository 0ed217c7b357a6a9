"""What a role that may only read can do on a server."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import psycopg

from pgservers.addresses import Address
from pgservers.errors import StudyError
from pgservers.foreign import as_postgres
from pgservers.servers.foreign_sessions import foreign_session, may_read, rights_lent

from .checks import Check

if TYPE_CHECKING:
    from psycopg.rows import TupleRow

_LIMITS = {"default_transaction_read_only": "on", "statement_timeout": "60s"}

# pg_read_all_stats exists from 10 on.
_STATEMENTS = """
    SELECT EXISTS (
        SELECT 1 FROM pg_catalog.pg_extension WHERE extname = 'pg_stat_statements'
    ) AND EXISTS (
        SELECT 1 FROM pg_catalog.pg_settings WHERE name = 'pg_stat_statements.max'
    ), EXISTS (
        SELECT 1 FROM pg_catalog.pg_roles r
        WHERE (r.rolsuper OR r.rolname = 'pg_read_all_stats')
          AND pg_catalog.pg_has_role(session_user, r.oid, 'USAGE')
    )
"""


def examine_reading(spec: str) -> Check | None:
    """Whether ``pgstudies plans`` can be used on a server; None if it cannot be reached.

    The check only reads, so the server may be a standby.
    """
    try:
        address = Address.parse(spec)
        if not address.is_dsn:
            return None
        with (
            closing(foreign_session(address.parts, address.public, _LIMITS)) as session,
            as_postgres(address.public),
        ):
            return _examined(session)
    except (StudyError, psycopg.Error):
        return None


def _examined(session: psycopg.Connection[TupleRow]) -> Check:
    user, tables = session.info.user, may_read(session)
    hidden = [name for name, readable in tables.items() if not readable]
    if lent := rights_lent(session):
        return _unfit(
            f"{user} is {lent[0]}, and {lent[1]} could use that: connect as a role that may only "
            f"read the tables"
        )
    if hidden:
        return _unfit(
            f"{user} may not read {len(hidden)} of {len(tables)} tables, such as {hidden[0]}: "
            f"GRANT USAGE ON SCHEMA ... TO {user}; GRANT SELECT ON ALL TABLES IN SCHEMA ... TO "
            f"{user}"
        )
    is_counted, is_shown = session.execute(_STATEMENTS).fetchone() or (False, False)
    if not is_counted:
        limit = ", by --queries only: there is no pg_stat_statements"
    elif not is_shown:
        limit = f", for other roles by --queries only: GRANT pg_read_all_stats TO {user}"
    else:
        limit = ""
    able = f"`pgstudies plans` can be used: {len(tables)} tables can be read{limit}"
    return Check("plans", None if limit else True, able)


def _unfit(why: str) -> Check:
    return Check("plans", False, f"`pgstudies plans`: not run: {why}")
