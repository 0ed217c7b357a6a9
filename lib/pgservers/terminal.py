"""What goes to stderr: our own sentences, and what a kernel writes, fit for a terminal or a log."""

from __future__ import annotations

import functools
import os
import shutil
import sys
import time
import unicodedata
from typing import TYPE_CHECKING, Any, NoReturn

from tqdm import tqdm

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping
    from typing import Self, TextIO


JUPYTER_SESSION = "JPY_SESSION_NAME"
"""The variable in which Jupyter's server tells a kernel which notebook a person has open in it."""


def say(sentence: str) -> None:
    """Tell the user of the command line something, as the programs of Unix do."""
    lines = "\n".join(map(printable, sentence.split("\n")))
    print(f"pgstudies: {lines}", file=sys.stderr)


def notice(sentence: str) -> None:
    """Tell whoever runs a notebook something, on stderr.

    In JupyterLab, where that is as pink as an error, it is told on stdout.
    """
    # Around a bar, which would else stand on the same line.
    tqdm.write(sentence, file=sys.stdout if _in_jupyterlab() else sys.stderr)


@functools.cache
def notice_once(sentence: str) -> None:
    """The same, but a sentence that has been told is not told again by this process."""
    notice(sentence)


def printable(text: str) -> str:
    r"""One line of text from elsewhere, fit for a terminal: ``\x1b`` in place of an escape.

    Else the name of a stranger's host could colour, move or hide what others have written.
    """
    return "".join(
        c if c.isprintable() or unicodedata.category(c) == "Zs" else ascii(c)[1:-1] for c in text
    )


class Relay:
    """A file to write to: it passes whole lines on, and progress bars as ``stream`` can show them.

    A progress bar is a line begun anew with carriage returns.  On a terminal it is cut to the
    terminal's width, because a longer one cannot be overwritten; in a log it is written as a line
    of its own, at most once in ``interval_s`` seconds.
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
        """Take over some text, which may begin or end within a line."""
        *lines, self._unfinished = (self._unfinished + text).split("\n")
        for line in lines:
            self._line(line)
        bar = _overwritten(self._unfinished)
        if "\r" in self._unfinished:
            self._unfinished = f"\r{bar}\r" if self._unfinished.endswith("\r") else f"\r{bar}"
        if self._stream.isatty():
            self._draw(bar[: shutil.get_terminal_size().columns - 1])
        elif bar.strip() and self._clock() >= self._due:
            self._stream.write(f"{bar.rstrip()}\n")
            self._due = self._clock() + self._interval_s
        return len(text)

    def flush(self) -> None:
        """Hand on what the stream buffers."""
        self._stream.flush()

    def _line(self, line: str) -> None:
        shown = _overwritten(line).rstrip()
        if shown or "\r" not in line:
            self._draw(shown)
            self._stream.write("\n")
            self._drawn = ""

    def _draw(self, text: str) -> None:
        if text.startswith(self._drawn):
            self._stream.write(text[len(self._drawn) :])
        else:
            self._stream.write(f"\r{' ' * len(self._drawn)}\r{text}")
        self._drawn = text


class LinesOnly:
    """``stream``, of which several write at once: a bar on it is drawn as in a log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write some text."""
        return self._stream.write(text)

    def flush(self) -> None:
        """Hand on what the stream buffers."""
        self._stream.flush()

    def isatty(self) -> bool:
        """Whether a line can be overwritten: another's would be."""
        return False


def _overwritten(line: str) -> str:
    """What is left to see of a line that carriage returns began anew."""
    return next((part for part in reversed(line.split("\r")) if part), "")


class _Bar(tqdm):  # type: ignore[type-arg]
    """A bar whose time left is known to the end of what is under way.

    The arms of a block end all at once; tqdm would take the moment in which they do for their rate.
    """

    took_s = 0.0

    def update(self, n: float | None = 1) -> bool | None:
        if n:
            self.took_s = self.format_dict["elapsed"]
        return super().update(n)

    @property
    def format_dict(self) -> MutableMapping[str, Any]:
        known = super().format_dict
        done, left = self.n - self.initial, (self.total or 0) - self.n
        if self.total is None:
            known["rate"] = 0.0  # shown as unknown; else no time is left
        elif done and left > 0:
            left_s = self.took_s * left / done - (known["elapsed"] - self.took_s)
            known["rate"] = left / left_s if left_s > 0 else 0.0
        return known


class Progress:
    """A bar over the trials of a run, or so; the same text in a terminal, a notebook and a log.

    ``total`` is None where a run ends by the clock: ``expect`` tells once there is an estimate.

    It is plain text and not a widget: a widget needs JavaScript from elsewhere in the book, and
    papermill would not show it.  It goes to stderr, which the book leaves out; in JupyterLab, where
    that is as pink as an error, to stdout.
    """

    def __init__(
        self,
        study: str,
        total: int | None,
        done: int = 0,
        stream: TextIO | Relay | None = None,
        *,
        unit: str = "trial",
        delay_s: float = 0,
    ) -> None:
        self._stream = stream or (sys.stdout if _in_jupyterlab() else sys.stderr)
        self._bar = _Bar(
            total=total,
            initial=done,
            desc=study,
            unit=unit,
            file=self._stream,
            position=0,  # bars of other threads are on streams of their own
            ascii=False,  # else it asks the file, and a relay has no encoding
            ncols=100,
            mininterval=0.5,
            delay=delay_s,
            miniters=0,  # else what is done meanwhile, and for how long, is not drawn
            bar_format="{desc}: {n_fmt}/{total_fmt} |{bar:20}| {elapsed}<{remaining} {postfix}",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.set_postfix_str("", refresh=False)
        self._bar.close()

    def show(self, what: str) -> None:
        """Say what is being done now; drawn at most twice a second."""
        self._bar.set_postfix_str(what, refresh=False)
        self._bar.update(0)

    def advance(self, trials: int = 1) -> None:
        """So many trials are done."""
        self._bar.update(trials)

    def expect(self, total: int) -> None:
        """So many trials there will be in all."""
        self._bar.total = total

    def note(self, sentence: str) -> None:
        """Print a sentence of its own above the bar."""
        self._bar.write(sentence, file=self._stream)


def _in_jupyterlab() -> bool:
    """Whether a person runs this in a notebook: Jupyter's server names the session."""
    return bool(os.environ.get(JUPYTER_SESSION))


def byte_bar(what: str, total: int) -> tqdm[NoReturn]:
    """A bar in the same style over bytes that are fetched or unpacked."""
    return tqdm(
        total=total,
        desc=what,
        unit="B",
        unit_scale=True,
        file=sys.stdout if _in_jupyterlab() else sys.stderr,
        ncols=100,
        mininterval=0.5,
        miniters=0,  # else it stands still while nothing arrives
        bar_format="{desc}: {n_fmt}/{total_fmt} |{bar:20}| {elapsed}",
    )


def rough_duration(seconds: float) -> str:
    """A duration in words that do not pretend to be exact."""
    if seconds < 90:
        return f"about {seconds:.0f} seconds"
    minutes = seconds / 60
    if minutes < 100:
        return f"about {minutes:.0f} minutes"
    hours = minutes / 60
    return f"about {hours:.1f} hours" if hours < 10 else f"about {hours:.0f} hours"
