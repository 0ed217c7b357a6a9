"""The statements of a study's procedure by their names, read from its code and not executed."""

from __future__ import annotations

import ast
import difflib
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from pgservers.errors import StudyError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pgstudies.rooms import Room

_REFERENCE = re.compile(r"(PERFORM )?<(\w+(?:\[[^][<>]+\])?)(?: ([^<>]*))?>")

_PLACE = re.compile(r"\{\w*\}|%s|\$\d+")


def statements(room: Room) -> dict[str, str]:
    """The texts that the cells and modules of a room give names to, each on one line.

    An entry of a table of texts is there as ``NAME[key]``.  Where two have one name, a cell's goes
    before a module's.
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


def taken(text: str, named: Mapping[str, str], study: str) -> str:
    """``text`` with every ``<NAME values>`` in it replaced by the statement of that name.

    The values, between commas, fill the statement's places in order: ``{}`` and ``%s``, each its
    own, ``{name}`` and ``$1``, which may stand there several times.  PERFORM takes the place of the
    SELECT.  Raises StudyError, for an unknown name, and for more or fewer
    values than places.
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
