"""Dumps and files of others: none leads to another file, none is waited for, none is too long."""

from __future__ import annotations

import os
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from pgapps.workload import loading, schema, statements
from pgapps.workload.loading import Tables
from pgapps.workload.schema import contents, opened
from pgapps.workload.scripts import read_workload
from pgservers.errors import ServerError, StudyError
from pgservers.files import read_text
from pgservers.servers.settings import read_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pgservers.servers.managed import ManagedServer
    from tests.workload.conftest import Loaded

pytestmark = pytest.mark.usefixtures("private")

SECRET = b"1\tthe secret\n"


@pytest.fixture(scope="module")
def dumped(managed: ManagedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump in directory format of a table and a large object."""
    home = tmp_path_factory.mktemp("dumped") / "schema"
    with managed.connect() as connection:
        connection.execute("DROP SCHEMA IF EXISTS held CASCADE")
        connection.execute("CREATE SCHEMA held")
        connection.execute("CREATE TABLE held.t AS SELECT 7 AS i, 'kept'::text AS s")
        connection.execute("SELECT lo_from_bytea(0, 'large')")
    command = [str(managed.binaries.program("pg_dump")), "--format=directory", "--schema=held"]
    command += ["--large-objects", "--compress=none", f"--file={home}"]
    subprocess.run(command, check=True, env=managed.environment())
    return home


@pytest.fixture
def dump(shop: Path, dumped: Path) -> Path:
    """A copy of it in a workload, with a secret beside the workload."""
    (shop / "schema.sql").unlink()
    copy = shop / "schema"
    copy.mkdir()
    for file in dumped.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    (shop.parent / "secret").write_bytes(SECRET)
    return copy


def rows_in(dump: Path) -> Path:
    return next(file for file in dump.glob("*.dat") if file.name[0].isdigit())


def rename(dump: Path, old: str, new: str) -> None:
    """Let the entry of one file name another; in ``toc.dat`` each text has its length before it."""
    before, after = (b"\0" + len(name).to_bytes(4, "little") + name.encode() for name in (old, new))
    text = (dump / "toc.dat").read_bytes()
    assert text.count(before) == 1
    (dump / "toc.dat").write_bytes(text.replace(before, after))


def reach_by_rows(dump: Path) -> None:
    rename(dump, rows_in(dump).name, "../../secret")


def reach_by_large_object(dump: Path, target: Path | None = None) -> str:
    """Write a list of large objects over the dump's or into ``target``; returns the dump's name."""
    (toc,) = dump.glob("blobs*.toc")
    (target or toc).write_text(f"{toc.read_text().split()[0]} ../../secret\n")
    return toc.name


def reach_by_contents_elsewhere(dump: Path) -> None:
    rename(dump, reach_by_large_object(dump, rows_in(dump)), rows_in(dump).name)


def reach_by_contents_above(dump: Path) -> None:
    rename(dump, reach_by_large_object(dump, dump.parent / "more"), "../more")


REACHES = [
    reach_by_rows,
    reach_by_large_object,
    reach_by_contents_elsewhere,
    reach_by_contents_above,
]


def holds_secret(sql: bytes) -> bool:
    return b"the secret" in sql or SECRET.hex().encode() in sql


@pytest.mark.parametrize("reach", REACHES)
def test_no_dump_reaches_a_file_outside_of_it(
    shop: Path, dump: Path, reach: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    reach(dump)
    with pytest.raises(StudyError, match=r"(toc\.dat|\.toc) is not as pg_dump writes it"):
        read_workload(shop)
    with pytest.raises(StudyError, match="make one with --format=custom"), opened(dump):
        pass

    def take(source: Path, target: Path, **_: bool) -> None:
        target.symlink_to(source)

    # Restored in place and unread, the same dump gives the secret away.
    monkeypatch.setattr(schema, "_take_dump", take)
    with opened(dump) as lines:
        assert holds_secret(lines.read())


def test_a_dump_in_directory_format_keeps_its_rows_and_large_objects(
    loaded: Loaded, shop: Path, dump: Path
) -> None:
    with loaded(Tables(read_workload(shop).schema)) as trial:
        assert trial.value("SELECT s FROM held.t WHERE i = 7") == "kept"
        assert trial.value("SELECT lo_get(oid) FROM pg_largeobject_metadata") == b"large"
    assert dump.exists()


@pytest.mark.parametrize("name", ["toc.glo", "toc.dat.gz", "x", "4.dat.sh", "..."])
def test_what_pg_dump_does_not_write_is_no_part_of_a_dump(dump: Path, name: str) -> None:
    (dump / name).write_text("")
    with pytest.raises(StudyError, match="is no file of a dump"):
        contents(dump)


def test_no_link_is_part_of_a_dump(dump: Path) -> None:
    rows = rows_in(dump)
    rows.unlink()
    rows.symlink_to("../../secret")
    with pytest.raises(StudyError, match="is a link: copy the file into the dump"):
        contents(dump)


def test_a_table_of_contents_that_is_cut_off_or_unknown_is_refused(dump: Path) -> None:
    whole = (dump / "toc.dat").read_bytes()
    for size in (*range(40), *range(40, len(whole), 97)):
        (dump / "toc.dat").write_bytes(whole[:size])
        with pytest.raises(StudyError, match="is not as pg_dump writes it"):
            contents(dump)
    (dump / "toc.dat").write_bytes(whole[:6] + b"\x63" + whole[7:])
    with pytest.raises(StudyError, match="or pg_dump is newer than 18"):
        contents(dump)


@pytest.mark.parametrize("kind", ["fifo", "socket", pytest.param("device", marks=pytest.mark.root)])
@pytest.mark.parametrize(
    "name", ["schema.sql", "schema.dump", "one.sql", "settings.conf", "rows.csv", "more.sql"]
)
def test_only_regular_files_are_read_and_the_others_are_told(
    shop: Path, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shop / "schema.sql").write_text(
        "CREATE TABLE t (i int);\n\\copy t from rows.csv\n\\i more.sql\n"
    )
    (shop / "rows.csv").write_text("")
    (shop / "more.sql").write_text("")
    if name == "schema.dump":
        (shop / "schema.sql").unlink()
    (shop / name).unlink(missing_ok=True)
    monkeypatch.chdir(shop)  # the name of a socket is short
    if kind == "fifo":
        os.mkfifo(name)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as at:
            at.bind(name)
    else:
        os.mknod(name, 0o20666, os.makedev(1, 3))
    with pytest.raises(StudyError, match=rf"{name} cannot be read.*: it is no regular file"):
        read_workload(shop)


def test_a_fifo_among_the_rows_of_a_dump_is_told(dump: Path) -> None:
    rows = rows_in(dump)
    rows.unlink()
    os.mkfifo(rows)
    with pytest.raises(StudyError, match=rf"{rows.name} cannot be read: it is no regular file"):
        contents(dump)


def test_a_fifo_in_place_of_settings_is_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "q.sql")
    with pytest.raises(StudyError, match="it is no regular file"):
        read_settings(tmp_path / "q.sql")


def test_no_more_is_read_than_a_limit(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shop / "one.sql").write_text("SELECT 1;" * 1000)
    with pytest.raises(StudyError, match="is too long for a script"):
        read_text(shop / "one.sql", "a script", 100)
    monkeypatch.setattr(statements, "_LONGEST_BYTES", 1 << 20)
    for text in (
        "x" * (1 << 21),
        "SELECT\n" + "1 +\n" * (1 << 19),
        "COPY t FROM stdin;\n" + "x" * (1 << 21),
    ):
        (shop / "schema.sql").write_text(text)
        with pytest.raises(StudyError, match=r"schema\.sql, line \d+: .* may have 1 MB"):
            contents(shop / "schema.sql")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("undefined_object", 'role "x" does not exist'),
        ("invalid_schema_name", 'schema "x" does not exist'),
    ],
)
def test_what_is_missing_is_made_once(
    guarded: ManagedServer, loaded: Loaded, shop: Path, code: str, message: str
) -> None:
    (shop / "schema.sql").write_text(
        f"DO $$ BEGIN RAISE EXCEPTION '{message}' USING errcode = '{code}'; END $$;\n"
    )
    with pytest.raises(StudyError, match=f"line 1, fails .*{message}"):
        loaded(Tables(shop / "schema.sql")).__enter__()
    with guarded.as_superuser() as connection:
        connection.execute("DROP ROLE IF EXISTS x")


@pytest.mark.parametrize(
    ("code", "kind"), [("undefined_object", "role"), ("invalid_schema_name", "schema")]
)
def test_no_more_is_made_than_a_limit(  # noqa: PLR0917  (fixtures and a case)
    guarded: ManagedServer,
    loaded: Loaded,
    shop: Path,
    code: str,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "_MOST_MADE", 5)
    (shop / "schema.sql").write_text(
        "DO $$ BEGIN RAISE EXCEPTION '%', "
        f"format('{kind} \"%s\" does not exist', 'z' || clock_timestamp()) "
        f"USING errcode = '{code}'; END $$;\n"
    )
    with pytest.raises(StudyError, match="lacks more than 5 roles and"):
        loaded(Tables(shop / "schema.sql")).__enter__()
    with guarded.as_superuser() as connection:
        made = connection.execute("SELECT rolname FROM pg_roles WHERE rolname LIKE 'z%'").fetchall()
        assert len(made) == (5 if kind == "role" else 0)
        for (name,) in made:
            connection.execute(f'DROP ROLE "{name}"')


def test_a_load_that_does_not_end_is_given_up(
    guarded: ManagedServer, loaded: Loaded, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_LONGEST_S", 1.0)
    (shop / "schema.sql").write_text(
        "DO $$ BEGIN LOOP BEGIN PERFORM pg_sleep(60);"
        " EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP; END $$;\n"
    )
    with pytest.raises(ServerError, match="was given up after 1 s"):
        loaded(Tables(shop / "schema.sql")).__enter__()
    guarded.restore("empty", lambda: None)


OF_TRIPS = """--
-- PostgreSQL database dump
--
CREATE DATABASE trips;
\\connect trips
CREATE SCHEMA trip;
CREATE TABLE trip.rides (i int);
ALTER DATABASE trips SET search_path = trip, public;
ALTER DATABASE trips SET session_preload_libraries = 'nothing';
ALTER DATABASE trips SET TABLESPACE other;
--
-- PostgreSQL database dump complete
--
"""


def test_the_settings_of_a_dumps_database_hold_for_the_role(
    loaded: Loaded, shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (shop / "schema.sql").write_text(OF_TRIPS)
    tables = Tables(shop / "schema.sql")
    with loaded(tables) as trial, trial.server.connect() as later:
        assert later.execute("SHOW search_path").fetchone() == ("trip, public",)
        assert later.execute("SELECT count(*) FROM rides").fetchone() == (0,)
    said = capsys.readouterr().err
    assert "SET session_preload_libraries = 'nothing' (permission denied" in said
    assert "SET TABLESPACE other (the workload has a database of its own)" in said
