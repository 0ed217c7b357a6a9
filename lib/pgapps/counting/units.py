"""Units of work: the SQL that executes a number of them, and the SQL that prepares for it.

They take the statements of their study's procedure by name from its code, which is not executed.
"""

from __future__ import annotations

import ast
import difflib
import functools
import itertools
import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from pgservers.errors import StudyError
from pgstudies.checking import checked
from pgstudies.rooms import rooms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pgservers.servers.serve import Server
    from pgstudies.rooms import Room


_REFERENCE = re.compile(r"(PERFORM )?<(\w+(?:\[[^][<>]+\])?)(?: ([^<>]*))?>")

_PLACE = re.compile(r"\{\w*\}|%s|\$\d+")


@dataclass(frozen=True)
class Unit:
    """One piece of work that a backend can do alone, such as one lookup.

    Attributes:
        name: What the pages call it, such as ``one function created``.
        statements: SQL that does the work ``current_setting('pgstudies.n')`` times.
        sizes: Two such numbers; the cost of a unit is the difference between them.
        prepare: SQL that is run before, in a session of its own, in which
            ``current_setting('pgstudies.sizes')`` is an array of both sizes.
        inside: Count only what the first of these functions executes, without what the others do
            within it, in place of a difference.
        without: Functions whose instructions are not counted.
        settings: Server settings.
        extension: The extension of this project that it needs.
        locale: The locale of the C library that it needs.
        of: How many of what its name says are done each time.
        study: The study whose work it is.
        arm: The arm whose work it is; empty for that of every arm.
        steps: The compared steps whose work it is: ``step``, or ``step, case``.
        varies: Whether it is counted with open transactions as well.
        open_transactions: The number of open prepared transactions, each with an XID.
        subtransactions: The number of subtransactions of each, each with an XID.
        load: Loads tables into a server's database before ``prepare`` is run.
        loaded: A checksum of what ``load`` loads.
        query: For a statement of a workload, its text, for EXPLAIN.
        unprivileged: Whether a role without rights loads and prepares it.

    """

    name: str
    statements: tuple[str, ...]
    sizes: tuple[int, int] = (100, 300)
    prepare: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    extension: str | None = None
    locale: str = ""
    of: int = 1
    study: str = ""
    arm: str = ""
    steps: tuple[str, ...] = ()
    varies: bool = False
    open_transactions: int = 0
    subtransactions: int = 0
    load: Callable[[Server], None] | None = field(default=None, compare=False)
    loaded: str = ""
    query: str = field(default="", compare=False)
    unprivileged: bool = False

    def __post_init__(self) -> None:
        small, large = self.sizes
        if not 0 < small < large:
            raise StudyError(f"The sizes of {self.name!r} must be two numbers, the smaller first.")

    @property
    def script(self) -> str:
        """What a single-user backend reads: one statement a line."""
        return "".join(f"{' '.join(text.split())}\n" for text in self.statements)

    @property
    def runs(self) -> int:
        """How often a backend is run to count it once."""
        return 1 if self.inside else 2

    @property
    def state(self) -> str:
        """A name for the prepared state, the same for units that share it."""
        sizes = self.sizes if self.prepare else ()
        role = ["unprivileged"] if self.unprivileged else []
        return repr((self.prepare, sizes, self.extension, self._holders, self.loaded, *role))

    @property
    def _holders(self) -> tuple[int, int]:
        return self.open_transactions, self.subtransactions

    def with_open(self, transactions: int, subtransactions: int = 0) -> Unit:
        """The same unit while other transactions are open."""
        return replace(self, open_transactions=transactions, subtransactions=subtransactions)

    def what_counts(self) -> list[Any]:
        """Everything that a count depends on, in the types of JSON."""
        work = [self.script, self.sizes, self.prepare, self.inside]
        more = [x for x in (self.of, self.without, self.loaded) if x not in {1, (), ""}]
        return [*work, dict(self.settings), self.extension, *self._holders, *more]


class _Table(msgspec.Struct, forbid_unknown_fields=True, rename={"others": "with"}):
    name: str
    statements: list[str]
    sizes: tuple[int, int] | None = None
    prepare: list[str] = []
    inside: list[str] = []
    without: list[str] = []
    settings: dict[str, str] = {}
    extension: str = ""
    of: int = 1
    arm: str = ""
    steps: list[str] = []
    varies: bool = False
    each: dict[str, list[Any]] = {}
    others: dict[str, list[Any]] = {}

    def __post_init__(self) -> None:
        if len(set(map(len, self.each.values()))) > 1:
            raise ValueError("has lists of different lengths in each")


