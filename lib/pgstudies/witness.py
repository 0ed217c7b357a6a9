"""What a comparison sees beside the times: results, plans, waits, and what the servers are."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from .settings import NOT_RECORDED

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from psycopg.abc import Params
    from psycopg.rows import TupleRow

    from .servers import Server
    from .trial import Query

_EXPLAINABLE = re.compile(
    r"\s*(SELECT|WITH|INSERT|UPDATE|DELETE|MERGE|VALUES|TABLE)\b", re.IGNORECASE
)
_VARIABLE = re.compile(r"(?<![:\w]):(\w+)")


class Witness:
    """The plans of an arm's statements, by step and case; the first of each is kept.

    ``plans`` maps a step and case to the text of EXPLAIN (COSTS OFF).
    """

    def __init__(self) -> None:
        self.plans: dict[str, str] = {}

    def saw(
        self,
        connection: psycopg.Connection[TupleRow],
        step: str,
        case: str,
        query: Query,
        params: Params | None = None,
    ) -> None:
        """Keep the plan of a statement, unless there is one for this step or none can be had."""
        place = f"{step}, {case}" if case else step
        if place in self.plans:
            return
        composed = query if isinstance(query, sql.Composable) else sql.SQL(_text(query))
        if not _EXPLAINABLE.match(composed.as_string(connection)):
            return
        try:
            rows = connection.execute(
                sql.SQL("EXPLAIN (COSTS OFF) {}").format(composed), params
            ).fetchall()
        except psycopg.Error:
            return
        self.plans[place] = "\n".join(row[0] for row in rows)

    def saw_script(
        self,
        connection: psycopg.Connection[TupleRow],
        step: str,
        case: str,
        script: str,
        variables: Mapping[str, int],
    ) -> None:
        """Keep the plan of a pgbench script's first statement, its random numbers taken as 1."""
        lines = [line for line in script.splitlines() if not line.lstrip().startswith("\\")]
        first = "\n".join(lines).split(";")[0]
        self.saw(
            connection,
            step,
            case,
            _VARIABLE.sub(lambda found: str(variables.get(found[1], 1)), first),
        )


def digest(cursor: psycopg.Cursor[TupleRow]) -> int:
    """A number for the rows of a result, whatever their order, or for how many were changed.

    The cursor can be read from the beginning afterwards.
    """
    if cursor.description is None:
        return cursor.rowcount
    rows = sorted(map(repr, cursor.fetchall()))
    cursor.scroll(0, mode="absolute")
    whole = hashlib.sha256("\n".join(rows).encode())
    return int.from_bytes(whole.digest()[:6], "big")  # exact as a float


def examined(server: Server) -> dict[str, Any]:
    """What is to be alike on two servers, as the one that runs now has it.

    ``settings`` maps every name to value and source, ``assertions`` is on or off, ``cflags`` what
    the server was compiled with, or None where this role may not see it.
    """
    with server.connect() as connection:
        settings = connection.execute(
            "SELECT name, setting, source FROM pg_settings WHERE name <> ALL (%s)", [NOT_RECORDED]
        ).fetchall()
        try:
            found = connection.execute(
                "SELECT setting FROM pg_config WHERE name = 'CFLAGS'"
            ).fetchone()
        except psycopg.Error:  # before 9.6 there is no such view
            found = None
    known = {name: [value, source] for name, value, source in settings}
    return {
        "version_text": server.version_text,
        "settings": known,
        "assertions": known.get("debug_assertions", [None])[0],
        "cflags": found[0] if found else None,
    }


def identity(server: Server) -> str:
    """A digest of an installation's programs and libraries; the version of one that is not ours.

    A build that was made anew in the same directory is another one.
    """
    if not server.owned:
        return server.version_text
    bindir = server.binaries.bindir
    whole = hashlib.sha256((bindir / "postgres").read_bytes())
    for library in sorted(_libraries(bindir.parent)):
        whole.update(library.read_bytes())
    return whole.hexdigest()[:16]


def _libraries(prefix: Path) -> list[Path]:
    return [file for name in ("lib", "lib64") for file in (prefix / name).rglob("*.so")]


def _text(query: str | bytes) -> Any:
    return query.decode() if isinstance(query, bytes) else query
