"""What a sweep is to do: sweep.toml read, checked, and spread over hosts and blocks."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import polars as pl
from msgspec import Meta, Struct

from pgservers.addresses import Address
from pgservers.errors import StudyError
from pgservers.files import read_text
from pgstudies.checking import checked
from pgstudies.parameters import declared
from pgstudies.rooms import find_room

from ..execution.durations import block_seconds
from ..execution.plan import plan
from ..options import showable
from .ledger import SweepBlock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Blocks = Annotated[int, Meta(ge=1)]

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

MOST_HOSTS, MOST_CELLS, MOST_BLOCKS = 1000, 1000, 1_000_000
"""The limits of a sweep; blocks are counted on all hosts together."""


class Run(Struct, frozen=True, forbid_unknown_fields=True):
    """A table [[run]] of a sweep.toml: a study, its servers and its parameters."""

    study: str
    profile: str = "quick"
    servers: tuple[str, ...] = ("",)
    parameters: dict[str, Any] = {}
    blocks: Blocks | None = None


class File(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of a sweep.toml."""

    ledger: str | None = None
    hosts: list[str] = []
    blocks: Blocks | None = None
    run: list[Run] = []

    def __post_init__(self) -> None:
        for host in self.hosts:
            if not _HOST.fullmatch(host):
                raise ValueError(
                    f"has the host {host!r}, and a name of a host is letters, digits, . _ and -"
                )
        if not self.hosts or len(set(self.hosts)) < len(self.hosts):
            raise ValueError('must name its hosts, each once, as hosts = ["bench1", "bench2"]')
        if len(self.hosts) > MOST_HOSTS:
            raise ValueError(f"names {len(self.hosts)} hosts, and a sweep has {MOST_HOSTS} at most")


