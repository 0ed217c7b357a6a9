"""Output to stderr: our own sentences, and what a kernel writes, for a terminal or a log."""

from __future__ import annotations

import functools
import io
import os
import shutil
import sys
import threading
import time
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Self, TextIO

JUPYTER_SESSION = "JPY_SESSION_NAME"
"""The variable in which Jupyter's server tells a kernel which notebook a person has open in it."""


def say(sentence: str) -> None:
    """Print a message of the command line on stderr."""
    tell(f"pgstudies: {sentence}", err=True)


def tell(text: str | Path, *, err: bool = False) -> None:
    """Print text with control characters escaped; all output goes through here."""
    print(lines_printable(str(text)), file=sys.stderr if err else sys.stdout, flush=True)


def notice(sentence: str) -> None:
    """Print a sentence on stderr, above any progress bar.

    In JupyterLab, which colors stderr as an error, it goes to stdout.
    """
    sentence = lines_printable(sentence)
    if _open:
        _open[-1].note(sentence)
    else:
        tell(sentence, err=not _in_jupyterlab())


@functools.cache
def notice_once(sentence: str) -> None:
    """As ``notice``, but each sentence only once in this process."""
    notice(sentence)


def printable(text: str) -> str:
    r"""One line of untrusted text for a terminal, with escapes as ``\x1b``.

    Else the name of a stranger's host could color, move or hide other text.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or unicodedata.category(c) == "Zs" else ascii(c)[1:-1] for c in text
    )


def lines_printable(text: str) -> str:
    """The same for a text of several lines."""
    return "\n".join(map(printable, text.split("\n")))


class Relay:
    """A writable file that passes on whole lines, and progress bars as ``stream`` can show them.

    A progress bar is a line that carriage returns begin anew.  On a terminal it is cut to the
    terminal's width, because a longer one cannot be overwritten; in a log it becomes a line of its
    own, at most once in ``interval_s`` seconds.
    """

    def __init__(
        self,
        stream: TextIO | LinesOnly,
        *,
        interval_s: float = 10,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._interval_s = interval_s
        self._clock = clock
        self._unfinished = ""
        self._drawn = ""
        self._due = clock() + interval_s

    def write(self, text: str) -> int:
        """Write text, which may begin or end within a line."""
        *lines, last = (self._unfinished + text).split("\n")
        for line in lines:
            visible = _overwritten(line).rstrip()
            if visible or "\r" not in line:
                self._draw(visible)
                self._stream.write("\n")
                self._drawn = ""
        self._unfinished = last[max(last.rstrip("\r").rfind("\r"), 0) :]
        bar = _overwritten(last)
        if self._stream.isatty():
            self._draw(bar[: shutil.get_terminal_size().columns - 1])
        elif bar.strip() and self._clock() >= self._due:
            self._stream.write(f"{bar.rstrip()}\n")
            self._due = self._clock() + self._interval_s
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()

    def _draw(self, text: str) -> None:
        if text.startswith(self._drawn):
            self._stream.write(text[len(self._drawn) :])
        else:
            self._stream.write(f"\r{' ' * len(self._drawn)}\r{text}")
        self._drawn = text


class LinesOnly(io.TextIOBase):
    """``stream`` for several writers at once: bars are drawn as in a log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write some text."""
        return self._stream.write(text)


def _overwritten(line: str) -> str:
    """The part of a line that is visible after carriage returns."""
    return next((part for part in reversed(line.split("\r")) if part), "")


class Progress:
    """A progress bar, such as over a run's trials; the same text in terminal, notebook and log.

    ``total`` is None where a run ends by the clock, until ``expect_more`` gives an estimate, and 0
    where nothing is counted and only the time is drawn.  Nothing is drawn for ``delay_s``.

    It is plain text: a widget would need JavaScript from elsewhere in the book, and papermill would
    not show it.  It goes to stderr, which the book leaves out; in JupyterLab, to stdout.
    """

    def __init__(
        self,
        what: str,
        total: int | None,
        done: int = 0,
        stream: TextIO | Relay | None = None,
        *,
        delay_s: float = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # A kernel's stderr is no file, and goes to the relay of the process that started it.
        usual = sys.stdout if _in_jupyterlab() else sys.stderr
        self._stream: TextIO | Relay
        self._drawn = ""
        if stream is None and _open:  # it overwrites the bar around it
            self._stream, self._drawn = _open[-1]._stream, _open[-1]._drawn
        else:
            self._stream = stream or (
                Relay(usual) if isinstance(usual, io.TextIOWrapper) else usual
            )
        self._what, self._doing = what, ""
        self._total, self._done, self._at_first = total, done, done
        self._clock = clock
        self._began = clock()
        self._counts_from: float | None = None  # None until prepared(), or where it is not called
        self._took_s = 0.0  # until the last was done: the arms of a block end all at once
        self._due = self._began + delay_s
        self._drawing = threading.RLock()  # the workers of a sweep are heard in another thread
        _open.append(self)
        self.show("")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _open.remove(self)
        self._doing = ""
        if self._drawn:
            self._draw()
            self._stream.write("\n")

    def show(self, what: str) -> None:
        """Say what is being done now; drawn at most twice a second."""
        self._doing = what
        if self._clock() >= self._due:
            self._draw()

    def prepared(self) -> None:
        """Estimate the time left from the trials from now on, without the time before.

        After the first of them a sentence says the time left, if it is a minute or more.
        """
        self._counts_from = self._clock()
        self._at_first = self._done

    def advance(self, trials: int = 1) -> None:
        """Count ``trials`` more as done."""
        if trials:
            is_first = self._counts_from is not None and self._done == self._at_first
            self._done += trials
            self._took_s = self._clock() - self._trials_began
            left_s = self._left_s()
            if is_first and left_s is not None and left_s >= 60:
                self.note(f"{self._what}: {rough_duration(left_s)} left on this machine.")
        self.show(self._doing)

    @property
    def _trials_began(self) -> float:
        return self._began if self._counts_from is None else self._counts_from

    def _left_s(self) -> float | None:
        """The time left, by the trials so far; None before the first, or without a total."""
        done = self._done - self._at_first
        if not done or self._total is None:
            return None
        since = self._clock() - self._trials_began - self._took_s
        return self._took_s * (self._total - self._done) / done - since

    def expect_more(self, trials: int) -> None:
        """Set the number of trials that remain after those that are done."""
        self._total = self._done + trials

    def note(self, sentence: str) -> None:
        """Print a sentence above the bar."""
        with self._drawing:
            over = "\r" if self._drawn else ""
            self._stream.write(f"{over}{lines_printable(sentence):{len(self._drawn)}}\n")
            if over:
                self._draw()

    def _draw(self) -> None:
        with self._drawing:
            line = self._line(self._clock() - self._began)
            self._stream.write(f"\r{line:{len(self._drawn)}}")
            self._stream.flush()
            self._drawn = line
            self._due = self._clock() + 0.5

    def _line(self, elapsed_s: float) -> str:
        doing = f", {printable(self._doing)}" if self._doing else ""
        what = printable(self._what)
        if self._total == 0:
            return f"{what}: {_minutes(elapsed_s)}{doing}"
        left_s = self._left_s() or 0
        is_done = self._done == (self._total or 0)
        remaining = _minutes(max(left_s, 0)) if left_s > 0 or is_done else "?"
        eighths = int(160 * min(self._done / self._total, 1)) if self._total else 0
        bar = "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
        return (
            f"{what}: {self._done}/{self._total or '?'} |{bar:20}| "
            f"{_minutes(elapsed_s)}<{remaining}{doing}"
        )


_open: list[Progress] = []
"""The bars of this process that are visible."""


def _minutes(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def _in_jupyterlab() -> bool:
    """Whether a person runs this in a notebook, for whose session Jupyter sets a variable."""
    return bool(os.environ.get(JUPYTER_SESSION))


def rough_duration(seconds: float) -> str:
    """A rounded duration in words."""
    if seconds < 90:
        return f"about {seconds:.0f} seconds"
    minutes = seconds / 60
    if minutes < 100:
        return f"about {minutes:.0f} minutes"
    hours = minutes / 60
    return f"about {hours:.1f} hours" if hours < 10 else f"about {hours:.0f} hours"
