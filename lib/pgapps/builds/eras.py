"""What it takes to build the trees of other years with the tools of today.

It is read from the trees themselves, not from dates: a back branch is as old as its release, and
what is being developed says the same version for a year.
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
"""Of src/, in this order, what a server needs where src/Makefile has no list of its own."""

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
    """The flags of the compiler that one of these commits needs, and so all of them get.

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
    """The parts of src/ to be made one by one; empty where its Makefile can be told to."""
    makefile = source / "src" / "Makefile"
    if not makefile.is_file() or "SUBDIRS" in makefile.read_text("utf-8", "replace"):
        return []
    return [part for part in _PARTS if (source / "src" / part).is_dir()]


def flex_for(source: Path, work: Path) -> list[str]:
    """What tells configure, which for years took 2.6 for too old, that there is a flex."""
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
    """Raise StudyError where a tool is missing that the tree is built with."""
    if not (source / "src" / "backend" / "parser" / "gram.y").is_file():
        return
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    if missing:
        raise StudyError(
            f"Building a commit needs {', '.join(missing)}, which this machine lacks: apt-get "
            f"install {' '.join(missing)}, or on Fedora dnf install {' '.join(missing)}."
        )
