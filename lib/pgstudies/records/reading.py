"""Records of finished and unfinished runs, read back as polars frames."""

from __future__ import annotations

import functools
import glob
import json
import os
import re
import socket
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import polars as pl

from pgservers import paths
from pgservers.errors import StudyError
from pgservers.files import existing_directory, is_locked, read_within
from pgservers.paths import records_dir
from pgservers.terminal import say

from ..rooms import rooms
from .format import INFO, SAMPLES, damaged, info_in
from .samples import SAMPLES_SCHEMA, completed, samples_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from .info import ArmFacts, Info, ServerFacts, Setup

T = TypeVar("T")

LOCK = ".lock"
"""A writer holds this file of the record's directory locked for as long as it lives."""


@dataclass(frozen=True)
class Record:
    """One run: ``info`` is record.json.

    ``samples`` has the columns of ``SAMPLES_SCHEMA``, copy_of (the arm that a row's arm is a second
    copy of, or null) and after: the arm whose turn was the one before, null where none is known.
    """

    path: Path
    info: Info
    samples: pl.DataFrame

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters the run was made with, which need not be the reader's."""
        return dict(self.info["parameters"])

    @property
    def arms(self) -> pl.DataFrame:
        """The arms in declared order: name, description, baseline, copy_of, server, not_run.

        ``server`` is its version, such as PostgreSQL 18.6, or null.
        """
        columns = ["name", "description", "baseline", "copy_of", "not_run"]
        schema = dict.fromkeys(columns, pl.String()) | {"baseline": pl.Boolean()}
        versions = [s.get("version_text") for s in _servers_of(self.info, self.info["arms"])]
        arms = pl.DataFrame(self.info["arms"], schema=schema)
        return arms.insert_column(4, pl.Series("server", versions, dtype=pl.String()))

    @property
    def built_with(self) -> dict[str, str | None]:
        """Compiler and optimization of each arm's server, by the arm's name, as far as known."""
        servers = _servers_of(self.info, self.info["arms"])
        return dict(zip(self.arms["name"], map(built_with, servers), strict=True))

    @property
    def repeat(self) -> str | None:
        """The arm that is a second copy of the baseline; None where there is none."""
        return next((arm["name"] for arm in self.info["arms"] if arm["copy_of"]), None)

    @property
    def measured(self) -> pl.DataFrame:
        """The samples of blocks: all but those of preparation."""
        return self.samples.filter(pl.col("block") > 0)

    @property
    def blocks(self) -> int:
        """Number of finished blocks."""
        return self.measured["block"].n_unique()

    @property
    def gate(self) -> pl.DataFrame:
        """What the gate found before measuring: name, level, sentence."""
        schema = dict.fromkeys(["name", "level", "sentence"], pl.String())
        return pl.DataFrame(self.info["gate"], schema=schema)

    @property
    def not_run(self) -> pl.DataFrame:
        """What was not run: arm, step ("all" for the whole arm), case, reason."""
        arms = [
            {"arm": arm["name"], "step": "all", "case": "", "reason": arm["not_run"]}
            for arm in self.info["arms"]
            if arm["not_run"] is not None
        ]
        schema = dict.fromkeys(["arm", "step", "case", "reason"], pl.String())
        return pl.DataFrame([*arms, *self.info["left_out"]], schema=schema)

    @property
    def reasons(self) -> dict[str, str]:
        """Why arms were not run or left out a step, or requirements were unmet, for ``judge``."""
        unmet: dict[str, str] = self.info.get("unmet", {})
        return unmet | dict(self.not_run.select("arm", "reason").iter_rows())

    @property
    def unmet_settings(self) -> pl.DataFrame:
        """Settings that a server did not grant: server, setting, wanted, actual."""
        servers = [self.info["server"], *self.info.get("servers", {}).values()]
        rows = [
            (server.get("spec"), setting, wanted, actual)
            for server in servers
            for setting, (wanted, actual) in server.get("unmet_settings", {}).items()
        ]
        schema = dict.fromkeys(["server", "setting", "wanted", "actual"], pl.String())
        return pl.DataFrame(rows, schema=schema, orient="row")

    def summary(self, **more: object) -> pl.DataFrame:
        """One row: record, server, what the study has to say in ``more``, blocks."""
        server = self.info["server"].get("version_text")
        row = {"record": self.path.name, "server": server, **more, "blocks": self.blocks}
        return pl.DataFrame([row])

    @property
    def facts(self) -> pl.DataFrame:
        """Where and how it was measured, as far as known: the columns fact and of this run."""
        info = self.info
        host, server = info["host"], info["server"]
        source = server.get("source") if server.get("stands_in") else None
        facts: dict[str, list[object]] = {
            "record": [self.path.name],
            "server": [server.get("version_text"), server.get("spec"), source],
            "client" if server.get("elsewhere") else "host": [
                host.get(name) for name in ("hostname", "cpu_model")
            ],
            "built with": [built_with(server)],
            "builds": [builds_note(info)],
            "virtualization": [host.get("virtualization")],
            "disk": [host.get(name) for name in ("device", "device_scheduler", "file_system")],
            "limits on disk and memory": [info.get("limits")],
            "pinned to core": [info.get("pinned_to_core")],
            "seed": [info.get("seed")],
            "sessions": [len(info.get("sessions", [])) or None],
            "revision": [(info.get("git") or {}).get("revision")],
        }
        rows = [
            (fact, ", ".join(str(part) for part in parts if part is not None))
            for fact, parts in facts.items()
        ]
        schema = {"fact": pl.String(), "of this run": pl.String()}
        return pl.DataFrame([row for row in rows if row[1]], schema=schema, orient="row")

    @property
    def timeline(self) -> pl.DataFrame:
        """When each arm ran in each block: block, position, arm, started_at, finished_at, busy_s.

        busy_s is how long the arm's own turns took together, as all arms of a block are up at once.
        """
        times = pl.col("started_at", "finished_at").str.to_datetime(time_unit="us", time_zone="UTC")
        schema: dict[str, pl.DataType] = dict.fromkeys(["block", "position"], pl.Int32())
        schema |= dict.fromkeys(["arm", "started_at", "finished_at"], pl.String())
        schema |= {"busy_s": pl.Float64()}
        return pl.DataFrame(self.info["timeline"], schema=schema).with_columns(times)

    @property
    def block_s(self) -> float | None:
        """The median time from a block's beginning to the next one's (s); None without a block."""
        times = self.timeline.group_by("block").agg(
            began=pl.col("started_at").min(), ended=pl.col("finished_at").max()
        )
        apart = times["began"].sort().diff().drop_nulls()
        took = apart if apart.len() else times["ended"] - times["began"]
        seconds = took.dt.total_seconds(fractional=True).median()
        return float(seconds) if isinstance(seconds, (int, float)) else None

    @property
    def where(self) -> str:
        """Release, machine, date and size, in words."""
        return where_of(self.info)


