"""How the scans of ``sync_scans.ipynb`` are watched, and how one is kept behind another.

The notebook has the post's procedure and its SQL; this is the bookkeeping of cursors, distances and
threads beside it.
"""

from __future__ import annotations

import bisect
import itertools
import statistics
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from psycopg import sql

from pgservers.errors import StudyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import LiteralString

    import psycopg
    from psycopg.rows import TupleRow

    from pgstudies.measuring.trial import Trial

    Session = psycopg.Connection[TupleRow]
    Places = list[tuple[datetime, int]]

NEAR = 64
"""Blocks, twice what the smallest ring holds: scans no further apart are together."""

_BLOCKS_PER_MB = 128


def reason_not_in_step(connection: Session, table: str) -> str | None:
    """Why several sequential scans of ``table`` would not be kept in step, or None if they would.

    The rule is that of ``initscan`` in PostgreSQL's heapam.c, the same since 8.3: a table that is
    no temporary one, of more than a quarter of shared buffers, in a session that has not turned
    ``synchronize_seqscans`` off, where there is such a setting.  Raises StudyError when there is
    no such table on the search path.
    """
    row = connection.execute(
        """
        SELECT c.relkind, n.nspname ~ '^pg_temp_',
               pg_relation_size(c.oid) / current_setting('block_size')::int,
               (SELECT setting::bigint FROM pg_settings WHERE name = 'shared_buffers'),
               (SELECT setting FROM pg_settings WHERE name = 'synchronize_seqscans')
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relname = %s AND pg_table_is_visible(c.oid)
        """,
        [table],
    ).fetchone()
    if row is None:
        raise StudyError(f"There is no table {table}.")
    kind, is_temporary, pages, buffers, in_step = row
    quarter = buffers // 4
    if kind not in ("r", "m"):
        return f"{table} is no table, and only tables are scanned in step"
    if is_temporary:
        return f"{table} is a temporary table, which only one session can scan"
    if pages <= quarter:
        return (
            f"{table} has {pages} pages, and tables are scanned in step from {quarter + 1} on, "
            f"more than a quarter of the {buffers} shared buffers: it takes a table of "
            f"{quarter // _BLOCKS_PER_MB + 1} MB"
        )
    if in_step == "off":
        return "synchronize_seqscans is off"
    return None


def page_of(ctid: str) -> int:
    """The page in the text of a ctid, such as 7 in "(7,1)"."""
    return int(ctid.strip("()").partition(",")[0])


def step_by_step(
    paths: Sequence[Places],
    what: LiteralString,
    session: Session,
    number: int,
    *,
    pages: int,
    per_page: int,
) -> None:
    """Scan the table by a cursor, and note in this session's path when it was at which page.

    It moves by 16 pages of rows at a time, as a scan notes its place for others every 16 pages.
    ``pages`` is the table's size, ``per_page`` the number of rows of each.
    """
    path = paths[number]
    query = "BEGIN; DECLARE scan NO SCROLL CURSOR FOR SELECT ctid, {} FROM big"
    session.execute(sql.SQL(query).format(sql.SQL(what)))
    move = sql.SQL("MOVE {} FROM scan").format(16 * per_page).as_string()
    first = page_of(session.execute("FETCH 1 FROM scan").fetchall()[0][0])
    rows = 1
    path.append((datetime.now(UTC), first))
    while moved := session.execute(move).rowcount:
        rows += moved
        path.append((datetime.now(UTC), (first + (rows - 1) // per_page) % pages))
    session.execute("COMMIT")


def is_wanted(trial: Trial, walks: int) -> bool:
    """Whether scans tell where they are: in so many blocks in step, and out of step in one."""
    if trial.arm.copy_of or not trial.for_claims:
        return False  # only the study's page has pictures, of one copy
    is_in_step = trial.arm.options["sync"] == "on"
    return trial.block <= (walks if is_in_step else min(walks, 1))


def note(
    trial: Trial, step: str, case: str, paths: Sequence[Places], *, pages: int
) -> None:
    """Record the distances between scans and, in the first block of a run, where each was."""
    note_distances(trial, step, case, paths, pages=pages)
    if trial.block == 1:
        note_places(trial, step, case, paths)


def note_places(trial: Trial, step: str, case: str, paths: Iterable[Places]) -> None:
    """Record about 150 positions of every scan, enough for a picture."""
    for number, path in enumerate(paths, 1):
        for at, page in path[:: max(1, len(path) // 150)]:
            where: dict[str, Any] = {"iteration": number, "case": case, "at": at}
            trial.record(step, "block", page, "page number", **where)


def note_distances(
    trial: Trial, step: str, case: str, paths: Iterable[Places], *, pages: int
) -> None:
    """Record where scans began, and how far each was from the one that began before it."""
    for number, (one, two) in enumerate(itertools.pairwise(paths), 2):
        where: dict[str, Any] = {"iteration": number, "case": case}
        trial.record(step, "began_at", two[0][1], "page number", **where)
        ahead = distances(one, two, pages=pages)
        if ahead:
            near = sum(abs(distance) <= NEAR for distance in ahead) / len(ahead)
            usual = statistics.median(map(abs, ahead))
            trial.record(step, "began_ahead", ahead[0], "pages", **where)
            trial.record(step, "apart", usual, "pages", **where)
            trial.record(step, "apart_most", max(map(abs, ahead)), "pages", **where)
            trial.record(step, "together", near, "part", **where)


def distances(one: Places, two: Places, *, pages: int) -> list[int]:
    """How many pages the second is ahead, the shorter way round, wherever it notes its place."""
    times = [at for at, _ in one]
    found = []
    for at, page in two:
        if times[0] <= at <= times[-1]:
            ahead = page - one[bisect.bisect_right(times, at) - 1][1]
            found.append((ahead + pages // 2) % pages - pages // 2)
    return found


def leader_and_follower(
    lag: int, count: Callable[[Session, int, int], None], *, pages: int
) -> Callable[[Session, int], None]:
    """The work of two sessions: the first counts the table, the second does ``lag`` pages behind.

    ``count(session, begin, end)`` counts a range of pages.  The second begins when the first is
    halfway through, wraps around, and ends where it began.
    """
    halfway, leader = threading.Event(), [0]
    stride = max(1, min(256, pages // 64))

    def work(session: Session, number: int) -> None:
        if number:
            halfway.wait(600)
        start = (leader[0] - lag) % pages if number else 0
        for page in [*range(start, pages, stride), *range(0, start, stride)]:
            end = min(page + stride, start if page < start else pages)
            count(session, page, end)
            if not number:
                leader[0] = end
                if 2 * end >= pages:
                    halfway.set()

    return work
