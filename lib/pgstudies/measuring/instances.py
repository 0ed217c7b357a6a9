"""The servers of a run: an instance for every arm, all up at once as far as there is room.

Where the run's options name a directory for them, prepared states are kept for the host's next run.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

import polars as pl
import psutil

from pgservers.errors import CannotRun, SpaceError, StudyError
from pgservers.files import size_text
from pgservers.paths import run_dir
from pgservers.programs.versions import parse_version
from pgservers.servers.managed import ManagedServer
from pgservers.servers.snapshots import size_bytes

from ..records.samples import SAMPLES_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import ExitStack
    from pathlib import Path

    from pgservers.servers.serve import Server

    from .arms import Arm

_PROCESSES_BYTES = 64 * 2**20
"""Memory of an idle server's processes and of what a session touches, beside shared buffers."""

_OF_WHAT_IS_FREE = 0.8
"""The fraction of free memory and disk that all instances together may take."""

_COPIED_WHOLE_BYTES = 100 * 2**20  # a larger state takes as long to copy as a block

KEPT_SHARE = 0.2
"""The share of free disk that kept states may take; it is what ``Instances.groups`` leaves."""


class PreparedStates:
    """Prepared states that runs on one host leave each other, with their samples.

    Each is a subdirectory, named by a digest of ``mark`` (what a run's states have in common), the
    server and the state.  States are moved out and back by atomic rename: no two runs can use the
    same state, and a run that is killed loses the one that it uses.
    """

    def __init__(self, directory: Path, mark: str) -> None:
        self._directory = directory
        self._mark = mark

    def take(self, server: ManagedServer, arm: Arm) -> list[tuple[Any, ...]] | None:
        """Give the server the arm's state; return its preparation's samples, None without it."""
        taken = self._aside()
        try:
            self._place(server, arm).rename(taken)
            samples = pl.read_parquet(taken / _SAMPLES).with_columns(arm=pl.lit(arm.name))
            server.adopt(arm.state, taken / _DATA)
        except _NOT_KEPT:
            return None
        finally:
            shutil.rmtree(taken, ignore_errors=True)
        return samples.rows()

    def put(self, server: ManagedServer, arm: Arm, rows: Sequence[tuple[Any, ...]]) -> None:
        """Keep the state of the arm, which the server loses, and the samples of its preparation.

        The least recently used states are removed if there is no room for all.  Keeps nothing if
        the directory is gone, as after the last of the runs.
        """
        given = self._aside()
        try:
            given.mkdir(mode=0o700)
            pl.DataFrame(rows, schema=SAMPLES_SCHEMA, orient="row").write_parquet(given / _SAMPLES)
            server.hand_over(arm.state, given / _DATA)
            given.rename(self._place(server, arm))
            self._make_room()
        except _NOT_KEPT:
            shutil.rmtree(given, ignore_errors=True)

    def _place(self, server: ManagedServer, arm: Arm) -> Path:
        what = [self._mark, server.spec, arm.server, arm.state]
        return self._directory / hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]

    def _aside(self) -> Path:
        return self._directory / f".{secrets.token_hex(16)}"

    def _make_room(self) -> None:
        states = sorted(self._directory.iterdir(), key=lambda state: state.stat().st_mtime_ns)
        sizes = {state: size_bytes(state) for state in states}
        room = KEPT_SHARE * (shutil.disk_usage(self._directory).free + sum(sizes.values()))
        for state in states:
            if sum(sizes.values()) > room:
                shutil.rmtree(state, ignore_errors=True)
                del sizes[state]


_DATA, _SAMPLES = "data", "samples.parquet"

_NOT_KEPT = (OSError, pl.exceptions.PolarsError)
"""The state is missing, or replaced by another run's, or the disk is full."""


