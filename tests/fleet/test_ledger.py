"""The ledger: a block is in it whole or not at all, in a directory and in an object store."""

from __future__ import annotations

import io
import os
import zipfile
from typing import TYPE_CHECKING

import polars as pl
import pytest
import s3fs
from moto.server import ThreadedMotoServer

from pgapps.fleet.ledger import Ledger, SweepBlock, packed
from pgservers.errors import StudyError
from pgstudies.records.format import INFO as INFO_FILE
from pgstudies.records.format import SAMPLES as SAMPLES_FILE
from pgstudies.records.format import info_text
from pgstudies.records.samples import SAMPLES_SCHEMA
from tests.made_up import swept_info

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UNIT = SweepBlock("swept", "0123456789ab", "bench1", 7)
SAMPLES = pl.DataFrame(
    [(7, 1, 1, 1, "among others", "one", "", "count", None, "rows", 1.0, "rows", None)],
    schema=SAMPLES_SCHEMA,
    orient="row",
)
INFO = swept_info("hést")
BLOCK = packed(INFO, SAMPLES)


@pytest.fixture(scope="session")
def store() -> Iterator[str]:
    """An object store on this machine; its address."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    _, port = server.get_host_and_port()
    yield f"http://127.0.0.1:{port}"
    server.stop()


@pytest.fixture(params=["directory", "store"])
def ledger(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Ledger:
    if request.param == "directory":
        return Ledger(str(tmp_path / "ledger"))
    return Ledger(bucket(request.getfixturevalue("store"), monkeypatch))


def bucket(store: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket, and the variables by which its clients find it."""
    for name, value in {
        "AWS_ENDPOINT_URL": store,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    name = f"ledger-{os.urandom(4).hex()}"
    s3fs.S3FileSystem().mkdir(name)
    return f"s3://{name}/sweep"


def test_a_block_comes_back_as_it_was_put_and_is_never_changed(ledger: Ledger) -> None:
    assert ledger.done() == set()
    assert UNIT not in ledger
    assert ledger.put(UNIT, BLOCK)
    assert UNIT in ledger
    assert ledger.done() == {UNIT}
    assert not ledger.put(UNIT, packed(INFO | {"study": "another"}, SAMPLES))
    info, samples = ledger.read(UNIT)
    assert INFO.items() <= info.items()
    assert samples.equals(SAMPLES)


def test_what_is_not_a_block_is_not_counted(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path))
    ledger.put(UNIT, BLOCK)
    for name in ("0001.zip.tmp", ".0123.tmp", "notes.txt", "1.zip"):
        (tmp_path / UNIT.path).with_name(name).touch()
    assert ledger.done() == {UNIT}


def test_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    ledger = Ledger(str(tmp_path))
    assert ledger.put(UNIT, BLOCK)
    assert not ledger.put(UNIT, b"another")
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [tmp_path / UNIT.path]


def test_a_flipped_bit_of_a_block_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path))
    ledger.put(UNIT, BLOCK)
    info, samples = ledger.read(UNIT)
    bits = range(0, 8 * len(BLOCK), 23)
    noticed = 0
    for bit in bits:
        damaged = bytearray(BLOCK)
        damaged[bit // 8] ^= 1 << bit % 8
        (tmp_path / UNIT.path).write_bytes(damaged)
        try:
            again, rows = ledger.read(UNIT)
        except StudyError:
            noticed += 1
        else:  # the time of a file in the archive, say
            assert (again, rows.rows()) == (info, samples.rows())
    assert noticed > 0.9 * len(bits)


def test_a_block_without_a_checksum_of_its_samples_is_damaged(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as files:
        files.writestr(INFO_FILE, info_text(INFO, {}))
        files.writestr(SAMPLES_FILE, b"")
    ledger.put(UNIT, buffer.getvalue())
    with pytest.raises(StudyError, match=r"0007\.zip is damaged: its record\.json has no checksum"):
        ledger.read(UNIT)


def test_a_ledger_that_cannot_be_opened_or_listed_is_named(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="unheard-of://a cannot be opened"):
        Ledger("unheard-of://a")
    (tmp_path / "ledger").touch()
    with pytest.raises(StudyError, match=r"/ledger cannot be read \(Not a directory\)"):
        Ledger(str(tmp_path / "ledger")).done()


def test_a_damaged_block_is_named(ledger: Ledger) -> None:
    ledger.put(UNIT, BLOCK[:-9])
    with pytest.raises(StudyError, match=rf"{UNIT.path} is damaged"):
        ledger.read(UNIT)


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        (
            {
                "AWS_ACCESS_KEY_ID": None,
                "AWS_SECRET_ACCESS_KEY": None,
                "AWS_EC2_METADATA_DISABLED": "true",
                "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
                "AWS_CONFIG_FILE": "/dev/null",
            },
            "credentials",
        ),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "connect"),
    ],
)
def test_a_store_that_does_not_let_us_in_or_answer_is_named(
    variables: dict[str, str | None], reason: str, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = bucket(store, monkeypatch)
    for name, value in variables.items():
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(StudyError, match=rf"The ledger s3://.* cannot be read \(.*{reason}"):
        Ledger(url).done()