_Places = Annotated[list[tuple[str, str, int]], msgspec.Meta(min_length=1)]


class _Ratio(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    over: _Places
    under: _Places


class _File(msgspec.Struct, forbid_unknown_fields=True):
    unit: list[_Table] = []
    ratio: list[_Ratio] = []


@functools.cache
def units(study: str | None = None) -> tuple[Unit, ...]:
    """The units of every ``units.toml``, in the order of the book; of one study, or of all.

    Raises StudyError for a file with an unknown key, a wrong type or an unknown statement.
    """
    return tuple(
        Unit(study=name, **words)
        for name, room in rooms().items()
        if study in {None, name}
        for words in _read(room)
    )


def _read(room: Room) -> Iterator[dict[str, Any]]:
    found = room.read("units.toml")
    checked(found, _File, str(room.directory / "units.toml"))
    named = _statements(room) if found else {}
    for table in found.get("unit", []):
        for words in _spelled_out(table):
            yield _changed(words, functools.partial(_taken, named=named, study=room.name))


def _spelled_out(table: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The tables that a table with lists stands for, one for each combination."""
    each, others = table.pop("each", {}), table.pop("with", {})
    for values in zip(*each.values(), strict=True) if each else [()]:
        for more in itertools.product(*others.values()):
            words = dict(zip([*each, *others], [*values, *more], strict=True))
            own = {n: words[n] for n in ("of", "extension", "locale") if words.get(n)}
            yield _changed(table, functools.partial(_replaced, words=words)) | own


def _replaced(text: str, words: Mapping[str, object]) -> str:
    for name, word in words.items():
        text = text.replace(f"<{name}>", str(word))
    return text


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    """``value`` with ``change`` applied to every text, and lists as tuples."""
    if isinstance(value, dict):
        return {name: _changed(inner, change) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_changed(inner, change) for inner in value)
    return change(value) if isinstance(value, str) else value


def _statements(room: Room) -> dict[str, str]:
    """The texts that cells and modules of a room assign to names, each on one line.

    An entry of a dictionary is ``NAME[key]``.  A cell's text replaces a module's of the same name.
    """
    named = [text for code in reversed(room.code) for text in _named(code)]
    return {name: " ".join(text.split()) for name, text in named}


def _named(code: str) -> Iterator[tuple[str, str]]:
    with suppress(SyntaxError):  # a cell with a command of IPython
        for statement in ast.parse(code).body:
            match statement:
                case ast.Assign([ast.Name(name)], ast.Constant(str(text))):
                    yield name, text
                case ast.Assign([ast.Name(name)], ast.Dict(keys, values)):
                    for entry in zip(keys, values, strict=True):
                        match entry:
                            case ast.Constant(str(key)), ast.Constant(str(text)):
                                yield f"{name}[{key}]", text


def _taken(text: str, named: Mapping[str, str], study: str) -> str:
    """``text`` with every ``<NAME values>`` in it replaced by the statement of that name.

    The values, between commas, fill the statement's places in order: ``{}`` and ``%s``, each its
    own, ``{name}`` and ``$1``, which may occur several times.  PERFORM replaces SELECT.  Raises
    StudyError for an unknown name, and if values and places differ in number.
    """

    def statement(reference: re.Match[str]) -> str:
        perform, name, values = reference.groups()
        if name not in named:
            near = difflib.get_close_matches(name, named, n=1)
            meant = f"; did you mean {near[0]}?" if near else "."
            raise StudyError(
                f"units.toml of {study} names {name}, which no cell of its notebook defines{meant}"
            )
        given = [] if values is None else values.split(", ")
        places: dict[object, int] = {}

        def value(place: re.Match[str]) -> str:
            same = place.start() if place[0] in {"{}", "%s"} else place[0]
            number = places.setdefault(same, len(places))
            return given[number] if number < len(given) else ""

        filled = _PLACE.sub(value, named[name])
        if len(given) != len(places):
            raise StudyError(
                f"units.toml of {study} gives {name} {len(given)} values; it takes {len(places)}."
            )
        return f"PERFORM {filled.removeprefix('SELECT ')}" if perform else filled

    return _REFERENCE.sub(statement, text)