class Instances:
    """One server for every arm that can run, by the arm's name.

    The servers that arms name are the roots; every further arm on one of them has an instance of
    its own there, with the states in common.  On an external server, an instance is a
    database or a schema.
    """

    def __init__(
        self,
        roots: Mapping[str | None, Server],
        arms: Sequence[Arm],
        kept: PreparedStates | None = None,
    ) -> None:
        self.roots = dict(roots)
        self._kept = kept
        self._to_keep: list[tuple[ManagedServer, Arm, Sequence[tuple[Any, ...]]]] = []
        self._of: dict[str, Server] = {}
        self._made: list[Server] = []
        firsts: dict[tuple[str | None, bool, bool], Server] = {}
        for arm in arms:
            if arm.not_run is not None:
                continue
            like = arm.server, arm.own_programs, arm.own_programs and arm.copy_of is not None
            if like in firsts or arm.own_programs:
                first = firsts.get(like, self.roots[arm.server])
                self._of[arm.name] = first.another(own_programs=like not in firsts)
                self._made.append(self._of[arm.name])
            else:
                self._of[arm.name] = self.roots[arm.server]
            firsts.setdefault(like, self._of[arm.name])

    def __getitem__(self, arm: str) -> Server:
        return self._of[arm]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in reversed(self._made):
            server.close()
        for root, arm, rows in self._to_keep:
            if self._kept is not None and root.has(arm.state):
                self._kept.put(root, arm, rows)

    def kept_samples(self, arm: Arm) -> list[tuple[Any, ...]]:
        """Take over the arm's state if one was kept; return the samples of its preparation."""
        root = self.roots[arm.server]
        if self._kept is None or not isinstance(root, ManagedServer) or root.has(arm.state):
            return []
        rows = self._kept.take(root, arm)
        if rows is not None:
            self.prepared(arm, rows)
        return rows or []

    def prepared(self, arm: Arm, rows: Sequence[tuple[Any, ...]]) -> None:
        """Note that the arm's state is prepared, and what was sampled meanwhile."""
        root = self.roots[arm.server]
        if isinstance(root, ManagedServer):
            self._to_keep.append((root, arm, list(rows)))

    def stop(self, arms: Sequence[Arm]) -> None:
        """Stop the managed servers of these arms at once, without saving what they wrote."""
        for _, server in self._managed(arms):
            server.stop("immediate")

    def make_room(self, arms: Sequence[Arm]) -> None:
        """Remove the data of all other servers, which are stopped, if the disk needs the room."""
        here = self._managed(arms)
        # They keep it otherwise, since a restore copies only what has changed.
        others = [s for s in self._all_managed() if all(s is not own for _, own in here)]
        if not others:
            return
        free = _OF_WHAT_IS_FREE * shutil.disk_usage(others[0].data_directory.parent).free
        more = sum(max(0, s.state_bytes(arm.state) - s.held_bytes) for arm, s in here)
        is_unknown = not all(s.has(arm.state) for arm, s in here)
        if more > free or (is_unknown and sum(s.held_bytes for s in others) > free):
            for server in others:
                server.clear()

    def draw_places(self, arms: Sequence[Arm]) -> None:
        """Remove what these servers keep from the last block and copy it anew, unless it is large.

        Otherwise one server's files would lie better on the disk than another's in every block: the
        slowest updates of two copies of one program differed by 8 %.
        """
        here = self._managed(arms)
        if any(server.state_bytes(arm.state) > _COPIED_WHOLE_BYTES for arm, server in here):
            return
        for _, server in here:
            server.clear()
        with ThreadPoolExecutor(4) as pool:  # they wait for the disk
            list(pool.map(lambda known: known[1].copy_state(known[0].state), here))

    def groups(self, units: tuple[list[Arm], list[list[Arm]]]) -> list[list[Arm]]:
        """The arms in the largest groups that can be up at once; their states are prepared.

        ``units``, of ``Design.units``, has the arms of every group, and those that stay together.
        Raises SpaceError if the disk cannot hold the smallest group.
        """
        always, together = units
        for unit in together:
            self._require_room([*always, *unit])
        groups: list[list[Arm]] = []
        for unit in together:
            if groups and self._fit([*groups[-1], *unit]):
                groups[-1] += unit
            else:
                groups.append([*always, *unit])
        return groups or [always]

    def _fit(self, arms: Sequence[Arm]) -> bool:
        managed = self._managed(arms)
        memory = sum(s.memory_bytes(arm.settings) + arm.memory_bytes for arm, s in managed)
        memory += _PROCESSES_BYTES * len(managed)
        if memory > _OF_WHAT_IS_FREE * psutil.virtual_memory().available:
            return False
        disk = sum(s.state_bytes(arm.state) for arm, s in managed)
        return not managed or disk <= _OF_WHAT_IS_FREE * self._room(managed[0][1])

    def _require_room(self, arms: Sequence[Arm]) -> None:
        managed = self._managed(arms)
        disk = sum(s.state_bytes(arm.state) for arm, s in managed)
        if managed and disk > (room := self._room(managed[0][1])):
            raise SpaceError(
                f"{run_dir()} needs {size_text(disk)} for copies of the prepared state, one for "
                f"each of the {len(managed)} servers that are up at once, and has "
                f"{size_text(room)} free: free some space, make the study smaller, or set "
                f"PGSTUDIES_RUN_DIR to a directory on another disk."
            )

    def _managed(self, arms: Sequence[Arm]) -> list[tuple[Arm, ManagedServer]]:
        """The arms that have a managed server, each with it."""
        return [(arm, s) for arm in arms if isinstance(s := self._of[arm.name], ManagedServer)]

    def _all_managed(self) -> list[ManagedServer]:
        return [server for server in self._of.values() if isinstance(server, ManagedServer)]

    def _room(self, server: ManagedServer) -> float:
        """The free bytes on disk, and the bytes of the servers' data, which can be removed."""
        held = sum(server.held_bytes for server in self._all_managed())
        return shutil.disk_usage(server.data_directory.parent).free + held


def lacking(arms: Sequence[Arm], roots: Mapping[str | None, Server]) -> dict[str, str]:
    """Install the arms' extensions on their servers; why arms cannot run there, by arm."""
    reasons = {}
    for arm in arms:
        server = roots.get(arm.server)
        if server is None or arm.not_run:
            continue
        if arm.since and server.version < parse_version(arm.since):
            reasons[arm.name] = f"it needs PostgreSQL {arm.since}, not {server.version_text}"
        elif arm.extension:
            try:
                server.provide(arm.extension)
            except CannotRun as reason:
                reasons[arm.name] = str(reason)
    return reasons


def roots_of(
    arms: Sequence[Arm], own: Server, start: Callable[[str | None], Server], stack: ExitStack
) -> tuple[dict[str | None, Server], dict[str | None, StudyError]]:
    """The servers that arms name, by these names, and the errors of those that did not start."""
    roots: dict[str | None, Server] = {None: own}
    errors: dict[str | None, StudyError] = {}
    for arm in arms:
        spec = arm.server
        if arm.not_run or spec in roots or spec in errors:
            continue
        try:
            server = start(spec)
        except SpaceError:
            raise
        except StudyError as error:
            errors[spec] = error
        else:
            stack.enter_context(server)
            roots[spec] = server
    return roots, errors
