"""The front page during a run: the reference verdicts, and this machine's so far."""

from __future__ import annotations

import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pgservers import paths
from pgservers.files import is_locked, try_lock, write_file
from pgservers.shown import environment
from pgservers.terminal import rough_duration, say

from ..execution.durations import seconds_left
from ..scorecard.scorecard import scorecard
from ..scorecard.table import score_front

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


_TEMPLATES = environment(Path(__file__).parent)
_RELOADS = '<meta http-equiv="refresh" content="15">'
_STATE = re.compile(r'(<p class="state" role="status">).*?(</p>)')
_LINK = re.compile(r' href="studies/[^"]*"')


def place() -> Path:
    """The path of the page."""
    return paths.BUILD / "first-page.html"


def _lock() -> Path:
    """The file that a run locks while the page says that it is running."""
    return paths.BUILD / "first-page.lock"


def settle_first_page() -> None:
    """Mark the page of a killed run as no longer running."""
    if is_locked(_lock()) or not _lock().exists():
        return
    if place().exists():
        text = place().read_text(encoding="utf-8").replace(_RELOADS, "")
        ended = "The run was killed; <code>pgstudies run all</code> continues it."
        write_file(place(), _STATE.sub(rf"\1{ended}\2", text))
    _lock().unlink(missing_ok=True)


@contextmanager
def first_page(
    studies: Sequence[str],
    expected: Mapping[str, float] | None = None,
    before: Sequence[str] = (),
) -> Iterator[Callable[[str], None]]:
    """Show the page while ``studies`` run; yields a function to call with each that has ended.

    Those in ``before`` had ended when this process began.  After each, the time left is printed, by
    ``seconds_left`` with ``expected``.  The page reloads itself until the run ends.
    """
    place().parent.mkdir(parents=True, exist_ok=True)
    lock = try_lock(_lock())
    begun, done = time.monotonic(), [*before]
    say(f"the report so far, filled in as studies finish: {write_first_page(studies, done)}")
    # Writing takes a second, in which the next kernel starts: nothing is measured meanwhile.
    with ThreadPoolExecutor(1) as beside:

        def finished(study: str) -> None:
            done.append(study)
            now = [name for name in studies if name not in before]
            left_s = seconds_left(now, done[len(before) :], time.monotonic() - begun, expected)
            if left_s:
                count = f"{len(done)} of {len(studies)} studies have ended"
                say(f"{count}; the others take {rough_duration(left_s)} on this machine.")
            beside.submit(write_first_page, studies, [*done], left_s)

        try:
            yield finished
        finally:
            beside.submit(write_first_page, studies, done, goes_on=False).result()
            if lock is not None:
                _lock().unlink(missing_ok=True)
                os.close(lock)


def write_first_page(
    studies: Sequence[str],
    done: Sequence[str],
    left_s: float | None = None,
    *,
    goes_on: bool = True,
) -> Path:
    """Write the page with the progress of the run of ``studies``; returns its path.

    The verdicts of the studies in ``done`` fill this machine's column.  The others take ``left_s``
    seconds.  With ``goes_on`` the page reloads itself.
    """
    front = _LINK.sub("", score_front(scorecard(records="reference", own=done)).data)
    text = _TEMPLATES.get_template("first_page.html").render(
        front=front,
        css=(paths.BOOK / "_static" / "book.css").read_text(encoding="utf-8"),
        number=len(studies),
        done=len(done),
        goes_on=goes_on,
        reloads=_RELOADS,
        at=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        process=os.getpid(),
        now=next((name for name in studies if name not in done), ""),
        left=rough_duration(left_s) if left_s else "",
    )
    write_file(place(), text)
    return place()


def lead_on(report: Path) -> None:
    """Make the page, if it exists, lead to the report that has been built."""
    if place().exists():
        target = report.relative_to(place().parent).as_posix()
        write_file(place(), _TEMPLATES.get_template("lead_on.html").render(target=target))
