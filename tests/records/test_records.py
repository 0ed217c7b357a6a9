"""Records: written whole or not at all, read back as frames, resumed, and never lost."""

from __future__ import annotations

import json
import os
import resource
import socket
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from pgservers.errors import SpaceError, StudyError
from pgservers.files import is_locked
from pgstudies.records.reading import (
    LOCK,
    Record,
    builds_note,
    built_with,
    cores_of,
    find_record,
    list_records,
    read_record,
    representative,
    version_number,
)
from pgstudies.records.samples import AMONG_OTHERS, SAMPLES_SCHEMA
from pgstudies.records.writing import RecordWriter, fingerprint, mark_read, unread
from tests import made_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgstudies.records.info import Setup

INFO: Setup = {
    "profile": "quick",
    "fingerprint": "abc",
    "parameters": {"rows": 10},
    "arms": [],
    "blocks": 3,
    "gate": [],
    "not_compared": [],
    "server": {"version_text": "18.6"},
    "host": {"hostname": socket.gethostname()},
}


@pytest.fixture(autouse=True)
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PGSTUDIES_RECORDS", str(tmp_path / "records"))
    return tmp_path / "records"


@pytest.fixture
def writer() -> Iterator[RecordWriter]:
    writer = RecordWriter.create("made_up", {**INFO})
    yield writer
    writer.close()


def entry(block: int) -> Any:
    at = "2026-01-01T00:00:00+00:00"
    return {"block": block, "position": 1, "arm": "a", "started_at": at, "finished_at": at}


def rows(block: int, values: int = 2) -> list[tuple[Any, ...]]:
    at = datetime(2026, 1, block + 1, tzinfo=UTC)
    return [
        (block, 1, 1, 1, AMONG_OTHERS, "heap", "", "insert", i, "duration_s", i / 8, "s", at)
        for i in range(values)
    ]


def test_an_unfinished_record_reads_back_what_was_written(writer: RecordWriter) -> None:
    writer.write_block("0-1", rows(0))
    assert read_record(writer.path).blocks == 0  # a preparation is none
    assert writer.finished_blocks == set()
    writer.write_block("0001", rows(1))
    writer.write_block("0002", rows(2))

    record = read_record(writer.path)

    assert record.info["status"] == "running"
    assert record.samples.schema == SAMPLES_SCHEMA | {"copy_of": pl.String(), "after": pl.String()}
    assert record.measured["value"].to_list() == [0, 0.125, 0, 0.125]
    assert record.blocks == 2


def test_a_finished_record_is_two_files_and_reads_the_same(writer: RecordWriter) -> None:
    writer.write_block("0002", rows(2))
    writer.write_block("0001", rows(1))

    finished = writer.finish()

    assert sorted(p.name for p in finished.path.iterdir()) == ["record.json", "samples.parquet"]
    assert unread("made_up", "abc", []) is None  # nobody waits for it
    again = read_record(finished.path)
    assert again.samples.equals(finished.samples)
    assert again.samples["block"].to_list() == [1, 1, 2, 2]
    assert again.info["status"] == "complete"


