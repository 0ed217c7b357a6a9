"""A user's own build trees: object files and link command of a backend are copied from there."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pgservers.errors import CannotRun
from pgservers.files import cannot_write, sweep_temporary, temporary_directory
from pgservers.paths import cache_dir
from pgservers.programs.accounts import make_open_directory, others_can_change
from pgservers.programs.cached import finish, is_finished, require_own, sha256_of
from pgservers.programs.installations import find_binaries, is_directory
from pgservers.programs.relinking import (
    KEPT,
    can_relink,
    code_of,
    find_link,
    keep_link,
    place_of_links,
)

from .builder import remove_oldest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pgservers.programs.installations import Binaries

MOST_BYTES = 2 * 2**30
"""The most that is kept (bytes); the least recently used makes room."""

_BACKEND = Path("src", "backend", "postgres")


def keep_links(servers: Sequence[str]) -> Iterator[str]:
    """Copy what is needed to relink the backends of directories of programs; report the outcome.

    It is taken from the build tree that an installation names; nothing is written there.  Other
    servers than directories are passed over.
    """
    for server in dict.fromkeys(servers):
        if not (Path(server).is_absolute() and is_directory(server)):
            continue
        if Path(server).resolve().is_relative_to(cache_dir().resolve()):  # our own build
            continue
        binaries = find_binaries(server)
        if can_relink(binaries):
            with suppress(OSError):
                os.utime(place_of_links() / sha256_of(binaries.bindir / "postgres"))
            continue
        try:
            tree = _keep(binaries)
        except CannotRun as reason:
            yield f"{server} runs as it is, not relinked in every block: {reason}."
        else:
            yield f"{server} is relinked in every block, from the objects in {tree}."


_NAMED = re.compile(r"^abs_top_(builddir|srcdir) = (/.+)$", re.MULTILINE)


def _named(binaries: Binaries) -> dict[str, Path]:
    """The build and source directories that an installation's Makefile.global names."""
    prefix, places = binaries.bindir.parent, ("lib*", "lib*/*", "lib*/*/*")
    found = (f for place in places for f in prefix.glob(f"{place}/pgxs/src/Makefile.global"))
    file = next(found, None)
    text = file.read_text("utf-8", "replace") if file else ""
    return {which: Path(path.strip()) for which, path in _NAMED.findall(text)}


def _keep(binaries: Binaries) -> Path:
    """Copy what relinking an installation's backend needs, and return its build tree.

    Raises CannotRun for another build's tree, or one that other accounts can change.
    """
    named = _named(binaries)
    tree, source = named.get("builddir"), named.get("srcdir")
    if tree is None:
        raise CannotRun("it does not say where it was built")
    if not (tree / _BACKEND).is_file():
        raise CannotRun(f"there is no {_BACKEND} in {tree}")
    program, links = binaries.bindir / "postgres", place_of_links()
    found = (path for path in (tree, source) if path and path.is_dir())
    trees = list(dict.fromkeys(path.resolve() for path in found))
    for own in trees:
        _require_ours(own)
    try:
        make_open_directory(links)
        require_own(links)
        sweep_temporary(links)
        with temporary_directory(links) as aside:
            if code_of(tree / _BACKEND, aside / "code") != code_of(program, aside / "code"):
                raise CannotRun(f"{tree} has another build by now: install that, or use --repo")
            command, cwd = find_link(tree)
            made = aside / "made"
            made.mkdir(mode=0o755)
            keep_link(command, program, made / KEPT, cwd=cwd, trees=trees)
            finish(made)
            kept = links / sha256_of(program)
            if not can_relink(binaries):  # else another command was faster
                shutil.rmtree(kept, ignore_errors=True)
                made.rename(kept)
        remove_oldest([p for p in links.iterdir() if is_finished(p)], MOST_BYTES, but=kept)
    except OSError as error:
        raise cannot_write(error, links, "PGSTUDIES_CACHE") from error
    return tree


def _require_ours(tree: Path) -> None:
    """Raise CannotRun if other accounts can change the tree, because make runs as this account."""
    try:
        for path in [tree, *tree.rglob("*"), *tree.parents]:
            if not path.is_symlink() and others_can_change(path, above=tree):
                raise CannotRun(f"other accounts can change {path}")
    except OSError as error:
        raise CannotRun(f"{tree} cannot be read: {error.strerror}") from error
