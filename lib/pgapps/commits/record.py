"""A record of counts of commits or releases: a block for each, written as soon as it is counted."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self, cast

from pgservers.host.facts import git_revision, host_facts, packages
from pgservers.paths import records_dir, run_dir
from pgstudies.records.counts import INSTRUCTIONS, units_counted
from pgstudies.records.reading import infos_below, read_record
from pgstudies.records.samples import AMONG_OTHERS
from pgstudies.records.writing import RecordWriter, fingerprint

from ..counting.by_function import count_samples

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from pgstudies.records.info import Setup


class CommitRecord:
    """The record of ``what`` (``bisect`` or ``history``) with these parameters, new or continued.

    ``levels`` has a number by point (commit or release) and what was measured there: the
    instructions of a unit; for a complete record ``reasons`` has why a point has no number.  A
    complete record of the same parameters is only read; an unfinished one is continued.  ``same``
    is what else must be alike, such as a unit's statements.
    """

    def __init__(
        self, what: str, parameters: Mapping[str, Any], *, built: str, same: Sequence[Any] = ()
    ) -> None:
        mark = fingerprint({**parameters, "built": built, "same": list(same)})
        self._built = built
        self._writer: RecordWriter | None = None
        self.path: Path
        self.levels: dict[tuple[str, str], float]
        self.reasons: dict[str, str] = {}
        for path, info in infos_below(records_dir(), what):
            if info["status"] == "complete" and info.get("fingerprint") == mark:
                self.path = path
                self._read()
                not_run = {arm["name"]: arm["not_run"] for arm in info["arms"]}
                self.reasons = {name: reason for name, reason in not_run.items() if reason}
                return
        writer = RecordWriter.resume(what, mark)
        if writer is None:
            setup: Setup = {
                "profile": None,
                "fingerprint": mark,
                "parameters": dict(parameters),
                "arms": [],
                "blocks": 0,
                "gate": [],
                "not_compared": [],
                "server": {"version_text": "PostgreSQL", "spec": built},
                "servers": {},
                "host": host_facts(run_dir()),
                "packages": packages(),
                "git": git_revision(),
            }
            writer = RecordWriter.create(what, setup)
        self._writer = writer
        self.path = writer.path
        done = {entry["arm"] for entry in writer.info["timeline"]}
        writer.info["arms"] = [arm for arm in writer.info["arms"] if arm["name"] in done]
        self._read()

    def _read(self) -> None:
        counts = units_counted(read_record(self.path)).select("arm", "unit", "instructions")
        self.levels = {(arm, unit): number for arm, unit, number in counts.iter_rows()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, *_: object) -> None:
        if self._writer is None:
            return
        if kind is not None and self._writer.finished_blocks:
            self._writer.interrupt(str(error) or kind.__name__)
        elif kind is not None:
            self._writer.discard()
        self._writer.close()

    def has(self, point: str) -> bool:
        """Whether this point is counted."""
        return any(name == point for name, _ in self.levels)

    def add(
        self,
        point: str,
        counts: Mapping[str, pl.DataFrame],
        *,
        description: str,
        version_text: str = "PostgreSQL",
        built: str = "",
        left_out: Mapping[str, str] = {},
    ) -> None:
        """Write a block: the ``instructions`` of each unit at a point, and what was left out."""
        for unit, table in counts.items():
            self.levels[point, unit] = float(table["inclusive"][0])
        if self._writer is None:
            return
        info, now = self._writer.info, datetime.now(UTC)
        block = 1 + max(self._writer.finished_blocks, default=0)
        place = (block, 1, 1, 1, AMONG_OTHERS, point, "")
        rows = [
            (*place, unit, iteration, metric, value, INSTRUCTIONS, now)
            for unit, table in counts.items()
            for metric, iteration, value in count_samples(table)
        ]
        self._arm(point, description, built or self._built)
        info["servers"][point] = {"version_text": version_text, "spec": None}
        info["server"]["version_text"] = version_text
        at = now.isoformat()
        info["timeline"].append(
            {"block": block, "position": 1, "arm": point, "started_at": at, "finished_at": at}
        )
        info["left_out"] += [
            {"arm": point, "step": unit, "case": "", "reason": reason}
            for unit, reason in left_out.items()
        ]
        info["blocks"] = block
        self._writer.write_block(str(block), rows)

    def skip(self, point: str, description: str, reason: str) -> None:
        """Write why a point has no counts."""
        if self._writer is not None:
            self._arm(point, description, self._built, reason)
            self._writer.save()

    def _arm(self, point: str, description: str, built: str, reason: str | None = None) -> None:
        assert self._writer is not None
        arms = self._writer.info["arms"]
        arms.append(
            {
                "name": point,
                "description": description,
                "baseline": not arms,
                "copy_of": None,
                "server": point if reason is None else None,
                "not_run": reason,
                "options": {"built": built},
            }
        )

    def finish(
        self,
        order: Sequence[str] = (),
        *,
        answer: str | None = None,
        steps: Sequence[dict[str, Any]] = (),
    ) -> Path:
        """Complete the record, with its points in that order; returns its directory.

        ``answer`` is the printed answer of a bisection, ``steps`` are the steps that it found.
        """
        if self._writer is not None:
            info = cast("dict[str, Any]", self._writer.info)
            places = {name: number for number, name in enumerate(order)}
            info["arms"].sort(key=lambda arm: places.get(arm["name"], len(places)))
            if answer is not None:
                info["answer"], info["steps"] = answer, list(steps)
            self._writer.finish()
            self._writer = None
        return self.path