def built_with(server: Mapping[str, Any]) -> str | None:
    """Compiler and optimization of a server in record.json, as in "gcc 7.5.0, -Os", or None."""
    compiler = _COMPILER.search(server.get("build") or "")
    levels = [word for word in (server.get("cflags") or "").split() if word.startswith("-O")]
    name = [" ".join(compiler.groups())] if compiler else []
    return ", ".join(name + levels[-1:]) or None


# Meson writes gcc-12.2.0; configure what the compiler says: x86_64-linux-gnu-gcc-16 (GCC) 16.2.0.
_COMPILER = re.compile(
    r"compiled by (?:[^,(]*[ -])?(gcc|clang|icc|msvc)"
    r"(?:-(?=[\d.]+,)|[^ ,]*(?: \([^)]*\))?(?: version)? )(\d[\d.]*\d)"
)


def builds_note(info: Info) -> str | None:
    """How the servers of a record were built, if that differs from arm to arm; else None."""
    found: dict[str, list[str]] = {}
    for server in _servers_of(info, [arm for arm in info["arms"] if arm["not_run"] is None]):
        number = version_number(server.get("version_text"))
        numbers = found.setdefault(built_with(server) or "unknown", [])
        numbers += [number] * (number not in numbers)
    builds = [f"{', '.join(numbers)} with {built}" for built, numbers in found.items()]
    return f"builds differ: {'; '.join(builds)}" if len(found) > 1 else None


def _servers_of(info: Info, arms: Iterable[ArmFacts]) -> list[ServerFacts]:
    others = info.get("servers", {})
    named = [arm.get("server") for arm in arms]
    return [info["server"] if name is None else others.get(name, {}) for name in named]


def host_of(info: Info) -> str:
    """The name of the server's host; of the client's if the server was elsewhere."""
    name = info["host"].get("hostname") or "unknown"
    return f"another machine (client on {name})" if info["server"].get("elsewhere") else name