def test_a_full_disk_is_one_sentence_and_leaves_earlier_blocks(writer: RecordWriter) -> None:
    writer.write_block("0001", rows(1))
    before = sorted(writer.path.rglob("*"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, limits[1]))
    try:
        with pytest.raises(SpaceError, match="No space left") as error:
            writer.write_block("0002", rows(2, values=5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert "set PGSTUDIES_RECORDS" in str(error.value)
    assert error.value.exit_code == 5
    assert sorted(writer.path.rglob("*")) == before
    assert read_record(writer.path).samples["block"].to_list() == [1, 1]


def test_a_directory_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PGSTUDIES_RECORDS", str(tmp_path / "file"))
    with pytest.raises(SpaceError, match="set PGSTUDIES_RECORDS to a directory that"):
        RecordWriter.create("made_up", {**INFO})


def test_a_dead_run_is_resumed_without_its_half_written_block(writer: RecordWriter) -> None:
    writer.write_block("0001", rows(1))
    writer.info["timeline"] = [entry(1), entry(2)]
    writer.save()
    (writer.path / "blocks" / "0002.parquet").write_bytes(b"not yet in record.json")
    (writer.path / "blocks" / ".0003.tmp").write_bytes(b"half")
    (writer.path / ".0004.tmp").write_bytes(b"half")
    writer.close()  # as the kernel does when a process dies

    resumed = RecordWriter.resume("made_up", "abc")

    assert resumed is not None
    assert resumed.path == writer.path
    assert resumed.finished_blocks == {1}
    assert resumed.info["timeline"] == [entry(1)]
    assert [p.name for p in (writer.path / "blocks").iterdir()] == ["0001.parquet"]
    assert not list(writer.path.glob(".*.tmp"))
    resumed.close()


def test_a_run_of_another_host_is_not_resumed_here(
    writer: RecordWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.interrupt("killed")
    writer.close()
    monkeypatch.setattr("socket.gethostname", lambda: "there")
    assert RecordWriter.resume("made_up", "abc") is None
    monkeypatch.undo()


def test_live_complete_and_different_runs_are_not_continued(writer: RecordWriter) -> None:
    assert is_locked(writer.path / LOCK)
    assert RecordWriter.resume("made_up", "abc") is None
    writer.close()
    assert RecordWriter.resume("made_up", "other") is None
    writer.write_block("0001", rows(1))
    writer.finish()
    assert RecordWriter.resume("made_up", "abc") is None


def test_a_complete_record_is_unread_once_its_process_is_dead_and_until_its_page_is_there(
    writer: RecordWriter,
) -> None:
    writer.write_block("0001", rows(1))
    writer.info["timeline"] = [entry(1)]
    descriptor = writer._lock
    path = writer.finish(to_be_read=True).path
    assert list_records("made_up")["status"].to_list() == ["complete"]
    assert unread("made_up", "abc", [1]) is None  # its process writes the page
    os.close(descriptor)  # as the kernel does when a process dies
    assert unread("made_up", "abc", [1]) == path
    assert unread("made_up", "abc", [1, 2]) is None
    assert unread("made_up", "other", [1]) is None
    mark_read(path)
    assert unread("made_up", "abc", [1]) is None


def test_fingerprint_depends_on_values_and_not_on_their_order() -> None:
    assert fingerprint({"a": 1, "b": [2]}) == fingerprint({"b": [2], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})


def test_list_tells_a_live_run_from_a_dead_one(writer: RecordWriter) -> None:
    def status() -> list[str]:
        return list_records("made_up")["status"].to_list()

    assert status() == ["running"]
    writer.close()
    assert status() == ["unfinished"]
    writer.interrupt("KeyboardInterrupt")
    assert status() == ["interrupted"]


def test_a_run_kept_to_fewer_cores_takes_no_other_runs_place() -> None:
    def found(*cores: int | None) -> list[tuple[Path, Any]]:
        hosts = [{} if n is None else {"allowed_cores": list(range(n))} for n in cores]
        return [(Path(str(number)), {"host": host}) for number, host in enumerate(hosts)]

    assert representative(found(2, 2, 1)) == Path("1")
    assert representative(found(2, 1, 4)) == Path("2")
    assert representative(found(None, None)) == Path("1")
    assert representative([]) is None
    assert [cores_of(info) for _, info in found(3, None)] == [3, None]


def test_a_run_of_another_size_does_not_stand_for_one_of_standard_size() -> None:
    sizes = ["standard", "standard", "published", None]
    found: list[tuple[Path, Any]] = [(Path(str(n)), {"profile": p}) for n, p in enumerate(sizes)]
    assert representative(found) == Path("1")
    assert representative(found[2:]) == Path("3")


def test_find_takes_a_record_or_the_newest_complete_one_below(writer: RecordWriter) -> None:
    writer.write_block("0001", rows(1))
    with pytest.raises(StudyError, match="no complete record of made_up"):
        find_record("made_up", writer.path.parents[1])
    writer.finish()
    assert find_record("made_up", writer.path) == writer.path
    assert find_record("made_up", writer.path.parents[1]) == writer.path
    with pytest.raises(StudyError, match="is a record of made_up, not of other"):
        find_record("other", writer.path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "There is no record at"),
        ("{", "is damaged"),
        (json.dumps({"format_version": 99}), "update pgstudies"),
    ],
)
def test_what_is_not_a_record_says_so(tmp_path: Path, content: str | None, sentence: str) -> None:
    if content is not None:
        (tmp_path / "record.json").write_text(content)
    with pytest.raises(StudyError, match=sentence):
        read_record(tmp_path)


def arm(name: str, **more: Any) -> Any:
    arm = {"name": name, "description": "", "baseline": False, "copy_of": None, "not_run": None}
    return {**arm, **more}


@pytest.fixture
def record(writer: RecordWriter) -> Record:
    """A record of three arms on two servers, of which one setting each was not granted."""
    writer.write_block("0-1", rows(0))
    writer.write_block("0001", rows(1))
    head = read_record(writer.path)
    left_out = {"arm": "heap", "step": "cold", "case": "small", "reason": "no memory limits"}
    info: Any = head.info | {
        "arms": [
            arm("heap", baseline=True),
            arm("heap (again)", copy_of="heap"),
            arm("patched", not_run="there is no compiler"),
        ],
        "left_out": [left_out],
        "server": {
            "version_text": "PostgreSQL 18.6",
            "spec": "embedded",
            "unmet_settings": {"jit": ["off", "on"]},
        },
        "servers": {
            "9.6": {"spec": "9.6", "unmet_settings": {"wal_level": ["minimal", "logical"]}}
        },
        "pinned_to_core": 3,
        "seed": 7,
        "sessions": [{}, {}],
        "git": None,
    }
    return Record(head.path, info, head.samples)


def test_a_record_says_what_was_measured_and_what_was_not(record: Record) -> None:
    assert record.measured["block"].unique().to_list() == [1]
    assert record.summary(rows=10).rows(named=True) == [
        {"record": record.path.name, "server": "PostgreSQL 18.6", "rows": 10, "blocks": 1}
    ]
    assert record.not_run.rows() == [
        ("patched", "all", "", "there is no compiler"),
        ("heap", "cold", "small", "no memory limits"),
    ]
    assert record.reasons == {"patched": "there is no compiler", "heap": "no memory limits"}
    assert record.repeat == "heap (again)"
    alone = Record(record.path, record.info | {"arms": [arm("heap")]}, record.samples)
    assert alone.repeat is None
    assert record.unmet_settings.rows() == [
        ("embedded", "jit", "off", "on"),
        ("9.6", "wal_level", "minimal", "logical"),
    ]


def test_the_facts_of_a_run_are_those_that_are_known(record: Record) -> None:
    assert dict(record.facts.iter_rows()) == {
        "record": record.path.name,
        "server": "PostgreSQL 18.6, embedded",
        "host": socket.gethostname(),
        "pinned to core": "3",
        "seed": "7",
        "sessions": "2",
    }


@pytest.mark.parametrize(
    ("build", "cflags", "words"),
    [
        ("compiled by gcc (GCC) 4.1.2 20080704 (Red Hat 4.1.2-52), 64-bit", None, "gcc 4.1.2"),
        ("compiled by gcc (Ubuntu 7.5.0-3~18.04) 7.5.0, 64-bit", "-O2 -Os -DX", "gcc 7.5.0, -Os"),
        ("compiled by gcc (Debian 12.2.0-14) 12.2.0, 64-bit", "-g -O2", "gcc 12.2.0, -O2"),
        ("compiled by gcc-13 (Homebrew GCC 13.2.0) 13.2.0, 64-bit", "-O3", "gcc 13.2.0, -O3"),
        ("compiled by Apple clang version 15.0.0 (clang-1500.3.9.4), 64-bit", "", "clang 15.0.0"),
        ("compiled by clang version 19.1.7, 64-bit", "-O2", "clang 19.1.7, -O2"),
        ("compiled by gcc-12.2.0, 64-bit", "-g -O2", "gcc 12.2.0, -O2"),  # meson
        ("compiled by clang-16.0.0, 64-bit", "-O3", "clang 16.0.0, -O3"),
        ("compiled by msvc-19.41.34120, 64-bit", None, "msvc 19.41.34120"),
        ("compiled by x86_64-linux-gnu-gcc (Debian 16.2.0-3) 16.2.0, 64-bit", "", "gcc 16.2.0"),
        ("compiled by gcc (GCC) 14.2.1 20250110 (Red Hat 14.2.1-11), 64-bit", "", "gcc 14.2.1"),
        ("compiled by aarch64-unknown-linux-gnu-gcc (GCC) 9.5.0, 64-bit", None, "gcc 9.5.0"),
        ("compiled by gcc (Alpine 13.2.1_git20240309) 13.2.1 20240309, 64-bit", "", "gcc 13.2.1"),
        ("compiled by gcc-4.8 (Ubuntu 4.8.4-2ubuntu1~14.04) 4.8.4, 64-bit", "", "gcc 4.8.4"),
        ("compiled by Debian clang version 14.0.6, 64-bit", "-O2", "clang 14.0.6, -O2"),
        ("compiled by Ubuntu clang version 14.0.0-1ubuntu1.1, 64-bit", "", "clang 14.0.0"),
        ("compiled by clang version 19.1.7 (Fedora 19.1.7-1.fc41), 64-bit", "", "clang 19.1.7"),
        ("compiled by a compiler that nobody knows", "-O2", "-O2"),
        (None, None, None),
    ],
)
def test_what_a_server_was_built_with(build: str, cflags: str, words: str | None) -> None:
    server = {"build": build and f"PostgreSQL 1.2 on x86_64, {build}", "cflags": cflags}
    assert built_with(server) == words


def test_builds_are_told_where_they_differ(record: Record) -> None:
    assert builds_note(record.info) is None
    assert "builds" not in record.facts["fact"]
    gcc = {"build": "PostgreSQL 9.6 on x, compiled by gcc (GCC) 4.4.7, 64-bit", "cflags": "-O2"}
    old = {"spec": "9.6", "version_text": "PostgreSQL 9.6.24", **gcc}
    own = record.info["server"] | gcc
    other = "9.6.24 with gcc 4.4.7, -O2"
    for server, arms, note in (
        (own | {"cflags": "-Os"}, 2, f"builds differ: 18.6 with gcc 4.4.7, -Os; {other}"),
        (own | {"build": None}, 2, f"builds differ: 18.6 with -O2; {other}"),
        (own, 2, None),
        (own | {"cflags": "-Os"}, 1, None),
    ):
        there = [arm("heap"), arm("9.6", server="9.6"), arm("13", not_run="no mvn", server="13")]
        info: Any = record.info | {
            "server": server,
            "servers": {"9.6": old},
            "arms": there[:arms] + there[2:],
        }
        assert builds_note(info) == note
        found = Record(record.path, info, record.samples)
        assert dict(found.facts.rows()).get("builds") == note
        assert found.built_with["13"] is None


def test_a_server_elsewhere_is_not_said_to_run_on_the_clients_host(tmp_path: Path) -> None:
    told = made_up.info("a study", server={"version_text": "PostgreSQL 16.4", "elsewhere": True})
    there = Record(tmp_path, told, pl.DataFrame(schema=SAMPLES_SCHEMA))
    assert there.where.startswith("PostgreSQL 16.4 on another machine (client on db1), 2026-11-21")
    assert dict(there.facts.iter_rows())["client"] == "db1"
    here = replace(there, info=made_up.info("a study"))
    assert here.where == "PostgreSQL 18.6 on db1, 2026-11-21, quick size"
    assert dict(here.facts.iter_rows())["host"] == "db1"


def test_a_release_is_found_in_what_a_server_says_of_itself() -> None:
    assert version_number("PostgreSQL 17.2 on x86_64-pc-linux-gnu") == "17.2"
    assert version_number("PostgreSQL 15.18 (Debian 15.18-0+deb12u1) on x86_64") == "15.18"
    assert [version_number(v) for v in (None, "", " ", "PostgreSQL ")] == ["unknown"] * 4
