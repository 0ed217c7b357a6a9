"""What a build keeps so that its backend can be relinked when the trees are gone."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from pgapps.builds.builder import _objects, built, commit_of
from pgapps.compare.command import _merge_base, commands
from pgservers.errors import StudyError
from pgservers.programs.installations import Binaries
from pgservers.programs.relinking import can_relink, relinked
from tests.commits.conftest import build, commit, cost_of, git

if TYPE_CHECKING:
    from collections.abc import Callable

    from typer.testing import Result

    from pgapps.builds.repository import Repository
    from pgapps.compare.request import Request

CONFIGURE = """#!/bin/sh
source=$(cd "$(dirname "$0")" && pwd)
mkdir -p src/backend src/port
cat > Makefile <<END
all:
	\\$(MAKE) -C src/backend postgres
install:
	mkdir -p \\$(prefix)/bin
	cp src/backend/postgres \\$(prefix)/bin/postgres
END
cat > src/backend/Makefile <<END
OBJS = main.o helper.o ../../src/port/libpgport_srv.a
postgres: \\$(OBJS)
	cc -L../port \\$(OBJS) -o postgres
%.o:
	cc -c $source/\\$(notdir \\$*).c -o \\$@
../../src/port/libpgport_srv.a: ../port/port.o
	ar crs \\$@ ../port/port.o
END
"""

WHOLE = """#!/bin/sh
mkdir -p src/interfaces/libpq config
cat > src/Makefile <<END
PARTS = common interfaces test/regress test/isolation test/perl
all: \\$(PARTS:%=all-%-recurse)
install: \\$(PARTS:%=install-%-recurse)
all-common-recurse:
	touch done
install-common-recurse:
	test -f done
	mkdir -p \\$(prefix)/bin
	printf '#!/bin/sh\\necho "postgres (PostgreSQL) 18.6"\\n' > \\$(prefix)/bin/postgres
	chmod 755 \\$(prefix)/bin/postgres
\\$(foreach goal,all install,\\$(patsubst %,\\$(goal)-%-recurse,\\$(filter-out common,\\$(PARTS)))):
	@echo "error: \\$@ was not to be built"; exit 1
