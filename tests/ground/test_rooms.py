"""The rooms of the library: each says what it is for, and keeps its helpers to itself."""

from __future__ import annotations

import ast
import importlib
import re
from typing import TYPE_CHECKING

import pytest

from pgstudies.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PACKAGE = ROOT / "lib" / "pgstudies"
ROOMS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
PAGES = [*ROOT.glob("notebooks/*/*.ipynb"), *ROOT.glob("book/*.md"), *ROOT.glob("notebooks/*/*.py")]


def imports(file: Path) -> Iterator[str]:
    """Every module of ours that a file of the library imports from, as ``room.module``."""
    package = list(file.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            above = package[: len(package) - node.level + 1]
            module = [*above, *(node.module.split(".") if node.module else [])]
            yield ".".join(module)
            yield from (".".join([*module, name.name]) for name in node.names)


def helpers_of_others(file: Path) -> set[str]:
    room = file.relative_to(PACKAGE).parts[0]
    return {
        name
        for name in imports(file)
        if any(part.startswith("_") for part in name.split(".")) and name.split(".")[0] != room
    }


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_at_most_a_dozen_modules_and_says_who_may_import_it(room: str) -> None:
    modules = [path.stem for path in (PACKAGE / room).glob("*.py") if path.stem != "__init__"]
    assert len(modules) <= 12
    said = importlib.import_module(f"pgstudies.{room}").__doc__ or ""
    first, _, second = said.strip().partition("\n\n")
    assert first.endswith(".")
    assert "import" in second


@pytest.mark.parametrize("room", ROOMS)
def test_no_module_imports_a_helper_of_another_room(room: str) -> None:
    for file in (PACKAGE / room).glob("*.py"):
        assert helpers_of_others(file) == set(), file


@pytest.mark.parametrize("room", ["", *ROOMS])
def test_every_name_on_a_face_can_be_imported(room: str) -> None:
    module = importlib.import_module(f"pgstudies.{room}".rstrip("."))
    for name in getattr(module, "__all__", []):
        # A module named like a function of its own would stand in the function's place.
        assert not isinstance(getattr(module, name), type(pytest)), name


def test_pages_use_no_helper_of_a_room() -> None:
    for page in PAGES:
        assert not re.search(r"pgstudies\.\w+\._", page.read_text(encoding="utf-8")), page
