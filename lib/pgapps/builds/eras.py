"""What it takes to build old source trees with today's tools.

The trees themselves tell, not dates: a back branch is as old as its release, and the development
branch has the same version for a year.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from pgservers.errors import StudyError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .repository import Repository

_NEEDED = ("make", "bison", "flex", "perl")

_PARTS = (
    *("port", "timezone", "backend", "backend/utils/mb/conversion_procs", "backend/snowball"),
    *("include", "interfaces/libpq", "bin/initdb", "bin/pg_config", "pl"),
)
"""The parts of src/ that a server needs, in this order, if src/Makefile has no list."""

# gram.y includes what flex writes, and bison 3 has made a macro of yylex by then.
_FLEX = """#!/bin/sh
written=
for word; do
    case $word in
        -t) echo "#undef yylex" ;;
        -o?*) written=${word#-o} ;;
    esac
done
FLEX "$@" || exit
[ -z "$written" ] || { echo "#undef yylex" | cat - "$written" >"$written.new" \\
    && mv "$written.new" "$written"; }
"""


def flags_for(repository: Repository, commits: Sequence[str]) -> tuple[str, ...]:
    """The compiler flags that any of these commits needs; all commits get them.

    Integers must wrap around (-fwrapv).  Until catalogs had CATALOG_VARLEN, their columns of
    variable length lay in an array of one element; gcc 4.8 and later takes what is beyond it for
    out of reach, and initdb crashes.
    """
    found = set()
    for commit in commits:
        configure = repository.text(commit, "configure")
        if not configure or not repository.text(commit, "src/backend/parser/gram.y"):
            continue
        if "-fwrapv" not in configure:
            found.add("-fwrapv")
        marked = "CATALOG_VARLEN" in repository.text(commit, "src/include/catalog/genbki.h")
        if not marked and "-fno-aggressive-loop-optimizations" not in configure:
            found.add("-fno-aggressive-loop-optimizations")
    return tuple(sorted(found))


def parts_of(source: Path) -> list[str]:
    """The parts of src/ to make one by one; empty if its Makefile takes a list."""
    makefile = source / "src" / "Makefile"
    if not makefile.is_file() or "SUBDIRS" in makefile.read_text("utf-8", "replace"):
        return []
    return [part for part in _PARTS if (source / "src" / part).is_dir()]


def flex_for(source: Path, work: Path) -> list[str]:
    """Variables that make an old configure accept flex 2.6, which it took for too old."""
    flex, grammar = shutil.which("flex"), source / "src" / "backend" / "parser" / "gram.y"
    if flex is None or not grammar.is_file():
        return []
    if '#include "scan.c"' not in grammar.read_text("utf-8", "replace"):
        return [f"FLEX={flex}"]
    wrapper = work / "flex"
    wrapper.write_text(_FLEX.replace("FLEX", f"'{flex}'"), encoding="utf-8")
    wrapper.chmod(0o755)
    return [f"FLEX={wrapper}"]


def require_tools(source: Path) -> None:
    """Raise StudyError if a tool is missing that is needed to build the tree."""
    if not (source / "src" / "backend" / "parser" / "gram.y").is_file():
        return
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    if missing:
        raise StudyError(
            f"Building a commit needs {', '.join(missing)}, which this machine lacks: apt-get "
            f"install {' '.join(missing)}, or on Fedora dnf install {' '.join(missing)}."
        )
