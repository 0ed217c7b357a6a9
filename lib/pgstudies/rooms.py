"""Rooms: one directory for each study, which holds everything of that study.

``<study>/<study>.ipynb`` is the notebook and ``sizes.toml`` says what kind of page it is, with the
parameters of its larger runs.  Where the study has them, ``claims.toml`` has the post's claims,
``published.toml`` and CSV files its numbers, ``units.toml`` the work whose instructions are
counted, and Python modules the arms and the reading of its records.
"""

from __future__ import annotations

import dis
import hashlib
import importlib.util
import json
import os
import re
import sys
import tomllib
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import yaml

from pgservers import paths
from pgservers.errors import StudyError
from pgservers.terminal import JUPYTER_SESSION, say

from .checking import checked
from .run_options import RunOptions

if TYPE_CHECKING:
    from pathlib import Path

Kind = Literal["study", "check", "counts", "workload", "summary"]
"""A *study* reruns a post.  A *check* tests the measuring, *counts* are instructions, the same on
every machine, and a *workload* is queries of the reader's own: all three run as studies do and
rerun no post.  A *summary* measures nothing: it draws together what the others have found."""

TEMPLATE = "_template"
"""The room that ``new-study`` copies."""


class Sizes(TypedDict, total=False):
    """The keys of ``sizes.toml``; its tables are the parameters of the other sizes."""

    kind: Kind
    title: str
    post: str
    since: str
    compare: list[str]
    free: list[str]
    quick: dict[str, Any]
    smallest: dict[str, Any]
    standard: dict[str, Any]
    published: dict[str, Any]


@dataclass(frozen=True)
class Room:
    """The directory of a study; raises StudyError for a file that cannot be read."""

    directory: Path

    @property
    def name(self) -> str:
        """The study's name."""
        return self.directory.name

    @property
    def notebook(self) -> Path:
        """The source notebook, without outputs."""
        return self.directory / f"{self.name}.ipynb"

    @property
    def modules(self) -> list[Path]:
        """The Python modules beside the notebook."""
        return sorted(self.directory.glob("*.py"))

    @property
    def _cells(self) -> list[tuple[str, str]]:
        """The type and the source of each cell of the notebook."""
        cells = json.loads(self.notebook.read_text(encoding="utf-8"))["cells"]
        return [(cell["cell_type"], "".join(cell["source"])) for cell in cells]

    @property
    def code(self) -> list[str]:
        """The code of the notebook's cells, and of the modules beside it."""
        own = [source for kind, source in self._cells if kind == "code"]
        return own + [module.read_text(encoding="utf-8") for module in self.modules]

    @property
    def headings(self) -> dict[str, str]:
        """For every global, the heading above the last cell that sets it."""
        found: dict[str, str] = {}
        heading = ""
        for kind, source in self._cells:
            if kind == "markdown":
                heading = (re.findall(r"^#+ +(.+)", source, re.MULTILINE) or [heading])[-1]
            elif kind == "code":
                with suppress(SyntaxError):  # of a magic command
                    steps = dis.get_instructions(compile(source, "<cell>", "exec"))
                    names = (step.argval for step in steps if step.opname == "STORE_NAME")
                    found |= dict.fromkeys(names, heading)
        return found

    @property
    def mark(self) -> str:
        """A digest of what judges besides the claims: conditions, margins, the post's numbers."""
        digest = hashlib.sha256(json.dumps(self.code).encode())
        for file in sorted(self.directory.glob("*.csv")):
            digest.update(file.read_bytes())
        return digest.hexdigest()[:16]

    def read(self, file: str) -> dict[str, Any]:
        """The contents of a TOML file of the room; empty if there is none."""
        try:
            return deepcopy(_toml((self.directory / file).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise StudyError(f"{self.directory / file} cannot be read: {error}.") from None

    @cached_property
    def about(self) -> dict[str, Any]:
        """The contents of ``sizes.toml``."""
        found = self.read("sizes.toml")
        checked(found, Sizes, str(self.directory / "sizes.toml"))
        return found

    @property
    def kind(self) -> Kind:
        """What kind of page it is."""
        kind: Kind = self.about.get("kind", "study")
        return kind


# A page reads them hundreds of times.
_toml = lru_cache(maxsize=256)(tomllib.loads)


def rooms(*kinds: Kind) -> dict[str, Room]:
    """The rooms of these kinds (or all) by study, in the book's order, then others by name.

    A room in the user's own directory replaces one of the same name in the checkout.
    """
    found: dict[str, Room] = {}
    for directory in paths.NOTEBOOKS:
        for notebook in sorted(directory.glob("[!._]*/*.ipynb")):
            if notebook.stem == notebook.parent.name:
                found.setdefault(notebook.stem, Room(notebook.parent))
    order = {name: place for place, name in enumerate(in_contents(contents()))}
    names = sorted(found, key=lambda name: (order.get(name, len(order)), name))
    return {name: found[name] for name in names if not kinds or found[name].kind in kinds}


def find_room(study: str) -> Room:
    """The room of a study or of the template.  Raises StudyError if there is none."""
    known = rooms()
    if study in known:
        return known[study]
    room = next((Room(d / study) for d in paths.NOTEBOOKS if (d / study).is_dir()), None)
    if study != TEMPLATE or room is None:
        names = ", ".join(name for name, room in known.items() if room.kind != "summary")
        places = " or ".join(map(str, paths.NOTEBOOKS))
        raise StudyError(
            f"There is no study {study}; the studies are: {names or f'none in {places}'}."
        )
    return room


def contents() -> dict[str, Any]:
    """The book's table of contents."""
    text = (paths.ROOT / "_toc.yml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.load(text, Loader=_LOADER)  # noqa: S506  (both are safe)
    return found


# Ten times as fast as the one in Python, where PyYAML was built with it.
_LOADER: type[yaml.SafeLoader | yaml.CSafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def in_contents(toc: dict[str, Any]) -> list[str]:
    """The studies and summaries that a table of contents names, in its order."""
    files = (str(c.get("file", "")) for part in toc["parts"] for c in part["chapters"])
    return [file.rpartition("/")[2] for file in files if file.startswith("book/studies/")]


@cache
def tell_whose(room: Room) -> None:
    """Warn once, before it runs, that a study of ``PGSTUDIES_NOTEBOOKS`` is code.

    Not in a kernel: whoever opened the notebook sees it, and a run has warned already.
    """
    is_own = paths.OWN is not None and room.directory.parent == paths.OWN
    if is_own and not (os.environ.get(JUPYTER_SESSION) or RunOptions.given().replies):
        say(
            f"{room.name} is code from PGSTUDIES_NOTEBOOKS, {room.directory}: it runs with your "
            f"privileges."
        )


def study_module(study: str, module: str) -> ModuleType:
    """A Python module in the room of ``study``, by its name.  Raises StudyError if there is none.

    It is read anew each time, and may import other modules of its room, ``from . import reading``.
    """
    room = find_room(study)
    tell_whose(room)
    file = room.directory / f"{module}.py"
    if not file.is_file():
        raise StudyError(f"There is no module {file}.")
    package = ModuleType(f"notebooks.{study}")
    package.__path__ = [str(room.directory)]
    sys.modules.setdefault("notebooks", ModuleType("notebooks"))  # else only found from ROOT
    sys.modules[package.__name__] = package
    spec = importlib.util.spec_from_file_location(f"{package.__name__}.{module}", file)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded
