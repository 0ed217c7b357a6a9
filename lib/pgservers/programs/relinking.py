"""Linking a build's backend anew, its object files in another order: same code, another layout."""

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
"""The directory of an installation that has objects, static libraries and the command below."""

_COMMAND = "command.json"

_THIN = b"!<thin>\n"


def keep_link(command: str, prefix: Path, *, cwd: Path, trees: Sequence[Path]) -> None:
    """Keep in the installation at ``prefix`` what its backend was linked by, and try it.

    ``command`` is the linker's, for ``cwd``.  What it names in ``trees``, which may go, is copied
    or left out.  Raises CannotRun where that does not link the same program again.
    """
    kept, words = prefix / KEPT, _words(command, cwd)
    kept.mkdir(mode=0o755)
    trial = kept / "postgres"
    try:
        for number, word in enumerate(words):
            words[number] = _kept_word(word, number, kept, cwd, trees)
        inside = "|".join(rf"{re.escape(str(tree))}(?![\w.-])" for tree in trees)
        if any(re.search(inside, word) for word in words):
            raise CannotRun("the command that links the backend names a file that will be gone")
        kept_words = json.dumps([word for word in words if word])
        (kept / _COMMAND).write_text(kept_words, encoding="utf-8")
        _link(prefix, None, trial)
    except ServerError as error:
        raise CannotRun(str(error)) from error
    finally:
        trial.unlink(missing_ok=True)


def can_relink(binaries: Binaries) -> bool:
    """Whether it is a build that we made, with its objects, all as it was put there.

    The command is run as ourselves, so it is taken from nowhere else.
    """
    prefix = binaries.bindir.parent.resolve()
    if not prefix.is_relative_to(cache_dir().resolve()) or not is_finished(prefix):
        return False
    try:
        require_unchanged(prefix)
        return shutil.which(_command(prefix)[0]) is not None
    except (OSError, ServerError):
        return False


def relinked(binaries: Binaries, seed: int, target: Path) -> str:
    """Make the program ``target`` the backend, linked in an order by ``seed``; returns its SHA-256.

    It should be in a copy of the installation, which finds its files relative to the program.
    Raises ServerError where the installation cannot be linked anew, SpaceError on a full disk.
    """
    prefix = binaries.bindir.parent.resolve()
    if not can_relink(binaries):
        raise ServerError(
            f"The backend in {prefix} cannot be linked anew: its objects are not those that were "
            f"kept there: remove it, and it is made again."
        )
    aside = target.with_name(f".{target.name}")
    try:
        _link(prefix, seed, aside)
        # Another file, so that no page of the program before is taken for its own.
        aside.replace(target)
        return sha256_of(target)
    except OSError as error:
        raise cannot_write(error, target, "PGSTUDIES_RUN_DIR") from error
    finally:
        aside.unlink(missing_ok=True)


def _words(command: str, cwd: Path) -> list[str]:
    """The command's words; those of a response file stand in its place, and ccache links nothing.

    Raises CannotRun for what is no link.
    """
    words: list[str] = []
    for word in shlex.split(command):
        given = cwd / word.removeprefix("@")
        if word.startswith("@") and given.is_file():
            words += shlex.split(given.read_text(encoding="utf-8"))
        else:
            words.append(word)
    if words and words[0].rpartition("/")[2] == "ccache":
        del words[0]
    if "-o" not in words or not any(word.endswith(".o") for word in words):
        raise CannotRun("the command that links the backend was not found")
    return words


def _kept_word(word: str, number: int, kept: Path, cwd: Path, trees: Sequence[Path]) -> str:
    """What stands for a word in the kept command: the copy of a file; nothing for a directory."""
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
    """Copy an object or a static library; a thin one, as meson makes, with what it refers to."""
    with library.open("rb") as opened:
        is_thin = opened.read(len(_THIN)) == _THIN
    if not is_thin:
        shutil.copyfile(library, target)
        return
    listed = _run(["ar", "t", str(library)], library.parent).splitlines()
    _run(["ar", "qcsD", str(target), *listed], library.parent)


def _command(prefix: Path) -> list[str]:
    words: list[str] = json.loads((prefix / KEPT / _COMMAND).read_bytes())
    return words


def _link(prefix: Path, seed: int | None, target: Path) -> None:
    """Link the backend, without a ``seed`` as before; ServerError if it does not answer alike."""
    words = _command(prefix)
    words[words.index("-o") + 1] = str(target)
    places = [number for number, word in enumerate(words) if word.endswith(".o")]
    objects = [words[number] for number in places]
    if seed is not None:
        random.Random(seed).shuffle(objects)  # noqa: S311  (an experiment's order, not a secret)
    for number, name in zip(places, objects, strict=True):
        words[number] = name
    _run(words, prefix / KEPT)
    own, anew = (_run([program, "--version"], prefix)
                 for program in (str(prefix / "bin" / "postgres"), str(target)))  # fmt: skip
    if own != anew:
        raise ServerError(
            f"The backend in {prefix} was linked anew and says {anew.strip()!r} of itself instead "
            f"of {own.strip()!r}."
        )


def _run(command: Sequence[str], cwd: Path) -> str:
    """What a program writes; raises ServerError with what it complains of where it fails."""
    done = run_with_us(command, cwd=cwd, environment=build_environment())
    if done.returncode == 0:
        return done.stdout.decode(errors="replace")
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    if any(map(says_full, lines)):
        raise SpaceError(
            f"No space left to link the backend in {cwd.parent} anew: free some, or set "
            f"PGSTUDIES_RUN_DIR to a directory on another disk."
        )
    if any(map(says_no_processes, lines)):
        raise StudyError(NO_PROCESSES)
    why = next((line for line in lines if _ERROR.search(line)), (lines or ["it said nothing"])[0])
    program = os.path.basename(command[0])  # noqa: PTH119
    raise ServerError(f"The backend in {cwd.parent} cannot be linked anew: {program}: {why}.")


_ERROR = re.compile(r"\berror\b|undefined|cannot|not found")
