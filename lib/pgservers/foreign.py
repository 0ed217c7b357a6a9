"""Sessions that end without noise, and those on untrusted servers.

Such a server may hang, answer without end, or answer nonsense.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import psutil
import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow

from .errors import ServerError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from psycopg.abc import PQGen

_T = TypeVar("_T")

_CONNECT_TIMEOUT_S = 10
_CANCEL_TIMEOUT_S = 5.0

STATEMENT_TIMEOUT_S = 3600
"""The server's limit for each statement, unless a session is given another."""

_LONGEST_S = STATEMENT_TIMEOUT_S + 60.0
"""Our limit for each answer, as a server may be stuck, or lie."""

_MOST_BYTES = 2**30
"""The most that our memory may grow while one answer arrives (bytes)."""

# A server whose machine is gone is noticed after a minute, not after two hours.
_KEEPALIVES = {
    "keepalives": "1",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",  # (ms)
}


class Session(psycopg.Connection[TupleRow]):
    """A connection that is closed, in silence, where Ctrl-C came while its statement ran.

    psycopg itself cancels what it waits for; but a statement that was sent a moment before is still
    running, and psycopg warns on standard error that it cannot be rolled back.
    """

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        """Leave the connection, as psycopg does."""
        if self.info.transaction_status is TransactionStatus.ACTIVE:
            with suppress(psycopg.Error):
                self.cancel_safe(timeout=_CANCEL_TIMEOUT_S)
            self.close()
        super().__exit__(kind, error, traceback)


class ForeignSession(Session):
    """A session whose answers have a limit of time and of memory.

    An answer beyond a limit closes the session and raises psycopg.OperationalError.
    """

    limit_s = _LONGEST_S

    def wait(self, gen: PQGen[_T], interval: float = 0.1, timeout: float | None = None) -> _T:
        """Wait for an answer, as psycopg does."""
        return super().wait(self._within_limits(gen), interval, timeout)

    def trust(self) -> None:
        """Let statements take as long as the server's timeout allows: it has answered."""
        self.limit_s = _LONGEST_S

    def _within_limits(self, gen: PQGen[_T]) -> PQGen[_T]:
        begun = due = time.monotonic()
        memory = 0
        try:
            state = next(gen)
            while True:
                ready = yield state
                now = time.monotonic()
                if now - begun > self.limit_s:
                    self._give_up(f"timed out: no whole answer in {self.limit_s:.0f} s")
                if now - due > 1:  # looking at memory takes longer than a short answer
                    due = now
                    resident = psutil.Process().memory_info().rss
                    memory = memory or resident
                    if resident - memory > _MOST_BYTES:
                        self._give_up(f"an answer of more than {_MOST_BYTES >> 20} MB")
                state = gen.send(ready)
        except StopIteration as done:
            answer: _T = done.value
            return answer

    def _give_up(self, why: str) -> None:
        self.pgconn.finish()
        raise psycopg.OperationalError(why)


def connect(conninfo: str, parts: Mapping[str, str], **arguments: Any) -> ForeignSession:
    """A session, in autocommit mode; ``arguments`` override the address.

    ``connect_timeout``, of the address or PGCONNECT_TIMEOUT, limits every answer until ``trust`` is
    called.  Raises psycopg.Error.
    """
    given = parts.get("connect_timeout") or os.environ.get("PGCONNECT_TIMEOUT") or "0"
    usual: dict[str, Any] = {n: value for n, value in _KEEPALIVES.items() if n not in parts}
    usual |= {
        "autocommit": True,
        "application_name": "pgstudies",
        "client_encoding": "UTF8",  # else a database without an encoding would answer in bytes
        "connect_timeout": _CONNECT_TIMEOUT_S if given == "0" else given,
    }
    session = ForeignSession.connect(conninfo, **(usual | arguments))
    session.limit_s = max(2.0, float(usual["connect_timeout"]))  # the least of libpq
    return session


def timeouts() -> dict[str, str]:
    """Variables that give a client program the timeouts of our sessions; add PGOPTIONS."""
    return {"PGCONNECT_TIMEOUT": os.environ.get("PGCONNECT_TIMEOUT", str(_CONNECT_TIMEOUT_S))}


@contextmanager
def as_postgres(spec: str) -> Iterator[None]:
    """Raise ServerError where a server's answers do not have the expected form."""
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ServerError(f"{spec} does not answer as PostgreSQL does ({what:.100}).") from error
