"""What is installed from a wheel works without the checkout, and writes nothing beside itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from pgservers.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of packages with ours as a wheel has it, in which nothing can be changed."""
    place = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "wheel"]
    command += ["--no-deps", "--no-build-isolation", f"--wheel-dir={place}", str(ROOT)]
    subprocess.run(command, check=True)
    (wheel,) = place.glob("*.whl")
    packages = place / "packages"
    zipfile.ZipFile(wheel).extractall(packages)
    for path in [packages, *packages.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222)
    return packages


def run(installed: Path, place: Path, *words: str) -> str:
    return python(installed, place, "-m", "pgapps", *words)


def python(installed: Path, place: Path, *words: str) -> str:
    # Before what is installed editable, which python -P finds as well.
    environment = os.environ | {
        "PYTHONPATH": str(installed),
        "PGSTUDIES_RECORDS": str(place / "records"),
    }
    done = subprocess.run(
        [sys.executable, *words],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_wheel_has_what_the_commands_need_and_no_output(installed: Path) -> None:
    ours = installed / "pgservers" / "checkout"
    assert sorted(path.name for path in ours.iterdir()) == [
        "CITATION.cff", "_config.yml", "_toc.yml", "book", "data", "lib", "notebooks",
    ]  # fmt: skip
    names = {str(path.relative_to(ours)) for path in ours.rglob("*")}
    assert not any(name.startswith("book/studies") or "__pycache__" in name for name in names)
    assert {"notebooks/workload/example/schema.sql", "lib/extensions/tidbench/Makefile"} <= names


def test_a_wheel_has_all_that_git_has(installed: Path) -> None:
    ours = ["lib", "notebooks", "book", "data"]
    listed = subprocess.run(
        ["git", "ls-files", "-z", *ours, ":!book/bench", ":!data/update_releases.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    kept = [name for name in listed.stdout.split("\0")[:-1] if (ROOT / name).is_file()]
    assert len(kept) > 400
    has = {str(path.relative_to(installed)) for path in installed.rglob("*")}
    wanted = (re.sub("^lib/(?=pg)", "", name) for name in kept)
    inside = "pgservers/checkout"
    assert [name for name in wanted if not {name, f"{inside}/{name}"} & has] == []


def test_what_is_written_lies_where_it_is_started(installed: Path, tmp_path: Path) -> None:
    asks = "from pgservers.paths import BUILD, STUDIES; print(BUILD, STUDIES)"
    build = tmp_path / "_build"
    assert python(installed, tmp_path, "-c", asks) == f"{build} {build}/site/book/studies\n"


@pytest.mark.thorough
def test_it_measures_and_writes_only_where_it_is_started(installed: Path, tmp_path: Path) -> None:
    assert "hash_index" in run(installed, tmp_path, "studies")
    assert "82 claims" in run(installed, tmp_path, "scorecard")
    run(installed, tmp_path, "new-workload", "shop")
    (tmp_path / "shop" / "more.sql").write_text("SELECT 1;\n")
    run(installed, tmp_path, "run", "cluster_order", "--profile", "smallest")
    assert (tmp_path / "_build/site/book/studies/cluster_order.ipynb").is_file()