def cores_of(info: Setup) -> int | None:
    """The number of cores that a run was allowed, by its record.json; None if unknown."""
    return len((info.get("host") or {}).get("allowed_cores") or ()) or None


def conditions(info: Setup) -> tuple[object, ...]:
    """What records must have in common to be judged together."""
    settings = {k: v for k, v in (info.get("settings") or {}).items() if not k.endswith("_path")}
    release = (info["server"].get("version") or 0) // 10_000
    return release, info["parameters"].get("server"), size_of(info), settings, cores_of(info)


def size_of(info: Setup) -> dict[str, Any]:
    """The parameters that records must have in common: all but blocks, seed, server and repo."""
    apart = {"blocks", "seed", "server", "repo"}
    return {k: v for k, v in info["parameters"].items() if k not in apart}


def representative(found: Iterable[tuple[Path, Info]]) -> Path | None:
    """The record that stands for its study, of records given oldest first; None without one.

    It is the newest of standard size, if there are any, on most cores: a run of another size, or
    one that was kept to some of the cores (``taskset``), does not take the place of others.
    """
    ranks = {p: (info.get("profile") == "standard", cores_of(info) or 0) for p, info in found}
    most = max(ranks.values(), default=None)
    return next((place for place in reversed(ranks) if ranks[place] == most), None)


def version_number(version_text: str | None) -> str:
    """The release in a server's version, 17.2 in "PostgreSQL 17.2 on x86_64…", or "unknown"."""
    return next(iter((version_text or "").removeprefix("PostgreSQL ").split()), "unknown")


def where_of(info: Info) -> str:
    """The run of a record in words, by what its record.json says."""
    server, date = info["server"].get("version_text"), str(info["started_at"])
    return made_where(server, host_of(info), date, info.get("profile"))


def made_where(server: str | None, host: str | None, date: str, profile: str | None) -> str:
    """A run in words: release, machine, date and size."""
    size = f"{profile} size" if profile else "size unknown"
    return f"PostgreSQL {version_number(server)} on {host or 'unknown'}, {date[:10]}, {size}"


def read_record(path: str | Path) -> Record:
    """The record in directory ``path``, finished or not.  Raises StudyError if it is unreadable."""
    directory = existing_directory(path)
    info = read_info(directory)
    sums = info["sha256"] or {}
    frames = [
        samples_in(content_of(directory, name), sums.get(name), directory / name)
        for name in sample_files(directory, info)
    ]
    samples = pl.concat(frames) if frames else pl.DataFrame(schema=SAMPLES_SCHEMA)
    copies = {arm["name"]: arm["copy_of"] for arm in info["arms"]}
    record = Record(directory, info, completed(samples, copies))
    try:
        _ = record.timeline
    except (pl.exceptions.PolarsError, TypeError, ValueError):
        raise damaged(directory / INFO, "its timeline has what is no time") from None
    return record


def readable_records(paths: Iterable[str | Path]) -> Iterator[Record]:
    """The records at ``paths``, in order, skipping with a notice those that cannot be read."""
    return (record for _, record in _skipping(map(Path, paths), read_record))


def find_record(study: str, path: str | Path) -> Path:
    """The record at ``path``, or the one below that directory that stands for ``study``.

    That is the ``representative`` of the complete ones; for a study that counts instructions the
    complete one that counted most, which a later count of a few units does not replace.  Links that
    lead out of the directory are not followed.  Raises StudyError if there is none.
    """
    directory = existing_directory(path)
    if os.path.lexists(directory / INFO):
        found = read_info(directory)["study"]
        if found != study:
            raise StudyError(f"{directory} is a record of {found}, not of {study}.")
        return directory
    below = (d for d in record_directories(directory, study) if directory in d.resolve().parents)
    records = _skipping(below, _whole_info)
    complete = [entry for entry in records if entry[1]["status"] == "complete"]
    if study in rooms("counts"):
        most = fullest(readable_records(path for path, _ in reversed(complete)))
        newest = most.path if most is not None else None
    else:
        newest = representative(complete)
    if newest is None:
        raise StudyError(
            f"There is no complete record of {study} at {directory}; "
            f"`pgstudies records` lists the records of this machine."
        )
    return newest


def fullest(records: Iterable[Record]) -> Record | None:
    """The record with most samples, of several the first; None where there is none."""
    return max(records, key=lambda record: record.samples.height, default=None)


