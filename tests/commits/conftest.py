"""A small repository: its "server" is a file with a number, which building a commit installs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Self

import polars as pl
import pytest

from pgapps.builds.builder import Builder
from pgapps.builds.repository import Repository
from pgservers.errors import CannotRun

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pgapps.counting.units import Unit

CONFIGURE = """#!/bin/sh
source=$(dirname "$0")
cat > Makefile <<END
all:
	@echo "checking whether cc supports -Werror=vla... yes"
	@test -f $source/cost || (echo "main.c:1:2: error: no cost"; echo stopped; exit 1)
	(echo "#!/bin/sh"; echo "echo 'postgres (PostgreSQL) 18.6'; exit"; cat $source/cost) > program
install:
	mkdir -p \\$(prefix)/bin
	cp program \\$(prefix)/bin/postgres
	chmod 755 \\$(prefix)/bin/postgres
END
"""


def git(directory: Path, *arguments: str) -> str:
    identity = {f"GIT_{who}_{what}": "someone@example.org" for who in ("AUTHOR", "COMMITTER")
                for what in ("NAME", "EMAIL")}  # fmt: skip
    done = subprocess.run(
        ["git", "-C", str(directory), *arguments],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | identity,
    )
    return done.stdout


def commit(place: Path, message: str = "Changed", files: Mapping[str, str] = {}) -> None:
    """Write these files and commit all that has changed."""
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    git(place, "add", "--all")
    git(place, "commit", "--quiet", "--message", message)


def build(repository: Repository, name: str = "HEAD") -> Path:
    with repository.held():
        return Builder(repository).build(repository.commit(name).sha)


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Repository]:
    """A repository with a commit for each of some costs; None does not build."""
    monkeypatch.setenv("PGSTUDIES_CACHE", str(tmp_path / "cache"))

    def make(costs: Sequence[float | None]) -> Repository:
        place = tmp_path / "project"
        place.mkdir()
        git(place, "init", "--quiet")
        (place / "configure").write_text(CONFIGURE)
        (place / "configure").chmod(0o755)
        for number, cost in enumerate(costs):
            (place / "cost").unlink(missing_ok=True)
            files = {"cost": str(cost)} if cost is not None else {}
            commit(place, f"Commit {number}", {"number": str(number), **files})
            git(place, "tag", f"v{number}")
        return Repository(place)

    return make


def cost_of(place: Path) -> float:
    """The number that the "server" of a build is."""
    return float((place / "bin" / "postgres").read_text().splitlines()[-1])


class Scripted:
    """A counter of a server that is a file with a number; none is what it cannot do."""

    version_text = "PostgreSQL 18.6"

    def __init__(self, server: str, **_: object) -> None:
        self._server = Path(server)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def stop(self) -> None:
        pass

    def count(self, unit: Unit, *, twice: bool) -> pl.DataFrame:
        assert not twice
        cost = cost_of(self._server)
        if cost < 0 or unit.extension:
            raise CannotRun("crashed" if cost < 0 else "no extension")
        rows = [("", cost, 0.0), ("_bt_compare", cost, cost - 60), ("scan", 60.0, 60.0)]
        found = pl.DataFrame(rows, schema=["function", "inclusive", "own"], orient="row")
        return found.with_columns(again=pl.lit(None, pl.Float64()), share=pl.col("own") / cost)
