"""The rooms of the packages: small, each with a sentence on what it is for."""

from __future__ import annotations

import importlib
import re

import pytest

import pgstudies
from pgservers.paths import ROOT

LIB = ROOT / "lib"
ROOMS = sorted(
    ".".join(path.parent.relative_to(LIB).parts) for path in LIB.glob("pg*/*/**/__init__.py")
)
PAGES = [*ROOT.glob("notebooks/*/*.ipynb"), *ROOT.glob("book/*.md"), *ROOT.glob("notebooks/*/*.py")]
MOST_LINES = 8_860
"""Of the library that notebooks share, docstrings included."""


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_at_most_a_dozen_modules_and_says_what_it_is_for(room: str) -> None:
    directory = LIB.joinpath(*room.split("."))
    assert len([path for path in directory.glob("*.py") if path.stem != "__init__"]) <= 12
    first, _, _ = (importlib.import_module(room).__doc__ or "").strip().partition("\n\n")
    assert first.endswith(".")


def test_the_library_that_notebooks_share_stays_small() -> None:
    sizes: dict[str, int] = {}
    package = LIB / "pgstudies"
    for file in [*package.rglob("*.py"), *package.rglob("*.pyi")]:
        room = file.relative_to(package).parts[0]
        sizes[room] = sizes.get(room, 0) + len(file.read_text(encoding="utf-8").splitlines())
    largest = sorted(sizes.items(), key=lambda entry: -entry[1])[:5]
    assert sum(sizes.values()) <= MOST_LINES, f"the largest rooms: {dict(largest)}"


def test_every_name_of_the_library_can_be_imported() -> None:
    for name in dir(pgstudies):
        # A module named like a function of its own would stand in the function's place.
        assert not isinstance(getattr(pgstudies, name), type(pytest)), name


def test_pages_use_no_helper_of_a_room() -> None:
    for page in PAGES:
        assert not re.search(r"pg\w+\.\w+\._", page.read_text(encoding="utf-8")), page
