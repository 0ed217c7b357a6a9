"""The tools of the system that some studies and tests need: what for, and how to install them.

``python lib/pgservers/tools.py`` lists those that are missing; with ``packages``, Debian's names
for them.  It needs nothing but Python, as ``make tools`` runs before anything is installed.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Tool:
    """A tool that the system may lack.

    Attributes:
        name: What it is called everywhere.
        package: Debian's package that has it.
        need: What is left out without it.
        programs: It is installed if one of these is in the path,
        file: or this file exists.

    """

    name: str
    package: str
    need: str
    programs: tuple[str, ...] = ()
    file: str = ""

    @property
    def path(self) -> str | None:
        """Its place; None where it is missing."""
        found = next(filter(None, map(shutil.which, self.programs)), None)
        return found or (self.file if self.file and Path(self.file).exists() else None)


_RELEASES = "arms on other releases that are not yet in the cache"
_COMMITS = "arms and comparisons that build commits"
_EXTENSIONS = "arms that need a C extension"

TOOLS = (
    Tool(
        "chromium",
        "chromium",
        "tests of the book's pages",
        ("chromium", "chromium-browser", "google-chrome"),
    ),
    Tool("mvn", "maven", _RELEASES, ("mvn",)),
    Tool("valgrind", "valgrind", "counts of instructions", ("valgrind",)),
    Tool("C compiler", "gcc", _EXTENSIONS, ("cc", "gcc", "clang")),
    Tool("headers of the C library", "libc6-dev", _EXTENSIONS, file="/usr/include/stdio.h"),
    Tool("make", "make", _EXTENSIONS, ("gmake", "make")),
    Tool("bison", "bison", _COMMITS, ("bison",)),
    Tool("flex", "flex", _COMMITS, ("flex",)),
    Tool(
        "sources of locales",
        "locales",
        "collations of other languages",
        file="/usr/share/i18n/locales/en_US",
    ),
)


def missing() -> list[Tool]:
    """The tools that are missing here."""
    return [tool for tool in TOOLS if tool.path is None]


def installing(*names: str) -> str:
    """How to install the tools of these names: apt-get's command, or their names without it."""
    if Path("/usr/bin/apt-get").exists():
        return f"apt-get install {' '.join(t.package for t in TOOLS if t.name in names)}"
    return f"install {', '.join(names)}"


def _list() -> list[str]:
    found = missing()
    if not found:
        return []
    lines = [f"  {tool.name}: {tool.need}" for tool in found]
    command = installing(*(tool.name for tool in found))
    return ["Not installed here, and what is left out for it:", *lines, f"To have all: {command}"]


if __name__ == "__main__":
    is_short = sys.argv[1:] == ["packages"]
    for line in [tool.package for tool in missing()] if is_short else _list():
        print(line)
