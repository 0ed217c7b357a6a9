"""Progress bars on stderr: of a measurement, with the time left, and of a download."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

from tqdm import tqdm

if TYPE_CHECKING:
    from typing import Self, TextIO

    from .terminal import Relay


class Progress:
    """A bar over the trials of a run; the same text in a terminal, a notebook and a log.

    ``total`` is None where a run ends by the clock: ``expect`` tells once there is an estimate.

    It is plain text on stderr and not a widget: a widget needs JavaScript from elsewhere in the
    book, and papermill would not show it.
    """

    def __init__(
        self, study: str, total: int | None, done: int = 0, stream: TextIO | Relay | None = None
    ) -> None:
        self._stream = stream or sys.stderr
        self._bar = tqdm(
            total=total,
            initial=done,
            desc=study,
            unit="trial",
            file=self._stream,
            ncols=100,
            mininterval=0.5,
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

    def advance(self) -> None:
        """One trial is done."""
        self._bar.update(1)

    def expect(self, total: int) -> None:
        """So many trials there will be in all."""
        self._bar.total = total

    def note(self, sentence: str) -> None:
        """Print a sentence of its own above the bar."""
        self._bar.write(sentence, file=self._stream)


def byte_bar(what: str, total: int) -> tqdm[NoReturn]:
    """A bar in the same style over bytes that are fetched or unpacked."""
    return tqdm(
        total=total,
        desc=what,
        unit="B",
        unit_scale=True,
        file=sys.stderr,
        ncols=100,
        mininterval=0.5,
        bar_format="{desc}: {n_fmt}/{total_fmt} |{bar:20}| {elapsed}",
    )
