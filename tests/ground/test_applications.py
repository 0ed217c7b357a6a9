"""Applications: each can be removed, its directory and its line, and the rest works as before."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest

from pgservers.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS = {
    "commits": {"bisect", "history", "gate"},
    "fleet": {"sweep", "worker", "scheduler", "hosts"},
    "plans": {"plans"},
}
PAGES = {"commits": {"commits", "history"}, "fleet": {"hosts"}, "plans": {"plans"}}
IMPORT_ALL = """
import importlib, pkgutil
for package in map(importlib.import_module, ("pgservers", "pgstudies", "pgapps")):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
print(importlib.import_module("pgapps").__path__[0])
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    kept = shutil.ignore_patterns("__pycache__", ".*", "_build")
    for name in ("lib", "notebooks", "tests", "book/bench"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=kept)
    (tmp_path / "data").symlink_to(ROOT / "data")
    described = ("pyproject.toml", "constraints.txt", "README.md", "CITATION.cff")
    for name in (*described, "_toc.yml", "_config.yml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def run(copy: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": f"{copy / 'lib'}:{copy}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def remove(copy: Path, application: str) -> None:
    """Remove an application, its lines and its tests, and install what is left into ``lib``."""
    shutil.rmtree(copy / "lib" / "pgapps" / application)
    shutil.rmtree(copy / "tests" / application)
    file = copy / "pyproject.toml"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    lines = [line for line in lines if not line.startswith(f"{application} = ")]
    file.write_text("".join(lines), encoding="utf-8")
    points = tomllib.loads("".join(lines))["project"]["entry-points"]
    about = copy / "lib" / "pgstudies-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: pgstudies\nVersion: 0\n")
    sections = (
        "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in points[group].items())])
        for group in points
    )
    (about / "entry_points.txt").write_text("\n".join(sections))


@pytest.mark.thorough
@pytest.mark.parametrize("application", COMMANDS)
def test_an_application_leaves_nothing_behind_that_needs_it(copy: Path, application: str) -> None:
    before = run(copy, "-m", "pgapps", "--help")
    remove(copy, application)
    after = run(copy, "-m", "pgapps", "--help")
    gone = {line for line in before.splitlines() if line not in after.splitlines()}
    assert {re.split(r"\s+", line.strip())[0] for line in gone} == COMMANDS[application]
    assert run(copy, "-c", IMPORT_ALL).strip() == str(copy / "lib" / "pgapps")
    run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", "tests")
    run(copy, "-c", "from importlinter.cli import lint_imports_command as main; main()")


@pytest.mark.parametrize("application", COMMANDS)
def test_nothing_but_itself_imports_an_application(application: str) -> None:
    """Nor does a function, which the test above does not call."""
    needed = re.compile(
        rf"\b(pgapps\.|from \.\.){application}\b|\bfrom (pgapps|\.\.) import\b.*\b{application}\b"
    )
    own = [ROOT / "lib" / "pgapps" / application, ROOT / "tests" / application]
    files = [p for name in ("lib", "tests", "notebooks") for p in (ROOT / name).rglob("*.*")]
    files = [p for p in files if p.suffix in {".py", ".ipynb"} and not {*p.parents} & {*own}]
    assert len(files) > 300
    assert [path for path in files if needed.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("application", PAGES)
def test_no_other_page_links_to_those_of_an_application(application: str) -> None:
    for page in [*ROOT.glob("book/*.md"), *ROOT.glob("notebooks/*/*.ipynb")]:
        links = set(re.findall(r"\]\((?:\.\./)*(\w+)\.md", page.read_text(encoding="utf-8")))
        assert page.stem in PAGES[application] or not links & PAGES[application], page
