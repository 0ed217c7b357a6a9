"""What a sweep is to do: sweep.toml read, checked, and spread over hosts and blocks."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from ..addresses import holds_password
from ..errors import StudyError
from ..records.reading import list_records, readable_records
from ..studies import plan
from ..studies.parameters import declared
from .ledger import Unit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_TOP = {"ledger": str, "hosts": list, "blocks": int, "run": list}


_RUN = {"study": str, "profile": str, "servers": list, "parameters": dict, "blocks": int}


_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Cell:
    """One study with one value of everything: its blocks, on one host, are compared."""

    study: str
    profile: str
    server: str
    parameters: dict[str, Any]
    """Every one but server and blocks."""
    blocks: int

    @property
    def id(self) -> str:
        """A short name, the same wherever the same is to be measured."""
        what = [self.study, self.server, sorted(self.parameters.items())]
        return hashlib.sha256(json.dumps(what, default=str).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Sweep:
    """A sweep as its file has it."""

    ledger: str
    """A directory, absolute, or the address of an object store."""
    hosts: list[str]
    cells: list[Cell] = field(default_factory=list)

    def units(self) -> Iterator[Unit]:
        """All units, first blocks first: a sweep that is cut short has a little of everything."""
        most = max((cell.blocks for cell in self.cells), default=0)
        for block in range(1, most + 1):
            for cell, host in itertools.product(self.cells, self.hosts):
                if block <= cell.blocks:
                    yield Unit(cell.study, cell.id, host, block)


def read_sweep(path: Path) -> Sweep:
    """Read and check a sweep; raises StudyError with the first thing that is wrong in it.

    A parameter given a list where its study wants one value is a grid of them, and so is a list of
    lists where the study wants a list.
    """
    try:
        text = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StudyError(f"{path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StudyError(f"{path} is not valid TOML: {error}.") from None
    _known(text, _TOP, str(path))
    hosts = text.get("hosts", [])
    for host in hosts:
        if not isinstance(host, str) or not _HOST.fullmatch(host):
            raise StudyError(f"{path}: {host!r} is not a host's name: letters, digits, . _ and -.")
    if not hosts or len(set(hosts)) < len(hosts):
        raise StudyError(f'{path} must name its hosts, each once, as hosts = ["bench1", "bench2"].')
    cells = [cell for run in text.get("run", []) for cell in _cells(run, text, path)]
    if not cells:
        raise StudyError(f"{path} has no [[run]] with a study, so there is nothing to measure.")
    ids = [cell.id for cell in cells]
    twice = next((cell for cell in cells if ids.count(cell.id) > 1), None)
    if twice:
        raise StudyError(f"{path} asks twice for {twice.study} with the same parameters.")
    return Sweep(_ledger(text.get("ledger"), path), hosts, cells)


def overview(sweep: Sweep, done: set[Unit]) -> pl.DataFrame:
    """How far a sweep is: one row per cell and host.

    Columns: study, server (empty: the one that a host has by default), differs (the parameters in
    which the cells of the study differ), cell, host, blocks, done, block_s (seconds a block took in
    the newest record of the study in that profile, or null).
    """
    took = {(c.study, c.profile): _seconds_of_block(c) for c in sweep.cells}
    rows = [
        {
            "study": cell.study,
            "server": cell.server,
            "differs": _differs(cell, sweep.cells),
            "cell": cell.id,
            "host": host,
            "blocks": cell.blocks,
            "done": sum(Unit(cell.study, cell.id, host, b + 1) in done for b in range(cell.blocks)),
            "block_s": took[cell.study, cell.profile],
        }
        for cell in sweep.cells
        for host in sweep.hosts
    ]
    return pl.DataFrame(rows, schema_overrides={"block_s": pl.Float64()})


def _ledger(given: str | None, path: Path) -> str:
    if given is not None and "://" in given:
        return given
    return str((path.parent / Path(given or path.stem).expanduser()).resolve())


def _cells(run: Any, text: Mapping[str, Any], path: Path) -> Iterator[Cell]:
    where = f"{path}, [[run]]"
    _known(run, _RUN, where)
    study, profile = run.get("study", ""), run.get("profile", "quick")
    for server in run.get("servers", [""]):
        if not isinstance(server, str):
            raise StudyError(f"{where}: servers are words in quotes, and {server!r} is none.")
        if holds_password(server):
            raise StudyError(
                f"{where}: the address of a server must not hold its password, which every host "
                f"and the scheduler would read; put it into ~/.pgpass there."
            )
        plan(study, profile=profile)  # the study is known
        for given in _grid(study, run.get("parameters", {})):
            chosen = plan(study, profile=profile, server=server or None, parameters=given)
            blocks = run.get("blocks", text.get("blocks", chosen.parameters["blocks"]))
            if blocks < 1:
                raise StudyError(f"{where}: blocks must be at least 1, and it is {blocks}.")
            values = {k: v for k, v in chosen.parameters.items() if k != "blocks"}
            yield Cell(study, profile, server, values, blocks)


def _grid(study: str, parameters: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every combination of the values given."""
    for name in ("server", "blocks"):
        if name in parameters:
            other = "servers" if name == "server" else name
            raise StudyError(f"{name} is not among the parameters of a [[run]]: write {other} = ….")
    lists = {p.name for p in declared(plan(study).notebook) if p.type.startswith("list")}
    choices = []
    for name, value in parameters.items():
        is_grid = isinstance(value, list) and (
            name not in lists or (value and isinstance(value[0], list))
        )
        choices.append([(name, v) for v in (value if is_grid else [value])])
    for values in itertools.product(*choices):
        yield dict(values)


def _differs(cell: Cell, cells: list[Cell]) -> str:
    others = [other.parameters for other in cells if other.study == cell.study]
    named = (
        f"{name}={value}"
        for name, value in cell.parameters.items()
        if any(other.get(name) != value for other in others)
    )
    return " ".join(named)


def _seconds_of_block(cell: Cell) -> float | None:
    known = list_records(cell.study).filter(pl.col("status") == "complete")
    same = known.filter(pl.col("profile") == cell.profile)
    record = next(readable_records(same["path"].reverse()), None)
    if record is None:
        return None
    times = record.timeline
    blocks = times.group_by("block").agg(pl.col("finished_at").max() - pl.col("started_at").min())
    seconds = blocks["finished_at"].dt.total_seconds(fractional=True).median()
    return float(seconds) if isinstance(seconds, (int, float)) else None


def _known(table: Any, names: Mapping[str, type], where: str) -> None:
    if not isinstance(table, dict):
        raise StudyError(f"{where} must be a table, as [[run]] begins one.")
    for name, value in table.items():
        if name not in names:
            raise StudyError(f"{where} has {name!r}, which is none of {', '.join(names)}.")
        if not isinstance(value, names[name]) or isinstance(value, bool):
            kind = {str: "text", list: "a list", int: "a whole number", dict: "a table"}
            raise StudyError(f"{where}: {name} must be {kind[names[name]]}, and it is {value!r}.")
