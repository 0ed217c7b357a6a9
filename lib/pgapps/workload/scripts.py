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

from .schema import contents, leaving
from .statements import Command, Lines, without_comments

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

BUILT_IN = "pgbench:"
"""The prefix of a built-in script of pgbench, in place of a directory."""

# A script for psql, a dump in custom format, a dump in directory format.
_SCHEMAS = ("schema.sql", "schema.dump", "schema")
_SETTINGS = "settings.conf"

_NAME = re.compile(r"^--[ \t]*name:[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)

_MARK = re.compile(r"^--[ \t]*(?:(control)|expect:[ \t]*(.*?))[ \t]*$", re.MULTILINE)

EXPECTATION = re.compile(r"([<>=])[ \t]*(\d{1,9}(?:\.\d{1,9})?)")
"""What a script is expected to take on the candidate, relative to the baseline: < 0.7."""

_COMMANDS = {"aset", "elif", "else", "endif", "gset", "if", "set"} | {
    f"{word}pipeline" for word in ("start", "sync", "end")
}
"""The commands of pgbench that a script may use."""

_PGBENCH_TABLES = re.compile(r"\bpgbench_(?:accounts|branches|history|tellers)\b")

_SHELL = re.compile(r"\\[\W_]*(?:set)?shell", re.IGNORECASE)
"""pgbench's commands that run a program, as a shell reads the rest of the line."""

_WEIGHTED = re.compile(r"(.+)@(\d{1,9})\Z")


@dataclass(frozen=True)
class Script:
    """A pgbench script, which runs as one transaction, and its place in a file.

    ``expected`` is its mark, control or as ``EXPECTATION``; empty without one.
    """

    name: str
    text: str
    file: Path
    line: int
    expected: str = ""


@dataclass(frozen=True)
class Workload:
    """The contents of a workload's directory.

    Attributes:
        schema: A script for psql, or a dump; None if there are only pgbench's own tables.
        scripts: The scripts to measure, in the order of the files' names, or of the mix.
        settings: The settings in ``settings.conf``, by name.
        ignored: The names of all other files.
        included: The files that the schema includes.
        weights: The weights of the scripts in a mix; empty if each script runs alone.

    """

    schema: Path | None
    scripts: list[Script]
    settings: dict[str, str]
    ignored: list[str]
    included: tuple[Path, ...] = ()
    weights: tuple[int, ...] = ()

    @property
    def uses_pgbench_tables(self) -> bool:
        """Whether a script names one of the tables that ``pgbench -i`` creates."""
        return any(_PGBENCH_TABLES.search(script.text) for script in self.scripts)

    @property
    def expected(self) -> dict[str, str]:
        """The marks of the scripts that have one, by script."""
        return {script.name: script.expected for script in self.scripts if script.expected}

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
    """The workload in a directory, or that of a built-in script, such as ``pgbench:tpcb-like``.

    ``mix`` has the names of the scripts to mix, each with or without a weight (a@3), or built-in
    scripts.  A script that is alone in its file is also known by the file's name.

    Raises StudyError for a missing directory, schema or script, an unreadable file, a command that
    would not be measured, runs a program or leaves the database, a setting that names files,
    programs or addresses, and an unknown script.
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
    schema = next((home / name for name in _SCHEMAS if (home / name).exists()), None)
    whole = [] if schema is None else [schema, *(schema.rglob("*") if schema.is_dir() else ())]
    for file in [*whole, *(f for f in found if f.suffix == ".sql" or f.name == _SETTINGS)]:
        _require_within(file, home)
    included = [f.resolve() for f in contents(schema).files] if schema is not None else []
    used = {schema, home / _SETTINGS}
    others = [f for f in found if f not in used and _resolved(f) not in included]
    wanted = {_WEIGHTED.sub(r"\1", text) for text in mix}
    files = [f for f in others if (f.suffix == ".sql" or f.name in wanted) and not f.is_dir()]
    workload = Workload(
        schema,
        [script for file in files for script in _asked(file, wanted)],
        _settings(home / _SETTINGS),
        [f.name for f in others if f not in files],
        tuple(included),
    )
    if schema is None and not workload.uses_pgbench_tables:
        raise StudyError(
            f"{home} has no schema: put the tables and their rows into schema.sql, or a dump into "
            f"schema.dump (pg_dump --format=custom) or schema/ (--format=directory); scripts on "
            f"pgbench's own tables need none."
        )
    if not workload.scripts:
        raise StudyError(f"{home} has no script: put a query into a file *.sql beside the schema.")
    names = Counter(script.name for script in workload.scripts)
    if twice := next((name for name in names if names[name] > 1), None):
        raise StudyError(f"{home} has two scripts called {twice!r}: rename one of them.")
    return _mixed(workload, mix)


def _asked(file: Path, wanted: Collection[str]) -> list[Script]:
    """The scripts of a file; none of one that cannot be measured, if other scripts are mixed."""
    try:
        return _scripts_of(file)
    except StudyError:
        if not wanted or {file.stem, file.name} & {*wanted}:
            raise
        return []


def _resolved(file: Path) -> Path:
    try:
        return file.resolve()
    except (OSError, RuntimeError):  # a link to itself
        return file


def _require_within(file: Path, home: Path) -> None:
    try:
        leads_out = home.resolve() not in file.resolve().parents
    except (OSError, RuntimeError):
        raise StudyError(f"{file} cannot be read: it is a link that leads to itself.") from None
    if leads_out:
        raise StudyError(f"{file} leads out of {home}: copy the file into the directory.")


def _mixed(found: Workload, mix: Sequence[str]) -> Workload:
    """The workload with only the scripts of the mix and their weights, if there is a mix."""
    if not mix:
        return found
    files = Counter(script.file for script in found.scripts)
    alone = [script for script in found.scripts if files[script.file] == 1]
    known = {name: s for s in alone for name in (s.file.stem, s.file.name)}
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
    if not chosen:
        raise StudyError("No script of the mix has a weight above 0.")
    mixed = tuple(weights[script.name] for script in chosen) if len(chosen) > 1 else ()
    return replace(found, scripts=chosen, weights=mixed)


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
    found: list[Script] = []
    name, start = file.stem, 0
    for mark in [*_NAME.finditer(text), None]:
        part = text[start : mark.start() if mark else None]
        if without_comments(part):
            begin = start + len(part) - len(part.lstrip())
            line = text.count("\n", 0, begin) + 1
            expected = _expected(part, f"{file}, line {line}")
            found.append(Script(name, part.strip() + "\n", file, line, expected))
        if mark:
            name, start = mark[1], mark.end()
    return found


def _expected(text: str, where: str) -> str:
    """The mark of a script, or an empty text; raises StudyError for one that cannot be judged."""
    marks = [mark[1] or mark[2] for mark in _MARK.finditer(text)]
    if len(marks) > 1:
        raise StudyError(f"{where}: the script has {len(marks)} marks: keep one.")
    for mark in marks:
        known = EXPECTATION.fullmatch(mark)
        if mark != "control" and not (known and float(known[2])):
            raise StudyError(
                f"{where}: what is expected is <, > or = and a ratio of times, as in "
                f"`-- expect: < 0.7`, not {mark!r}."
            )
    return "".join(marks)


def _require_harmless(file: Path, text: str) -> None:
    """Raise StudyError for a command that runs a program, leaves the database or is unknown."""
    if found := _SHELL.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise _no_place(file, line, found[0].split()[0], "it runs a program")
    for item in Lines(text.encode().splitlines(keepends=True), file):
        if not isinstance(item, Command):
            if words := leaving(item.text):
                raise _no_place(file, item.line, words, "it reaches beyond the workload's database")
        elif item.name.lower() == "sleep":
            why = "it would be the time that is measured"
            raise _no_place(file, item.line, f"\\{item.name}", why)
        elif item.name.lower() not in _COMMANDS:
            raise _no_place(file, item.line, f"\\{item.name}", "pgbench has no such command")


def _no_place(file: Path, line: int, command: str, why: str) -> StudyError:
    return StudyError(f"{file}, line {line}: {command} is not allowed in a script, because {why}.")


def _settings(file: Path) -> dict[str, str]:
    if not file.exists():
        return {}
    settings = read_settings(file)
    if reaching := refused(settings):
        raise StudyError(
            f"{file} sets {', '.join(reaching)}, which say where a server listens, which files it "
            f"uses or which programs it runs: leave them out."
        )
    return settings
