"""What a study's functions reach, as digests by name: an edited notebook measures something else.

A function counts by its source, plain data by value, and what an installed package has by its name,
as the versions of packages are alike.  Of an object that is none of these, the type alone counts.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import json
import re
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path, PurePath
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import TYPE_CHECKING, Any

import polars as pl
from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

FREE = {"blocks", "server"}
"""The parameters in which the sessions of one run may differ."""

# Whose repr() says all of them, and nothing that another process would not say.
_PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, bytearray, range, slice, type(...)),
    *(date, time, timedelta, tzinfo, Decimal, Fraction, PurePath, Enum, sql.Composable),
)

# The parts of what holds some.
_HELD: dict[Any, Callable[[Any], Iterable[Any]]] = {
    (tuple, list): iter,
    re.Pattern: lambda value: (value.pattern, value.flags),
    BuiltinFunctionType: lambda value: (value.__module__, value.__qualname__),
    MethodType: lambda value: (value.__func__, value.__self__),
    functools.partial: lambda value: (value.func, value.args, value.keywords),
    type(functools.cache(repr)): lambda value: (value.__wrapped__,),
    pl.DataFrame: lambda value: (repr(value.schema), value.rows()),
    pl.Series: lambda value: (value.name, repr(value.dtype), value.to_list()),
}

# What Python itself keeps in a class.
_OF_CLASSES = {"__dict__", "__weakref__", "__firstlineno__", "__static_attributes__", "__doc__"}


class Reached:
    """Digests, by name, of what ``functions`` reach; ``files`` are modules that count whole.

    A global of the notebook's that is one of ``parameters``, which are compared by themselves, is
    left out.  What a run itself changed, such as a dictionary that it fills, counts as it was
    before, for as long as this process lives: see ``settle``.
    """

    _before: dict[tuple[str, str], str] = {}  # noqa: RUF012  (the process's)

    def __init__(
        self,
        functions: Mapping[str, Callable[..., Any]],
        files: Sequence[Path],
        parameters: Mapping[str, Any],
    ) -> None:
        self._asked = functions, files, parameters
        found = _digests(*self._asked)
        self.digests = {name: self._before.get((name, d), d) for name, d in found.items()}

    def settle(self) -> None:
        """Note what the run has changed, so that the next one of this process is its like."""
        for name, digest in _digests(*self._asked).items():
            before = self.digests.get(name, digest)
            if before != digest:
                self._before[name, digest] = before


def _digests(
    functions: Mapping[str, Callable[..., Any]],
    files: Sequence[Path],
    parameters: Mapping[str, Any],
) -> dict[str, str]:
    walk = _Walk({file.resolve() for file in files}, parameters)
    found = {file.name: _digest(file.read_text(encoding="utf-8")) for file in files}
    for name, function in functions.items():
        found[name] = _digest(walk.described(function))
    while walk.waiting:
        name, value = walk.waiting.pop(0)
        while name in found:  # in another module
            name += "'"
        found[name] = _digest(walk.described(value))
    return found


def _digest(described: object) -> str:
    return hashlib.sha256(json.dumps(described).encode(errors="surrogatepass")).hexdigest()[:12]


class _Walk:
    """Descriptions, as JSON has them, of values; the globals that they name are ``waiting``."""

    def __init__(self, files: set[Path], parameters: Mapping[str, Any]) -> None:
        self.waiting: list[tuple[str, Any]] = []
        self._files = files
        self._parameters = parameters
        self._named: set[tuple[int, str]] = set()
        self._inside: list[object] = []  # those that hold what is described, against cycles

    def described(self, value: Any) -> Any:
        for number, holder in enumerate(self._inside):
            if holder is value:
                return ["again", number]
        self._inside.append(value)
        try:
            return self._parts(value)
        finally:
            self._inside.pop()

    def _parts(self, value: Any) -> Any:
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, ModuleType):
            return self._module(value)
        if isinstance(value, type):
            return self._class(value)
        plain = isinstance(value, _PLAIN)
        parts = repr(value) if plain else list(map(self.described, self._held(value)))
        return [self.described(type(value)), parts]

    def _held(self, value: Any) -> Iterable[Any]:
        """What the value consists of; nothing where that is unknown."""
        for kind, parts in _HELD.items():
            if isinstance(value, kind):
                return parts(value)
        if isinstance(value, Mapping):
            return self._items(value)
        if isinstance(value, (set, frozenset)):
            return sorted(json.dumps(self.described(item)) for item in value)
        if is_dataclass(value):
            return ((field.name, getattr(value, field.name, None)) for field in fields(value))
        home = sys.modules.get(type(value).__module__)
        is_known = isinstance(value, SimpleNamespace) or not _is_installed(home)
        return getattr(value, "__dict__", {}).items() if is_known else ()

    def _items(self, value: Mapping[Any, Any]) -> Iterable[tuple[Any, Any]]:
        """Without what may differ of the parameters, which a notebook has as a dictionary, too."""
        free = [name for name in FREE if name in value and self._is_parameter(name, value[name])]
        return ((key, part) for key, part in value.items() if key not in free)

    def _function(self, function: FunctionType) -> Any:
        name = _name(function)
        parts: list[Any] = [self.described(getattr(function, "__wrapped__", None))]
        if _is_installed(sys.modules.get(function.__module__)):
            return [name, *parts]
        space = function.__globals__
        for other in dict.fromkeys(_globals_in(function.__code__)):
            if (id(space), other) in self._named or other not in space:
                continue
            self._named.add((id(space), other))
            if not self._is_parameter(other, space[other]):
                self.waiting.append((other, space[other]))
        parts += map(self.described, (function.__defaults__, function.__kwdefaults__))
        parts += [self.described(_content(cell)) for cell in function.__closure__ or ()]
        return [_source(function), *parts]

    def _class(self, kind: type) -> Any:
        if _is_installed(sys.modules.get(kind.__module__)):
            return _name(kind)
        own = {name: part for name, part in vars(kind).items() if name not in _OF_CLASSES}
        parts = {name: getattr(part, "__func__", part) for name, part in own.items()}
        parts |= {
            f"{name}.{role}": getattr(part, role)
            for name, part in own.items()
            if isinstance(part, property)
            for role in ("fget", "fset", "fdel")
        }
        return [_name(kind), *map(self.described, (kind.__bases__, parts))]

    def _module(self, module: ModuleType) -> Any:
        """Its text, and those of the modules that it has in turn."""
        file = _file(module)
        if file is None or _is_installed(module) or file in self._files:
            return module.__name__
        others = {
            other.__name__: other
            for value in vars(module).values()
            if (other := value if isinstance(value, ModuleType) else _home(value)) is not None
            and other is not module
        }
        parts = [self.described(others[name]) for name in sorted(others)]
        return [file.name, file.read_text(encoding="utf-8"), *parts]

    def _is_parameter(self, name: str, value: Any) -> bool:
        known = self._parameters.get(name)
        return name in self._parameters and type(known) is type(value) and known == value


def _name(thing: Any) -> list[str]:
    return [thing.__module__, thing.__qualname__]


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it has none yet
        return None


def _home(value: object) -> ModuleType | None:
    """The module that a function or class comes from."""
    is_one = isinstance(value, (FunctionType, type))
    return sys.modules.get(value.__module__) if is_one else None


def _globals_in(code: CodeType) -> Iterator[str]:
    """Global names in a function or one within it; ``co_names`` would have attributes as well."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}:
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_in(constant)


def _source(function: FunctionType) -> Any:
    try:
        return inspect.getsource(function.__code__)  # which is not unwrapped
    except (OSError, TypeError):  # defined where no source is kept, such as a prompt
        return _compiled(function.__code__)


def _compiled(code: CodeType) -> list[Any]:
    constants = [_compiled(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return [code.co_code.hex(), list(code.co_names), constants]


@functools.cache
def _installed() -> list[Path]:
    ours = Path(__file__).resolve().parents[1]
    return [ours, *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))]


@functools.cache
def _is_installed(module: ModuleType | None) -> bool:
    """Whether it comes with Python, with a package or with us, and not with a notebook."""
    if module is None or module.__name__ == "__main__":
        return False
    file = _file(module)
    if file is None:
        return True
    packaged = {"site-packages", "dist-packages"} & set(file.parts)
    return bool(packaged) or any(file.is_relative_to(place) for place in _installed())


def _file(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file else None
