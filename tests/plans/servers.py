"""The servers of these tests: their addresses, a role that only reads, and the errors in a log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgservers.servers.managed import ManagedServer
from tests.servers_at_hand import PASSWORD

if TYPE_CHECKING:
    import psycopg

    from pgservers.servers.serve import Server


def address_of(server: Server, database: str = "pgstudies") -> str:
    """The address by which the tests' own account reaches a server of theirs."""
    parts = server.environment()
    return f"postgresql://{parts['PGUSER']}@/{database}?host={parts['PGHOST']}"


def add_reader(c: psycopg.Connection[Any]) -> None:
    """Create a role that may read all statistics, and let every role log in by its password."""
    c.execute("SET password_encryption = 'scram-sha-256'")
    c.execute(f"CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}'")
    c.execute("GRANT pg_read_all_stats TO reader")
    (hba,) = c.execute("SHOW hba_file").fetchone() or ("",)
    Path(hba).write_text(f"{Path(hba).read_text()}local all all scram-sha-256\n")
    c.execute("SELECT pg_reload_conf()")


def errors(server: Server) -> list[str]:
    """The lines of the server's log on errors and their statements."""
    assert isinstance(server, ManagedServer)
    log = server._instance.log.read_text()
    return [line for line in log.splitlines() if "ERROR:" in line or "STATEMENT:" in line]