def list_records(study: str | None = None, *, below: Path | None = None) -> pl.DataFrame:
    """All records of this user and of the project, oldest first, or those below a directory.

    Columns: study, started_at (UTC), host, server, profile, blocks_done, blocks, status
    (complete, interrupted, running or unfinished), path.
    """
    names = ["study", "started_at", "host", "server", "profile", "blocks_done", "blocks", "status"]
    schema: dict[str, pl.DataType] = dict.fromkeys([*names, "path"], pl.String())
    schema |= dict.fromkeys(["blocks_done", "blocks"], pl.Int64())
    schema["started_at"] = pl.Datetime("us", "UTC")
    rows = [
        _summary(directory, info)
        for base in ((below,) if below else (paths.REFERENCE_RECORDS, records_dir()))
        for directory, info in _skipping(record_directories(base, study), _whole_info)
    ]
    return pl.DataFrame(rows, schema=schema).sort("started_at")


def _summary(directory: Path, info: Info) -> dict[str, Any]:
    is_left = info["status"] == "running" and not is_locked(directory / LOCK)
    return {
        "study": info["study"],
        "started_at": datetime.fromisoformat(info["started_at"]),
        "host": info["host"].get("hostname"),
        "server": info["server"].get("version_text"),
        "profile": info.get("profile"),
        "blocks_done": len({entry["block"] for entry in info["timeline"]}),
        "blocks": int(info["blocks"]),
        "status": "unfinished" if is_left else info["status"],
        "path": str(directory),
    }


def record_directories(base: Path, study: str | None) -> Iterator[Path]:
    """Directories below ``base`` that hold a record (of ``study``), oldest first."""
    name = glob.escape(study).replace("/", "[/]") if study else "*"
    found = base.glob(f"{name}/*/record.json")
    return (file.parent for file in sorted(found, key=lambda file: file.parent.name))


def infos_below(base: Path, study: str | None) -> Iterator[tuple[Path, Info]]:
    """The readable records below ``base`` (of ``study``), oldest first, by directory."""
    return _skipping(record_directories(base, study), read_info)


def alike_before(study: str, info: Setup) -> list[str]:
    """The names of complete records like the run that begins: their results may be known."""

    def plain(of: Setup) -> object:
        return json.loads(json.dumps(conditions(of), default=str))

    own = plain(info)
    names = {
        path.name
        for base in (records_dir(), paths.REFERENCE_RECORDS)
        for path, other in infos_below(base, study)
        if other["status"] == "complete" and plain(other) == own
    }
    return sorted(names)


def is_of_this_host(info: Info) -> bool:
    """Whether a run here may continue the record: directories may be shared between machines."""
    return info["host"].get("hostname") in {None, socket.gethostname()}


def read_info(directory: Path) -> Info:
    """A record.json in the newest format.  Raises StudyError if missing, damaged or too new."""
    try:
        content = content_of(directory, INFO)
    except FileNotFoundError:
        raise StudyError(
            f"There is no record at {directory}: a record is a directory holding record.json."
        ) from None
    return info_in(content, directory / INFO)


def _whole_info(directory: Path) -> Info:
    """A record.json whose samples exist, in the newest format."""
    info = read_info(directory)
    sample_files(directory, info)
    return info


def sample_files(directory: Path, info: Info) -> list[str]:
    """The names of the files that hold the samples; raises StudyError if one is missing."""
    if info["sha256"] is not None:
        names = sorted(name for name in info["sha256"] if name != INFO)
    elif info["status"] == "complete":
        names = [SAMPLES]
    else:
        blocks = (directory / "blocks").glob("*.parquet")
        names = sorted(str(file.relative_to(directory)) for file in blocks)
    if info["status"] == "complete" and names != [SAMPLES]:
        raise damaged(directory / INFO, "it is complete and names no samples")
    missing = next((name for name in names if not (directory / name).is_file()), None)
    if missing:
        raise damaged(directory, f"it has no {missing}")
    return names


def content_of(directory: Path, name: str) -> bytes:
    """A file of a record, which may be a stranger's; raises what ``read_within`` raises."""
    largest_bytes = 1_000_000_000 if name.endswith(".parquet") else 32_000_000
    return read_within(directory, name, largest_bytes)


def _skipping(places: Iterable[Path], read: Callable[[Path], T]) -> Iterator[tuple[Path, T]]:
    for place in places:
        try:
            found = read(place)
        except StudyError as error:
            _say_once(f"skipped a record: {error}")
        else:
            yield place, found


_say_once = functools.cache(say)
