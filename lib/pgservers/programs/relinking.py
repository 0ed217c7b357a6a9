"""Relinking a build's backend with its object files in another order: same code, another layout."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
from typing import TYPE_CHECKING

from ..errors import CannotRun, ServerError, SpaceError, StudyError
from ..files import cannot_write, says_full
from ..paths import cache_dir
from .cached import is_finished, require_unchanged, sha256_of
from .running import NO_PROCESSES, build_environment, run_with_us, says_no_processes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .installations import Binaries

KEPT = "relink"
"""The directory of objects, libraries and the link command, in our own build or in ``links``."""

_COMMAND = "command.json"

_MOST_LINKED = 3
"""The number of links kept: one for each side of a comparison."""

_linked: dict[tuple[Path, int], bytes] = {}

_THIN = b"!<thin>\n"


def find_link(tree: Path) -> tuple[str, Path]:
    """The command that links the backend in a build tree, and the directory to run it in.

    Writes nothing.  Raises CannotRun where the command is not found.
    """
    if (tree / "build.ninja").exists():
        cwd, asked = tree, ["ninja", "-t", "compdb", "-x"]  # -x expands response files
    else:
        # Even with -n, make remakes included makefiles, which -o forbids, and runs lines with
        # $(MAKE).  -W has it link the program.
        old, new = "../../src/Makefile.global", "../../src/port/libpgport_srv.a"
        asked = ["make", "-n", "MAKE=:", "-o", old, "-W", new, "postgres"]
        cwd = tree / "src" / "backend"
    try:
        done = run_with_us(asked, cwd=cwd, environment=build_environment())
    except OSError as error:
        raise CannotRun(f"{cwd} cannot be read: {error.strerror}") from error
    said = os.fsdecode(done.stdout)
    if asked[0] == "ninja":
        known = json.loads(said or "[]")
        links = [one["command"] for one in known if one.get("output") == "src/backend/postgres"]
    else:
        links = [line for line in said.splitlines() if _LINKS.search(line)]
    if not links:
        raise CannotRun(f"{asked[0]} does not say how the backend is linked in {cwd}")
    return links[-1], cwd


def keep_link(command: str, program: Path, kept: Path, *, cwd: Path, trees: Sequence[Path]) -> None:
    """Copy an installed backend's object files and link command into the new directory ``kept``.

    ``command`` runs in ``cwd``.  Files that it names in ``trees``, which may be removed later, are
    copied or left out.  Raises CannotRun where the result does not link the same code again.
    """
    words, libraries = _words(command), str(program.parent.parent / "lib")
    kept.mkdir(mode=0o755)
    trial = kept / "postgres"
    try:
        for number, word in enumerate(words):
            words[number] = _kept_word(word, number, kept, cwd, trees)
            # Until it installs, meson has as many X for the path of the installed libraries.
            held = re.fullmatch(r"(-Wl,-rpath,)(X+)", word)
            if held:
                words[number] = held[1] + libraries.ljust(len(held[2]), "/")
        inside = "|".join(rf"{re.escape(str(tree))}(?![\w.-])" for tree in trees)
        # An installation in its tree stays where it is.
        if any(re.search(inside, word.replace(libraries, "")) for word in words):
            raise CannotRun("the command that links the backend uses a file of the build tree")
        kept_words = json.dumps([word for word in words if word])
        (kept / _COMMAND).write_text(kept_words, encoding="utf-8")
        _link(kept, program, None, trial)
        if code_of(trial, kept / "code") != code_of(program, kept / "code"):
            raise CannotRun("linking its object files again does not give the installed program")
    finally:
        trial.unlink(missing_ok=True)


def code_of(program: Path, aside: Path) -> str:
    """The SHA-256 of a program's code and constants, which strip and install do not change.

    Uses ``aside`` as a temporary file.  Raises CannotRun for a program without code.
    """
    sections = [f"--only-section={name}" for name in _SECTIONS]
    try:
        _run(["objcopy", "-O", "binary", *sections, str(program), str(aside)], aside.parent)
        if not (aside.is_file() and aside.stat().st_size):
            raise CannotRun(f"{program} has no machine code")
        return sha256_of(aside)
    finally:
        aside.unlink(missing_ok=True)


def place_of_links() -> Path:
    """The cache directory for object files of other builds' backends, by their SHA-256."""
    return cache_dir().resolve() / "links"


def can_relink(binaries: Binaries) -> bool:
    """Whether the object files needed to relink it exist and are unchanged.

    The link command runs as this account, so it is taken only from this account's cache.
    """
    try:
        place = _place(binaries)
        if not is_finished(place):
            return False
        require_unchanged(place)
        return shutil.which(_command(place / KEPT)[0]) is not None
    except (OSError, ServerError):
        return False