END
printf "install:\\n\\ttouch \\$(prefix)/libpq\\n" > src/interfaces/libpq/Makefile
printf "install:\\n\\ttouch \\$(prefix)/config\\n" > config/Makefile
"""
"""Of the parts that a real tree has, those make stop that no server needs."""

SOURCES = {
    "main.c": '#include <stdio.h>\nint main() { return puts("postgres (PostgreSQL) 18.6") < 0; }',
    "helper.c": "int helper(void) { return 1; }",
    "port.c": "int port(void) { return 2; }",
}


def binaries_of(place: Path) -> Binaries:
    return Binaries(place / "bin", 180006, "PostgreSQL 18.6", "made up")


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_build_is_linked_anew_when_its_trees_are_gone(
    history: Callable[..., Repository], tmp_path: Path
) -> None:
    repository = history([1])
    commit(repository.source, files={"configure": CONFIGURE, **SOURCES})
    binaries = binaries_of(build(repository))
    shutil.rmtree(repository.clone)
    shutil.rmtree(repository.source)
    assert not (repository.place / "build").exists()
    kept = sorted(path.name[5:] for path in (binaries.bindir.parent / "relink").glob("*.[ao]"))
    assert kept == ["helper.o", "libpgport_srv.a", "main.o"]
    assert can_relink(binaries)
    digests = {relinked(binaries, seed, tmp_path / "postgres") for seed in range(8)}
    assert len(digests) > 1
    said = subprocess.run([tmp_path / "postgres"], check=True, capture_output=True, text=True)
    assert said.stdout == "postgres (PostgreSQL) 18.6\n"


def test_what_is_built_takes_no_lock(history: Callable[..., Repository]) -> None:
    repository = history([1])
    commits = [repository.commit("v0")]
    places = built(repository, commits, ())
    with repository.held():
        assert built(repository, commits, ()) == places
        with pytest.raises(StudyError, match="Another command builds"):
            built(repository, commits, ["--other"])


def test_programs_of_tests_and_ecpg_are_not_built(history: Callable[..., Repository]) -> None:
    repository = history([1])
    files = {"configure": WHOLE, "src/interfaces/libpq/exports.txt": ""}
    commit(repository.source, files=files)
    installed = {path.name for path in build(repository).glob("*")}
    assert installed == {"bin", "config", "finished.json", "libpq", "subject"}


def test_what_configure_compiles_for_a_moment_is_no_part_of_the_build(tmp_path: Path) -> None:
    assert _objects(tmp_path) == 0
    for name in ("conf1234.dir/conftest.o", "src/main.c", "src/main.o", "src/backend/postgres.o"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert _objects(tmp_path) == 2


def test_a_build_whose_link_is_not_found_is_kept_and_not_linked_anew(
    history: Callable[..., Repository],
) -> None:
    place = build(history([1]))
    assert not (place / "relink").exists()
    assert not can_relink(binaries_of(place))


def test_both_sides_of_a_comparison_are_built_alike_from_a_repository(
    history: Callable[..., Repository], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Request] = []
    source = str(history([1, 2]).source)
    (tmp_path / "my.conf").write_text("work_mem = 64MB\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pgservers.servers.serve.require_server", lambda _: None)

    def compared(request: Request, **_: object) -> None:
        asked.append(request)
        raise StudyError("enough")

    monkeypatch.setattr("pgapps.compare.run.compared", compared)

    def compare(*words: str) -> Result:
        return CliRunner().invoke(commands, ["compare", "--study", "hash_index", *words])

    done = compare("--repo", source, "--baseline", "v0", "--candidate", "v1+my.conf")
    assert "enough" in done.output
    sides = (asked[0].baseline, asked[0].candidate)
    places = [Path(side.server) for side in sides]
    assert f"v0 is built in {places[0]}.\nv1 is built in {places[1]}.\n" in done.output
    assert list(map(cost_of, places)) == [1, 2]
    shas = [git(Path(source), "rev-parse", name)[:10] for name in ("v0", "v1")]
    assert [commit_of(side.server) for side in sides] == shas
    assert places[0].name.partition("-")[2] == places[1].name.partition("-")[2]
    assert asked[0].candidate.settings == {"work_mem": "64MB"}
    for words, said in (
        (["--repo", source, "--candidate", "v1"], "name a --baseline"),
        (["--repo", source, "--baseline", "v0", "--candidate", "v9"], "has no commit 'v9'"),
    ):
        failed = compare(*words)
        assert failed.exit_code == 3
        assert said in failed.output


def test_a_remotes_branch_is_known_by_its_name_alone(history: Callable[..., Repository]) -> None:
    repository = history([1.0, 2.0])
    git(repository.source, "update-ref", "refs/remotes/origin/theirs", "v0")
    assert repository.commit("theirs") == repository.commit("v0")
    git(repository.source, "update-ref", "refs/remotes/other/theirs", "v1")
    with pytest.raises(StudyError, match="has no commit 'theirs'"):
        repository.commit("theirs")


def test_without_a_baseline_a_patch_is_compared_with_where_it_branched_off(
    history: Callable[..., Repository], capsys: pytest.CaptureFixture[str]
) -> None:
    repository = history([1.0, 2.0])
    git(repository.source, "checkout", "--quiet", "-B", "main", "v1")
    git(repository.source, "checkout", "--quiet", "-b", "patch", "v0")
    commit(repository.source, files={"cost": "3.0"})
    assert _merge_base(repository, "patch") == repository.commit("v0").sha
    head = repository.commit("patch").sha
    assert repository.uncommitted(head) == []
    (repository.source / "cost").write_text("4.0")
    (repository.source / "number").write_text("5")
    git(repository.source, "add", "number")
    assert repository.uncommitted(head) == ["cost", "number"]
    assert repository.uncommitted(repository.commit("v0").sha) == []
    assert "Baseline: where patch left m" in capsys.readouterr().out
    with pytest.raises(StudyError, match="has all of v0: name a --baseline"):
        _merge_base(repository, "v0")
