"""The servers of a run: an instance for every arm, all up at once as far as there is room."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Self

import psutil

from ..errors import SpaceError, StudyError
from ..servers import serve
from ._design import baseline_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import ExitStack

    from ..servers import Server
    from ._design import Arm


_PROCESSES_BYTES = 64 * 2**20
"""Memory of an idle server's processes and of what a session touches, beside shared buffers."""


_OF_WHAT_IS_FREE = 0.8
"""The share of free memory and disk that all instances together may take."""


class Instances:
    """One server for every arm that can run, by the arm's name.

    The servers that arms name are the roots; every further arm on one of them has an instance of
    its own there, with the states in common.  On a server that is not ours, an instance is a
    database or a schema.
    """

    def __init__(self, roots: Mapping[str | None, Server], arms: Sequence[Arm]) -> None:
        self.roots = dict(roots)
        self._of: dict[str, Server] = {}
        self._made: list[Server] = []
        taken: set[str | None] = set()
        for arm in arms:
            if arm.not_run is not None:
                continue
            root = self.roots[arm.server]
            if arm.server in taken:
                self._of[arm.name] = root.another()
                self._made.append(self._of[arm.name])
            else:
                taken.add(arm.server)
                self._of[arm.name] = root

    def __getitem__(self, arm: str) -> Server:
        return self._of[arm]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._made:
            server.close()

    def stop(self, arms: Sequence[Arm]) -> None:
        """Stop the owned servers of these arms; nothing of them is kept."""
        for arm in arms:
            server = self._of[arm.name]
            if server.owned:
                server.stop("immediate")

    def groups(self, arms: Sequence[Arm]) -> list[list[Arm]]:
        """The arms in the largest groups that are up at once, with the baseline in each.

        All sides of one arm of a comparison stay together.  ``arms`` are those that can run, and
        their states are prepared.
        """
        always, units = _units(arms)
        groups: list[list[Arm]] = []
        for unit in units:
            if groups and self._fit([*groups[-1], *unit]):
                groups[-1] += unit
            else:
                groups.append([*always, *unit])
        return groups or [always]

    def _fit(self, arms: Sequence[Arm]) -> bool:
        owned = [(arm, s) for arm in arms if (s := self._of[arm.name]).owned]
        memory = sum(s.memory_bytes(arm.settings) + arm.memory_bytes for arm, s in owned)
        memory += _PROCESSES_BYTES * len(owned)
        disk = sum(s.state_bytes(arm.state) for arm, s in owned)
        if memory > _OF_WHAT_IS_FREE * psutil.virtual_memory().available:
            return False
        return not owned or disk <= _OF_WHAT_IS_FREE * _free(owned[0][1].data_directory)


def _units(arms: Sequence[Arm]) -> tuple[list[Arm], list[list[Arm]]]:
    """What every group has, and what must not be divided among groups."""
    if any(arm.plays for arm in arms):
        names = dict.fromkeys(arm.plays for arm in arms)
        return [], [[arm for arm in arms if arm.plays == name] for name in names]
    baseline = baseline_of(arms)
    always = [arm for arm in arms if arm is baseline or arm.repeats == baseline.name]
    return always, [[arm] for arm in arms if arm not in always]


def _free(directory: os.PathLike[str]) -> float:
    status = os.statvfs(os.path.dirname(directory))  # noqa: PTH120  (the data may not be there yet)
    return float(status.f_bavail) * status.f_frsize


def roots_of(
    arms: Sequence[Arm],
    own: Server,
    settings: Mapping[str, str],
    core: int | None,
    stack: ExitStack,
) -> tuple[dict[str | None, Server], list[Arm]]:
    """The servers by the words that arms use for them, and the arms with what cannot be served."""
    roots: dict[str | None, Server] = {None: own}
    reasons: dict[str | None, str] = {}
    for arm in arms:
        spec = arm.server
        if arm.not_run or spec in roots or spec in reasons:
            continue
        try:
            server = serve(spec, settings=settings, cpu=core)
        except SpaceError:
            raise
        except StudyError as error:
            if arm.plays:
                raise  # the one thing to compare with
            reasons[spec] = str(error)
        else:
            stack.enter_context(server)
            roots[spec] = server
    return roots, [
        replace(arm, not_run=reasons[arm.server]) if arm.server in reasons else arm for arm in arms
    ]
