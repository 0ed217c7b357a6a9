"""A workload: a directory with a schema and the scripts to measure."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pgservers.errors import CannotRun, StudyError
from pgservers.files import read_text
from pgservers.programs.installations import find_pgbench, run_client
from pgservers.servers.settings import read_settings, refused

from .schema import LEAVES, contents
from .statements import Command, Lines

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA = ("schema.sql", "schema.dump", "schema")
"""A script of psql, a dump in custom format, one in directory format: the first that is there."""

SETTINGS = "settings.conf"

BUILT_IN = "pgbench:"
"""The prefix of a built-in script of pgbench, in place of a directory."""

_NAME = re.compile(r"^--[ \t]*name:[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)

_COMMANDS = {"aset", "elif", "else", "endif", "gset", "if", "set"} | {
    f"{word}pipeline" for word in ("start", "sync", "end")
}
"""The commands of pgbench that a script may use."""

_PGBENCH_TABLES = re.compile(r"\bpgbench_(?:accounts|branches|history|tellers)\b")

_SLEEP = "it would be the time that is measured"

_SHELL = re.compile(r"\\[\W_]*(?:set)?shell", re.IGNORECASE)
"""pgbench's commands that run a program, as a shell reads the rest of the line."""

_WEIGHTED = re.compile(r"(.+)@(\d{1,9})")

_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)


@dataclass(frozen=True)
class Script:
    """A pgbench script, which runs as one transaction, and its place in a file."""

    name: str
    text: str
    file: Path
    line: int

    def describe_error(self, complaint: str, line: int | None, server: str) -> str:
        """An error of pgbench on a server, with the file and, of the script's, its line."""
        place = f", line {self.line - 1 + line}" if line else ""
        return f"{self.file.name}{place}, on {server}: {complaint}"


@dataclass(frozen=True)
class Workload:
    """A workload's directory, read.

    Attributes:
        schema: A script of psql, or a dump; None for the tables of pgbench's own scripts.
        scripts: The scripts to measure, in the order of the files' names, or of the mix.
        settings: Of ``settings.conf``, by name.
        ignored: The names of all other files.
        included: The files that the schema includes.
        weights: Of the scripts, where they are mixed; empty where each runs alone.

    """

    schema: Path | None
    scripts: list[Script]
    settings: dict[str, str]
    ignored: list[str]
    included: tuple[Path, ...] = ()
    weights: tuple[int, ...] = ()

    @property
    def uses_pgbench_tables(self) -> bool:
        """Whether a script names one of the tables that `pgbench -i` makes."""
        return any(_PGBENCH_TABLES.search(script.text) for script in self.scripts)

    @property
    def digest(self) -> str:
        """A checksum of everything that a run depends on."""
        schema, digest = self.schema, hashlib.sha256()
        files = [] if schema is None else [schema, *sorted(schema.glob("*.dat*"))]
        for file in [*files, *self.included]:
            if file.is_file():
                with file.open("rb") as content:
                    digest.update(hashlib.file_digest(content, "sha256").digest())
        digest.update(repr([(s.name, s.text) for s in self.scripts]).encode())
        return digest.hexdigest()[:16]