def relinked(binaries: Binaries, seed: int, target: Path) -> str:
    """Link the backend as ``target``, in an order drawn from ``seed``; returns its SHA-256.

    ``target`` should be in a copy of the installation, as a backend finds files relative to itself.
    The last links are kept in memory: servers of several studies run the same one in a block.
    Raises ServerError where the installation cannot be relinked, SpaceError on a full disk.
    """
    place, where = _place(binaries), f"The backend in {binaries.bindir.parent}"
    known = (place, seed)
    if known not in _linked and not can_relink(binaries):
        raise ServerError(
            f"{where} cannot be relinked: its object files in {place} have changed since they "
            f"were stored; remove that directory, and it is made again."
        )
    aside = target.with_name(f".{target.name}")
    try:
        if known in _linked:
            aside.write_bytes(_linked[known])
            aside.chmod(0o755)
        else:
            _link(place / KEPT, binaries.bindir / "postgres", seed, aside)
            _linked[known] = aside.read_bytes()
            for oldest in [*_linked][:-_MOST_LINKED]:
                del _linked[oldest]
        # A new file, so that no cached page of the old program is taken for its own.
        aside.replace(target)
        return sha256_of(target)
    except CannotRun as reason:
        raise ServerError(f"{where} cannot be relinked: {reason}.") from reason
    except OSError as error:
        raise cannot_write(error, target, "PGSTUDIES_RUN_DIR") from error
    finally:
        aside.unlink(missing_ok=True)


def _place(binaries: Binaries) -> Path:
    prefix = binaries.bindir.parent.resolve()
    if prefix.is_relative_to(cache_dir().resolve()):
        return prefix
    return place_of_links() / sha256_of(binaries.bindir / "postgres")


def _words(command: str) -> list[str]:
    """The words of the link command, without ccache; raises CannotRun for any other command."""
    words = shlex.split(command)
    if words and words[0].rpartition("/")[2] == "ccache":
        del words[0]
    if "-o" not in words or not any(word.endswith(".o") for word in words):
        raise CannotRun("the command that links the backend was not found")
    return words


def _kept_word(word: str, number: int, kept: Path, cwd: Path, trees: Sequence[Path]) -> str:
    """A word for the stored command: the name of a file's copy, or "" for a directory."""
    path = word.removeprefix("-L")
    if word.startswith("-") and path == word:
        return word
    if not any((cwd / path).resolve().is_relative_to(tree.resolve()) for tree in trees):
        return word
    if path != word:
        return ""
    if not (word.endswith((".o", ".a")) and (cwd / word).is_file()):
        return word
    name = f"{number:04}-{(cwd / word).name}"
    _copy(cwd / word, kept / name)
    return name


def _copy(library: Path, target: Path) -> None:
    """Copy an object or a static library; a thin one, as meson makes, with its members."""
    with library.open("rb") as opened:
        is_thin = opened.read(len(_THIN)) == _THIN
    if not is_thin:
        shutil.copyfile(library, target)
        return
    members = _run(["ar", "t", str(library)], library.parent).splitlines()
    _run(["ar", "qcsD", str(target), *members], library.parent)


def _command(kept: Path) -> list[str]:
    words: list[str] = json.loads((kept / _COMMAND).read_bytes())
    return words


def _link(kept: Path, program: Path, seed: int | None, target: Path) -> None:
    """Relink ``program`` (in the original order without ``seed``); CannotRun if it then differs."""
    words = _command(kept)
    words[words.index("-o") + 1] = str(target)
    places = [number for number, word in enumerate(words) if word.endswith(".o")]
    objects = [words[number] for number in places]
    if seed is not None:
        random.Random(seed).shuffle(objects)  # noqa: S311  (an experiment's order, not a secret)
    for number, name in zip(places, objects, strict=True):
        words[number] = name
    _run(words, kept)
    own, anew = (_run([str(asked), "--version"], kept).strip() for asked in (program, target))
    if own != anew:
        raise CannotRun(f"its --version is then {anew!r} instead of {own!r}")


def _run(command: Sequence[str], cwd: Path) -> str:
    """A program's output; raises CannotRun with its error if it fails."""
    done = run_with_us(command, cwd=cwd, environment=build_environment())
    if done.returncode == 0:
        return done.stdout.decode(errors="replace")
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    if any(map(says_full, lines)):
        raise SpaceError(
            f"No space left to link a backend anew, in {cwd}: free some, or set PGSTUDIES_RUN_DIR "
            f"to a directory on another disk."
        )
    if any(map(says_no_processes, lines)):
        raise StudyError(NO_PROCESSES)
    why = next((line for line in lines if _ERROR.search(line)), (lines or ["it said nothing"])[0])
    program = os.path.basename(command[0])  # noqa: PTH119
    raise CannotRun(f"{program}: {why.rstrip('.')}")


_LINKS = re.compile(r" -o postgres(\s|$)")
_SECTIONS = (".text", ".rodata", ".data", ".data.rel.ro")
_ERROR = re.compile(r"\berror\b|undefined|cannot|not found")
