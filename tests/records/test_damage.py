"""Damaged records: each is one sentence that names the file, and no other record suffers."""

from __future__ import annotations

import json
import shutil
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgservers.errors import StudyError
from pgservers.paths import REFERENCE_RECORDS
from pgstudies.records.format import FORMAT_VERSION, INFO, SAMPLES, info_text
from pgstudies.records.reading import find_record, list_records, read_record
from pgstudies.records.writing import RecordWriter, write_whole
from tests.made_up import swept_info, swept_record

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("private")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the records of the study ``swept`` are; there are no others."""
    monkeypatch.setattr("pgservers.paths.REFERENCE_RECORDS", tmp_path / "none")
    return tmp_path / "records" / "swept"


def of_format_1(path: Path) -> dict[str, Any]:
    """Rewrite a record.json as the first format had it, and return its contents."""
    info: dict[str, Any] = json.loads((path / INFO).read_text())
    del info["sha256"], info["not_compared"]
    for arm in info["arms"]:
        arm["repeats"] = arm.pop("copy_of")
    info["format_version"] = 1
    (path / INFO).write_text(json.dumps(info))
    return info


def complaint(path: Path) -> str:
    """What reading everything of a record says, which must be one sentence; empty for a success."""
    try:
        record = read_record(path)
    except StudyError as error:
        return str(error)
    _ = record.arms, record.gate, record.not_run, record.timeline, record.blocks
    _ = record.facts, record.unmet_settings, record.summary()
    return ""


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.parametrize("name", [INFO, SAMPLES])
def test_every_flipped_bit_is_noticed(name: str, home: Path) -> None:
    path = swept_record(home, "here")
    whole = read_record(path)
    content = (path / name).read_bytes()
    for bit in range(0, 8 * len(content), 23):
        (path / name).write_bytes(flipped(content, bit))
        said = complaint(path)
        if said:
            assert str(path / name) in said
        else:  # white space between the values of record.json
            assert name == INFO
            assert read_record(path).info == whole.info


def test_a_flipped_bit_in_a_block_is_noticed_and_the_block_measured_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    writer = RecordWriter.create(
        "swept", swept_info(socket.gethostname()) | {"fingerprint": "abc", "status": "running"}
    )
    for block in ("0001", "0002"):
        writer.write_block(block, [])
    writer.close()
    damaged = writer.path / "blocks" / "0002.parquet"
    damaged.write_bytes(flipped(damaged.read_bytes(), 300))
    with pytest.raises(StudyError, match=r"0002\.parquet is damaged: its SHA-256 is not"):
        read_record(writer.path)
    resumed = RecordWriter.resume("swept", "abc")
    assert resumed is not None
    assert resumed.finished_blocks == {1}
    resumed.close()
    assert f"{damaged} is damaged: it is removed, and measured again." in capsys.readouterr().err


def test_records_of_format_1_have_no_checksum_and_are_read(home: Path) -> None:
    path = swept_record(home, "here")
    info = of_format_1(path)
    record = read_record(path)
    assert record.info["sha256"] is None
    assert record.info["format_version"] == FORMAT_VERSION
    assert record.blocks == 6
    # A newer record cannot leave it out.
    (path / INFO).write_text(json.dumps(info | {"format_version": 2, "sha256": None}))
    with pytest.raises(StudyError, match="is damaged: it is not as it was written"):
        read_record(path)


def test_an_older_comparison_is_read_with_its_facts_by_arm(home: Path) -> None:
    path = swept_record(home, "here")
    info = of_format_1(path)
    for arm, side in zip(info["arms"], ("baseline", "candidate"), strict=True):
        arm |= {"name": f"heap, {side}", "plays": "heap", "side": side}
    facts = {"heap": {"candidate": {"assertions": "off"}}}
    (path / INFO).write_text(json.dumps(info | {"comparison": {"facts": facts}}))
    read: dict[str, Any] = {**read_record(path).info}
    assert [(arm["of"], arm["copy_of"]) for arm in read["arms"]] == [("heap", None)] * 2
    assert read["facts"] == {"heap, candidate": {"assertions": "off"}}
    assert read["not_compared"][0] == "first lookup"


def test_the_records_of_the_project_are_read_as_they_are() -> None:
    paths = sorted(path.parent for path in REFERENCE_RECORDS.glob("*/*/record.json"))
    assert paths
    for path in paths:
        record = read_record(path)
        copies = record.samples.drop_nulls("copy_of").select("arm", "copy_of").unique()
        known = record.arms.drop_nulls("copy_of").select("name", "copy_of")
        assert dict(copies.iter_rows()) == dict(known.iter_rows())
        is_measured = record.info["study"] != "history"  # which counts, and each point once
        assert bool(known.height) == is_measured


BAD = {
    "newer": ('{"format_version": 99}', "update pgstudies"),
    "older than any": ('{"format_version": 0}', "is damaged: it has no format_version"),
    "empty": ("", "is damaged: it is not JSON"),
    "torn": ('{"format_version": 2, "st', "is damaged: it is not JSON"),
    "of nothing": ("null", "is damaged: it has no format_version"),
    "without keys": ('{"format_version": 1}', "is damaged: it has no parameters"),
    "nested": ("[" * 100_000, "is damaged: it is not JSON"),
    "undecodable": ('{"format_version": 1, "study": "\\ud800"}', "text that is not Unicode"),
}


@pytest.mark.parametrize("kind", [*BAD, "without samples", "a directory", "of no time"])
def test_a_bad_record_is_skipped_and_said_once(
    kind: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = swept_record(home, "good")
    bad = swept_record(home, "zbad")
    sentence = "cannot be read"
    if kind in BAD:
        content, sentence = BAD[kind]
        (bad / INFO).write_text(content)
    elif kind == "without samples":
        (bad / SAMPLES).unlink()
        sentence = "is damaged: it has no samples.parquet"
    elif kind == "a directory":
        (bad / INFO).unlink()
        (bad / INFO).mkdir()
    else:
        changed = swept_info("zbad") | {"started_at": "2026-13-45T99:00:00Z"}
        (bad / INFO).write_text(info_text(changed, {}))
        sentence = "is damaged: started_at"
    for _ in range(2):
        assert list_records()["path"].to_list() == [str(good)]
        assert find_record("swept", home.parent) == good
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"pgstudies: skipped a record: {bad}")
    assert sentence in said[0]
    assert RecordWriter.resume("swept", "abc") is None  # and does not fail


@pytest.mark.parametrize("value", [3, "x", [1], {"revision": 1}, {"revision": [1, 2]}, True])
@pytest.mark.parametrize("key", ["sessions", "git", "unmet_settings", "nondefault_settings"])
def test_a_key_of_a_wrong_type_is_one_sentence(key: str, value: object, home: Path) -> None:
    info = swept_info("x")
    (info if key in {"sessions", "git"} else info["server"])[key] = value
    write_whole(home / "x", info, read_record(swept_record(home, "here")).samples)
    assert key in complaint(home / "x")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"status": "done"}, "status must be one of complete, interrupted, running"),
        ({"blocks": -1}, "blocks must be a whole number >= 0"),
        ({"timeline": [{"block": 1}]}, "timeline 1 has no position"),
        ({"host": {"allowed_cores": 2}}, "allowed_cores must be a list, and it is a whole number"),
        ({"claims": {"a": 1}}, "claims, a value must be text, and it is a whole number"),
    ],
)
def test_what_a_record_says_is_what_its_type_declares(
    wrong: dict[str, Any], said: str, home: Path
) -> None:
    samples = read_record(swept_record(home, "here")).samples
    write_whole(home / "x", swept_info("x") | wrong, samples)
    assert f"record.json is damaged: {said}; restore it" in complaint(home / "x")


def test_keys_that_are_unknown_stay_in_a_record(home: Path) -> None:
    samples = read_record(swept_record(home, "here")).samples
    info = swept_info("x") | {"of_later": {"a": [1, None]}}
    info["arms"][0]["of_later"] = 1.5
    write_whole(home / "x", info, samples)
    read: dict[str, Any] = dict(read_record(home / "x").info)
    assert read["of_later"] == {"a": [1, None]}
    assert read["arms"][0]["of_later"] == 1.5


def test_a_strangers_record_cannot_name_a_place_of_its_own(home: Path) -> None:
    write_whole(home / "x", swept_info("x") | {"study": "../../etc"}, pl.DataFrame())
    with pytest.raises(StudyError, match="study must be text matching"):
        read_record(home / "x")


def test_a_host_name_that_cannot_be_decoded_is_written_with_question_marks(home: Path) -> None:
    path = swept_record(home, "b\udcffd", name="b")
    assert read_record(path).info["host"]["hostname"] == "b?d"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)
KEYS = sorted(swept_info("").keys() - {"not_compared"})  # which format 1 does not have
TIMES = dict.fromkeys(["started_at", "finished_at"], "2026-11-21T12:00:00+00:00")
ENTRY = {"block": 1, "position": 1, "arm": "one"} | TIMES


@settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_whatever_is_done_to_a_record_it_is_one_sentence_or_a_success(
    home: Path, data: st.DataObject
) -> None:
    shutil.rmtree(home, ignore_errors=True)
    path = swept_record(home, "here", timeline=[ENTRY])
    choose = data.draw
    kind = choose(st.sampled_from(["random", "truncated", "removed", "another type", "deeper"]))
    file = path / choose(st.sampled_from([INFO, SAMPLES]))
    content = file.read_bytes()
    if kind == "random":
        file.write_bytes(choose(st.binary(max_size=200)))
    elif kind == "truncated":
        file.write_bytes(content[: choose(st.integers(0, len(content) - 1))])
    else:  # where no checksum would notice it
        info = of_format_1(path)
        key = choose(st.sampled_from(KEYS))
        if kind == "removed":
            del info[key]
        elif kind == "another type":
            info[key] = choose(VALUES)
        else:
            entry = choose(st.sampled_from([*info["arms"], *info["timeline"]]))
            entry[choose(st.sampled_from(sorted(entry)))] = choose(VALUES)
        (path / INFO).write_text(json.dumps(info))
    said = complaint(path)
    assert not said or str(path) in said
    assert "\n" not in said
    list_records()
    with suppress(StudyError):
        find_record("swept", home.parent)