@dataclass(frozen=True)
class Cell:
    """A study with one value of every parameter; its blocks on one host make a record."""

    study: str
    profile: str
    server: str
    parameters: dict[str, Any]
    """All parameters but server and blocks."""
    blocks: int

    @property
    def id(self) -> str:
        """A short name, the same for cells that measure the same."""
        what = [self.study, self.server, sorted(self.parameters.items())]
        return hashlib.sha256(json.dumps(what, default=str).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Sweep:
    """A sweep, checked."""

    ledger: str
    """An absolute directory or the address of an object store."""
    hosts: list[str]
    cells: list[Cell]

    def blocks(self) -> Iterator[SweepBlock]:
        """All blocks, sorted by number, so that an interrupted sweep has some of every cell."""
        for block in range(1, max(cell.blocks for cell in self.cells) + 1):
            for cell, host in itertools.product(self.cells, self.hosts):
                if block <= cell.blocks:
                    yield SweepBlock(cell.study, cell.id, host, block)


def read_sweep(path: Path) -> Sweep:
    """Read and check a sweep; raises StudyError for the first mistake in it.

    A list for a parameter that takes one value makes a grid of its values, and so does a list of
    lists for a parameter that takes a list.
    """
    try:
        text = tomllib.loads(read_text(path, "a sweep"))
    except RecursionError:
        raise StudyError(f"{path} is nested too deeply.") from None
    except ValueError as error:  # of TOML, of UTF-8, of a number with thousands of digits
        raise StudyError(f"{path} is not valid TOML: {error}.") from None
    if not showable(text):
        raise StudyError(
            f"{path} has a whole number of more than 64 bits, or a text that is not one line."
        )
    file = checked(text, File, str(path))
    found = (cell for run in file.run for cell in _cells(run, file.blocks, path))
    cells = list(itertools.islice(found, MOST_CELLS + 1))
    if len(cells) > MOST_CELLS:
        raise StudyError(
            f"{path} asks for more than {MOST_CELLS} combinations of study, server and parameters: "
            f"make several sweeps of it."
        )
    blocks = sum(cell.blocks for cell in cells) * len(file.hosts)
    if blocks > MOST_BLOCKS:
        raise StudyError(
            f"{path} asks for {blocks} blocks on all hosts together, and a sweep has {MOST_BLOCKS} "
            f"at most: lower blocks, or make several sweeps of it."
        )
    if not cells:
        raise StudyError(f"{path} has no [[run]] with a study, so there is nothing to measure.")
    ids = Counter(cell.id for cell in cells)
    twice = next((cell for cell in cells if ids[cell.id] > 1), None)
    if twice:
        raise StudyError(f"{path} asks twice for {twice.study} with the same parameters.")
    return Sweep(_ledger(file.ledger, path), file.hosts, cells)


def overview(sweep: Sweep, done: set[SweepBlock]) -> pl.DataFrame:
    """The progress of a sweep: one row per cell and host.

    Columns: study, server (empty for the host's default), differs (the parameters in which the
    cells of the study differ), cell, host, blocks, done, block_s (how long a block took in the
    newest complete record of that study and profile, in seconds, or null).
    """
    took = {(c.study, c.profile): block_seconds(c.study, c.profile) for c in sweep.cells}
    differs = _differs(sweep.cells)
    counts = Counter((block.cell, block.host) for block in set(sweep.blocks()) & done)
    rows = [
        {
            "study": cell.study,
            "server": cell.server,
            "differs": differs[cell.id],
            "cell": cell.id,
            "host": host,
            "blocks": cell.blocks,
            "done": counts[cell.id, host],
            "block_s": took[cell.study, cell.profile],
        }
        for cell in sweep.cells
        for host in sweep.hosts
    ]
    return pl.DataFrame(rows, schema_overrides={"block_s": pl.Float64()})


def _ledger(given: str | None, path: Path) -> str:
    if given is not None and "://" in given:
        return given
    try:
        return str((path.parent / Path(given or path.stem).expanduser()).resolve())
    except (OSError, RuntimeError, ValueError) as error:
        raise StudyError(f"{path}: the ledger {given!r} is no path ({error}).") from None


def _cells(run: Run, blocks: int | None, path: Path) -> Iterator[Cell]:
    study, profile = run.study, run.profile
    for server in run.servers:
        if Address.parse(server).secrets:
            raise StudyError(
                f"{path}, [[run]]: the address of a server must not hold its password, which "
                f"every host and the scheduler would read; put it into ~/.pgpass there."
            )
        for given in _grid(study, run.parameters):
            chosen = plan(study, profile=profile, server=server, parameters=given)
            if "blocks" not in chosen.parameters:
                raise StudyError(f"{path}, [[run]]: {study} has no blocks to measure.")
            values = dict(chosen.parameters)
            own = values.pop("blocks")
            yield Cell(study, profile, server, values, run.blocks or blocks or own)


def _grid(study: str, parameters: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every combination of the values given."""
    for name, key in (("server", "servers"), ("blocks", "blocks")):
        if name in parameters:
            raise StudyError(f"{name} is not among the parameters of a [[run]]: write {key} = ….")
    lists = {p.name for p in declared(find_room(study).notebook) if p.type.startswith("list")}
    choices = []
    for name, value in parameters.items():
        is_grid = isinstance(value, list) and (
            name not in lists or (value and isinstance(value[0], list))
        )
        choices.append(value if is_grid else [value])
    for values in itertools.product(*choices):
        yield dict(zip(parameters, values, strict=True))


def _differs(cells: list[Cell]) -> dict[str, str]:
    """For each cell, the parameters that differ within its study, with their values."""
    values: dict[tuple[str, str], set[str]] = {}
    for cell in cells:
        for name, value in cell.parameters.items():
            values.setdefault((cell.study, name), set()).add(repr(value))
    return {
        cell.id: " ".join(
            f"{name}={value}"
            for name, value in cell.parameters.items()
            if len(values[cell.study, name]) > 1
        )
        for cell in cells
    }
