"""The errors that a user can cause: each is one sentence on what is wrong and what to do."""

from __future__ import annotations

import re

_LONGEST = 2000

# A path or a value that somebody has made long.
_LONG_WORD = re.compile(r"(\S{80})\S{100,}(\S{40})")


class StudyError(Exception):
    """A request that cannot be carried out; ``exit_code`` is for scripts."""

    exit_code = 2

    def __str__(self) -> str:
        """The sentence, with long values shortened."""
        text = _LONG_WORD.sub(r"\1...\2", super().__str__())
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} ... {text[-400:]}"

    def _render_traceback_(self) -> list[str]:
        """In IPython only the sentence, without a traceback."""
        return [f"{type(self).__name__}: {self}"]


class ServerError(StudyError):
    """The server cannot be found, started, reached or used."""

    exit_code = 3


class ServerDied(ServerError):  # noqa: N818
    """A server that had answered has gone away, or has ended a session.

    ``arm`` is the arm that it served, as far as that is known; ``crashed`` is true if its log says
    that a process died of a signal: else it may have been stopped, or the network cut.
    """

    arm = ""
    crashed = False


class NotebookError(StudyError):
    """A notebook stopped with an error of its own."""

    exit_code = 4


class SpaceError(StudyError):
    """The disk is full, or the place to write to is read-only."""

    exit_code = 5


class CannotRun(StudyError):  # noqa: N818  (reads as the page does: "not run: reason")
    """An arm or a step cannot run on this server; the message is the reason."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, or a notebook's stop button, while a study was measured; says how to go on."""

    def __init__(self) -> None:
        super().__init__(
            "Blocks that were finished are kept: run all cells again with the same parameters, "
            "and the run goes on after them."
        )

    def _render_traceback_(self) -> list[str]:
        return [f"Interrupted. {self}"]


def require(reason: str | None) -> None:
    """Raise CannotRun with the reason, if there is one: the answer of a function ``reason_...``."""
    if reason is not None:
        raise CannotRun(reason)