def read_workload(directory: str | Path, mix: Sequence[str] = ()) -> Workload:
    """The workload of a directory, or ``pgbench:`` and the name of one of its own scripts.

    ``mix`` has the scripts to be mixed, each perhaps with a weight: a@3; those of pgbench's own
    with ``pgbench:`` before them.  A script has the name of its file, too, if it is alone there.

    Raises StudyError for a missing directory, schema or script, an unreadable file, a command that
    would not be measured, runs a program or leaves the database, a setting that reaches out of the
    server, and a name that is not known.
    """
    if str(directory).startswith(BUILT_IN):
        return _mixed(Workload(None, [_built_in(str(directory))], {}, []), mix)
    home = Path(directory).expanduser().absolute()
    try:
        found = sorted(home.iterdir())
    except OSError as error:
        raise StudyError(
            f"There is no workload in {home}: {error.strerror}. `pgstudies new-workload DIR` "
            f"writes one."
        ) from None
    schema = next((home / name for name in SCHEMA if (home / name).exists()), None)
    read = [f for f in found if f.suffix == ".sql" or f.name == SETTINGS]
    whole = [] if schema is None else [schema, *(schema.rglob("*") if schema.is_dir() else ())]
    for file in [*whole, *read]:
        _require_within(file, home)
    included = [f.resolve() for f in contents(schema).files] if schema is not None else []
    files = [
        f
        for f in found
        if f.suffix == ".sql" and not f.is_dir() and f != schema and f.resolve() not in included
    ]
    scripts = [script for file in files for script in _scripts_of(file)]
    if schema is None and not any(_PGBENCH_TABLES.search(script.text) for script in scripts):
        raise StudyError(
            f"{home} has no schema: put the tables and their rows into schema.sql, or a dump into "
            f"schema.dump (pg_dump --format=custom) or schema/ (--format=directory); scripts on "
            f"pgbench's own tables need none."
        )
    if not scripts:
        raise StudyError(f"{home} has no script: put a query into a file *.sql beside the schema.")
    names = [script.name for script in scripts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise StudyError(f"{home} has two scripts called {twice!r}: rename one of them.")
    used = {schema, home / SETTINGS, *files}
    found_here = Workload(
        schema,
        scripts,
        _settings(home / SETTINGS),
        [f.name for f in found if f not in used and f.resolve() not in included],
        tuple(included),
    )
    return _mixed(found_here, mix)


def _require_within(file: Path, home: Path) -> None:
    try:
        leads_out = home.resolve() not in file.resolve().parents
    except (OSError, RuntimeError):
        raise StudyError(f"{file} cannot be read: it is a link that leads to itself.") from None
    if leads_out:
        raise StudyError(f"{file} leads out of {home}: copy the file into the directory.")


def without_comments(text: str) -> str:
    """SQL without its comments and the space around it."""
    return _COMMENT.sub("", text).strip()


def _mixed(found: Workload, mix: Sequence[str]) -> Workload:
    """The workload with the scripts of the mix alone, if there is one, and with their weights."""
    files = Counter(script.file for script in found.scripts)
    known = {s.file.stem: s for s in found.scripts if files[s.file] == 1}
    known |= {script.name: script for script in found.scripts}
    weights: dict[str, int] = {}
    chosen: list[Script] = []
    for text in mix:
        weighted = _WEIGHTED.fullmatch(text)
        name, weight = (weighted[1], int(weighted[2])) if weighted else (text, 1)
        if name not in known and not name.startswith(BUILT_IN):
            raise StudyError(f"There is no script {name!r} to mix; there is {', '.join(known)}.")
        script = known.get(name) or _built_in(name)
        if script.name in weights:
            raise StudyError(f"The mix has two scripts called {script.name!r}: give one a weight.")
        weights[script.name] = weight
        chosen += [script] if weight else []
    if not mix:
        return found
    if not chosen:
        raise StudyError("No script of the mix has a weight above 0.")
    alone = len(chosen) == 1
    return replace(
        found, scripts=chosen, weights=() if alone else tuple(weights[s.name] for s in chosen)
    )


def _built_in(directory: str) -> Script:
    name = directory.removeprefix(BUILT_IN)
    pgbench = find_pgbench()
    if pgbench is None:
        raise CannotRun("there is no pgbench on this machine, which has that script")
    listing = run_client([pgbench, f"--show-script={name}"], {})
    if listing.returncode:
        known = run_client([pgbench, "--builtin=list"], {}).stderr
        names = ", ".join(re.findall(r"^ *([\w-]+): ", known, re.MULTILINE))
        raise StudyError(f"pgbench has no script {name!r}; it has {names}.")
    text = without_comments(listing.stderr) + "\n"
    return Script(name, text, Path(f"{BUILT_IN}{name}"), 1)


def _scripts_of(file: Path) -> list[Script]:
    text = read_text(file, "a script")
    _require_harmless(file, text)
    marks = list(_NAME.finditer(text))
    starts = [0, *(mark.end() for mark in marks)]
    ends = [*(mark.start() for mark in marks), len(text)]
    names = [file.stem, *(mark[1] for mark in marks)]
    parts = zip(names, starts, ends, strict=True)
    return [
        Script(
            name,
            text[start:end].strip() + "\n",
            file,
            text.count("\n", 0, end - len(text[start:end].lstrip())) + 1,
        )
        for name, start, end in parts
        if without_comments(text[start:end])
    ]


def _require_harmless(file: Path, text: str) -> None:
    """Raise StudyError for a script with a command that runs a program, or is none of pgbench's."""
    if found := _SHELL.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise _no_place(file, line, found[0].split()[0], "it runs a program")
    for item in Lines(text.encode().splitlines(keepends=True), file):
        if not isinstance(item, Command):
            if leaving := LEAVES.match(item.text):
                words = " ".join(leaving[1].decode().upper().split())
                raise _no_place(file, item.line, words, "it reaches beyond the workload's database")
        elif item.name.lower() not in _COMMANDS:
            why = _SLEEP if item.name.lower() == "sleep" else "pgbench has no such command"
            raise _no_place(file, item.line, f"\\{item.name}", why)


def _no_place(file: Path, line: int, command: str, why: str) -> StudyError:
    return StudyError(f"{file}, line {line}: {command} is not allowed in a script, because {why}.")


def _settings(file: Path) -> dict[str, str]:
    if not file.exists():
        return {}
    settings = read_settings(file)
    reaching = refused(settings)
    if reaching:
        raise StudyError(
            f"{file} sets {', '.join(reaching)}, which say where a server listens, which files it "
            f"uses or which programs it runs: leave them out."
        )
    return settings
