"""What old trees need is read from the trees, and only where they need it."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pgapps.builds.builder import Builder
from pgapps.builds.eras import flags_for, flex_for, parts_of, require_tools
from pgapps.builds.served import NO_REPOSITORY, on_commits
from pgservers.errors import ServerError, StudyError
from pgservers.programs.cached import finish
from pgservers.programs.installations import find_binaries
from pgservers.servers.serve import require_server, serve
from pgstudies.measuring.arms import Arm
from tests.commits.conftest import commit, git
from tests.counting.test_points import programs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pgapps.builds.repository import Repository

GRAMMAR = "src/backend/parser/gram.y"
OLD = {"configure": "no flags at all\n", GRAMMAR: '#include "scan.c"\n', "src/Makefile": "all:\n"}
NEW = {
    "configure": "-fwrapv -fno-aggressive-loop-optimizations\n",
    GRAMMAR: "%%\n",
    "src/Makefile": "SUBDIRS = backend\n",
}


def committed(repository: Repository, files: dict[str, str]) -> str:
    commit(repository.source, files=files)
    return repository.commit("HEAD").sha


def test_one_commit_that_needs_flags_gives_them_to_all(history: Callable[..., Repository]) -> None:
    repository = history([1])
    old, new = (committed(repository, files) for files in (OLD, NEW))
    both = ("-fno-aggressive-loop-optimizations", "-fwrapv")
    assert flags_for(repository, [new]) == ()
    assert flags_for(repository, [old]) == flags_for(repository, [new, old]) == both
    assert flags_for(repository, ["v0"]) == (), "no tree of PostgreSQL"
    plain, alike = Builder(repository, ends=[new]), Builder(repository, ends=[old, new])
    assert plain.how == Builder(repository).how
    assert alike.how.endswith("-O2 -fno-aggressive-loop-optimizations -fwrapv")
    assert plain._digest == Builder(repository)._digest != alike._digest
    marked = OLD | {"src/include/catalog/genbki.h": "#define CATALOG_VARLEN\n"}
    assert flags_for(repository, [committed(repository, marked)]) == ("-fwrapv",)


def test_parts_are_made_one_by_one_where_the_makefile_has_no_list(tmp_path: Path) -> None:
    assert parts_of(tmp_path) == []
    for part in ("port", "backend", "bin/initdb", "bin/psql", "interfaces/ecpg"):
        (tmp_path / "src" / part).mkdir(parents=True)
    (tmp_path / "src" / "Makefile").write_text(OLD["src/Makefile"])
    assert parts_of(tmp_path) == ["port", "backend", "bin/initdb"]
    (tmp_path / "src" / "Makefile").write_text(NEW["src/Makefile"])
    assert parts_of(tmp_path) == []


@pytest.mark.skipif(shutil.which("flex") is None, reason="there is no flex")
def test_a_scanner_that_is_included_forgets_what_bison_calls_it(tmp_path: Path) -> None:
    (tmp_path / "src" / "backend" / "parser").mkdir(parents=True)
    assert flex_for(tmp_path, tmp_path) == []
    (tmp_path / GRAMMAR).write_text(NEW[GRAMMAR])
    assert flex_for(tmp_path, tmp_path) == [f"FLEX={shutil.which('flex')}"]
    (tmp_path / GRAMMAR).write_text(OLD[GRAMMAR])
    (word,) = flex_for(tmp_path, tmp_path)
    scanner = tmp_path / "scan.l"
    scanner.write_text("%option noyywrap\n%%\na ;\n%%\n")
    flex = [word.removeprefix("FLEX="), "-CF"]
    subprocess.run([*flex, f"-o{tmp_path}/scan.c", scanner], check=True)
    told = subprocess.run([*flex, "-t", scanner], check=True, capture_output=True, text=True)
    for text in ((tmp_path / "scan.c").read_text(), told.stdout):
        first, *rest = text.splitlines()
        assert first == "#undef yylex"
        assert any("yylex" in line for line in rest)
    assert not (tmp_path / "scan.c.new").exists()
    scanner.write_text("%%\n{")
    assert subprocess.run([*flex, f"-o{tmp_path}/x.c", scanner], check=False).returncode != 0


def test_a_missing_tool_is_told_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    require_tools(tmp_path)  # no tree of PostgreSQL
    (tmp_path / "src" / "backend" / "parser").mkdir(parents=True)
    (tmp_path / GRAMMAR).touch()
    with pytest.raises(StudyError, match=r"needs make, bison, flex, perl, .* dnf install make bi"):
        require_tools(tmp_path)


def test_a_commit_is_served_by_what_was_built_of_it(
    history: Callable[..., Repository], tmp_path: Path
) -> None:
    repository = history([1, None])
    good, bad = (repository.commit(tag).sha for tag in ("v0", "v1"))
    word, own = f"commit-{good[:10]}", Arm("own")
    assert on_commits("", [(own, good)]) == [replace(own, server=word, not_run=NO_REPOSITORY)]
    with pytest.raises(ServerError, match=f"no build of the commit {good[:10]} .* servers build"):
        require_server(word)
    assert on_commits(str(repository.source), [(own, good)]) == [replace(own, server=word)]
    (failed, _) = on_commits(str(repository.source), [(own, bad), (own, good)])
    assert failed.not_run is not None
    assert "it does not build: main.c:1:2: error: no cost" in failed.not_run
    with pytest.raises(StudyError, match="has no commit 'ffffffffff'"):
        on_commits(str(repository.source), [(own, "ffffffffff")])
    with pytest.raises(StudyError):
        on_commits(str(tmp_path / "nothing"), [(own, good)])
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{repository.source}", "shallow")
    with pytest.raises(StudyError, match=rf"has no commit '{good}'; it is a shallow clone: git"):
        on_commits(str(tmp_path / "shallow"), [(own, good)])


def test_a_server_is_named_by_its_commit_and_has_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSTUDIES_CACHE", str(tmp_path / "cache"))
    sha = "0123456789abcdef"
    place = tmp_path / "cache" / "commits" / "of" / "builds" / f"{sha}-01234567"
    finish(programs(place, "9.4devel"))
    word = f"commit-{sha[:10]}"
    binaries = find_binaries(word)
    assert (binaries.bindir, binaries.source) == (place / "bin", f"commit {sha[:10]}")
    assert binaries.version == 90399
    require_server(word)
    with (place / "bin" / "postgres").open("ab") as file:
        file.write(b"more")
    with pytest.raises(ServerError, match="have changed since they were stored"):
        serve(word)
