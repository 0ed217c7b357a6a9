"""A workload: a directory with a schema and the scripts whose time is wanted."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from pgservers.errors import CannotRun, StudyError
from pgservers.programs.installations import find_pgbench, run_client
from pgservers.servers.settings import read_settings, refused

from .schema import LEAVES, contents
from .statements import Command, Lines

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

_SLEEP = "it would be the time that is measured"

_SHELL = re.compile(r"\\[\W_]*(?:set)?shell", re.IGNORECASE)
"""pgbench's commands that run a program, as a shell reads the rest of the line."""

_PLACE = re.compile(r"script\.sql:(\d+): ")

_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)


@dataclass(frozen=True)
class Script:
    """What pgbench runs as one transaction, and where it stands."""

    name: str
    text: str
    file: Path
    line: int

    def describe_error(self, complaint: str, server: str) -> str:
        """An error of pgbench on a server, with the file and its line."""
        place = _PLACE.search(complaint)
        line = self.line - 1 + int(place[1]) if place else self.line
        message = _PLACE.sub("", complaint, count=1)
        return f"{self.file.name}, line {line}, on {server}: {message}"


@dataclass(frozen=True)
class Workload:
    """A workload's directory, read.

    Attributes:
        schema: A script of psql, or a dump; None for the tables of pgbench's own scripts.
        scripts: The scripts to measure, in the order of the files' names.
        settings: Of ``settings.conf``, by name.
        ignored: The names of all other files.
        included: The files that the schema includes.

    """

    schema: Path | None
    scripts: list[Script]
    settings: dict[str, str]
    ignored: list[str]
    included: tuple[Path, ...] = ()

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


def read_workload(directory: str | Path) -> Workload:
    """The workload of a directory, or ``pgbench:`` and the name of one of its own scripts.

    Raises StudyError for a missing directory, schema or script, an unreadable file, a command that
    would not be measured, runs a program or leaves the database, a setting that reaches out of the
    server, and a name that pgbench does not know.
    """
    if str(directory).startswith(BUILT_IN):
        return _built_in(str(directory).removeprefix(BUILT_IN))
    home = Path(directory).expanduser().absolute()
    try:
        found = sorted(home.iterdir())
    except OSError as error:
        raise StudyError(
            f"There is no workload in {home}: {error.strerror}. `pgstudies new-workload DIR` "
            f"writes one."
        ) from None
    schema = next((home / name for name in SCHEMA if (home / name).exists()), None)
    if schema is None:
        raise StudyError(
            f"{home} has no schema: put the tables and their rows into schema.sql, or a dump into "
            f"schema.dump (pg_dump --format=custom) or schema/ (--format=directory)."
        )
    read = [f for f in found if f.suffix == ".sql" or f.name == SETTINGS]
    for file in (schema, *(schema.rglob("*") if schema.is_dir() else ()), *read):
        _require_within(file, home)
    included = [file.resolve() for file in contents(schema).files]
    files = [
        f
        for f in found
        if f.suffix == ".sql" and f.is_file() and f != schema and f.resolve() not in included
    ]
    scripts = [script for file in files for script in _scripts_of(file)]
    if not scripts:
        raise StudyError(f"{home} has no script: put a query into a file *.sql beside the schema.")
    names = [script.name for script in scripts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise StudyError(f"{home} has two scripts called {twice!r}: name one of them otherwise.")
    used = {schema, home / SETTINGS, *files}
    return Workload(
        schema,
        scripts,
        _settings(home / SETTINGS),
        [f.name for f in found if f not in used and f.resolve() not in included],
        tuple(included),
    )


def _require_within(file: Path, home: Path) -> None:
    if home.resolve() not in file.resolve().parents:
        raise StudyError(f"{file} leads out of {home}: put the file itself there.")


def without_comments(text: str) -> str:
    """SQL without its comments and the space around it."""
    return _COMMENT.sub("", text).strip()


def _built_in(name: str) -> Workload:
    pgbench = find_pgbench()
    if pgbench is None:
        raise CannotRun("there is no pgbench here, which has that script")
    listing = run_client([pgbench, f"--show-script={name}"], {})
    if listing.returncode:
        known = run_client([pgbench, "--builtin=list"], {}).stderr
        names = ", ".join(re.findall(r"^ *([\w-]+): ", known, re.MULTILINE))
        raise StudyError(f"pgbench has no script {name!r}; it has {names}.")
    text = without_comments(listing.stderr) + "\n"
    script = Script(name, text, Path(f"{BUILT_IN}{name}"), 1)
    return Workload(None, [script], {}, [])


def _scripts_of(file: Path) -> list[Script]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"{file} cannot be read: {error}.") from None
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
    return StudyError(f"{file}, line {line}: {command} has no place in a workload, because {why}.")


def _settings(file: Path) -> dict[str, str]:
    if not file.is_file():
        return {}
    settings = read_settings(file)
    reaching = refused(settings)
    if reaching:
        raise StudyError(
            f"{file} sets {', '.join(reaching)}, which say where a server listens, which files it "
            f"uses or which programs it runs: leave them out."
        )
    return settings
