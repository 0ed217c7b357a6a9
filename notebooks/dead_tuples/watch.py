"""How VACUUM is watched in ``dead_tuples.ipynb``: what it says, and how much memory it takes."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import LiteralString

    from psycopg.errors import Diagnostic

    from pgservers.servers.serve import Server
    from pgstudies.measuring.trial import Trial

COLUMNS = """SELECT attname FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
    WHERE relname = 'pg_stat_progress_vacuum'"""
PROGRESS: dict[str, LiteralString] = {
    "dead_tuple_bytes": """SELECT dead_tuple_bytes, dead_tuple_bytes
        FROM pg_stat_progress_vacuum""",
    "num_dead_tuples": """SELECT 6 * num_dead_tuples, 6 * max_dead_tuples
        FROM pg_stat_progress_vacuum""",
}
"""What asks for the bytes used and allocated where the view has this column."""


def memory_query(trial: Trial) -> LiteralString | None:
    """What asks this server for VACUUM's memory; None where it does not show it, before 9.6.

    Its catalog tells: a server of 17devel, by its version, may have either column.
    """
    columns = {name for (name,) in trial.execute(COLUMNS).fetchall()}
    return next((query for name, query in PROGRESS.items() if name in columns), None)


@contextmanager
def notices(trial: Trial) -> Iterator[list[str]]:
    """What the server says to the trial meanwhile: a list of messages, each with its detail."""
    said = []

    def listen(notice: Diagnostic) -> None:
        said.append(f"{notice.message_primary} {notice.message_detail}")

    trial.connection.add_notice_handler(listen)
    try:
        yield said
    finally:
        trial.connection.remove_notice_handler(listen)


@contextmanager
def highest(
    server: Server, query: LiteralString | None, names: Sequence[str]
) -> Iterator[dict[str, int]]:
    """The largest value in each column of a query that another session repeats meanwhile, by name.

    It is empty where the query found no row, and where there is no query.
    """
    most: dict[str, int] = {}
    done = threading.Event()

    def watch() -> None:
        with server.connect() as watcher:
            while query and not done.is_set():
                for row in watcher.execute(query, prepare=True).fetchall():
                    for name, value in zip(names, row, strict=True):
                        most[name] = max(most.get(name, 0), value)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield most
    finally:
        done.set()
        watching.join()


def index_scans(said: Iterable[str], index: str) -> int:
    """How often VACUUM VERBOSE went through the index, by the messages ``said``."""
    text = "\n".join(said)
    # since 14; before, a line for each scan
    told = re.search(r"index scans: (\d+)", text)
    return int(told[1]) if told else text.count(f'scanned index "{index}"')
