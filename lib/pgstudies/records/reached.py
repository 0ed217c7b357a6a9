"""What a study's functions reach, as digests by name: an edited notebook measures something else.

A function counts by its source and its code, for a file may be edited after it was loaded; plain
data by value; a module by its text; and what an installed package has by its name, as the versions
of packages are alike.  Of an object that is none of these, such as one of a package's classes that
is no frozen dataclass, the type counts, and where a global names it, the statement that made it.
"""

from __future__ import annotations

import ast
import dis
import functools
import hashlib
import importlib.util
import inspect
import itertools
import json
import re
import sys
import sysconfig
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
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

import numpy as np
import polars as pl
from psycopg import sql

from ..rooms import names_set

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
    BuiltinFunctionType: lambda value: (value.__module__, value.__qualname__, value.__self__),
    CodeType: lambda value: (value.co_code, value.co_names, value.co_consts),
    MethodType: lambda value: (value.__func__, value.__self__),
    functools.partial: lambda value: (value.func, value.args, value.keywords),
    functools.cached_property: lambda value: (value.func,),
    type(functools.cache(repr)): lambda value: (value.__wrapped__,),
    np.ndarray: lambda value: (value.dtype.str, value.tolist()),
    pl.DataFrame: lambda value: (repr(value.schema), value.rows()),
    pl.Series: lambda value: (value.name, repr(value.dtype), value.to_list()),
}

# What Python itself keeps in a class.
_OF_CLASSES = {"__dict__", "__weakref__", "__firstlineno__", "__static_attributes__", "__doc__"}


class Reached:
    """Digests, by name, of what ``functions`` reach; ``files`` are modules that all count.

    A module goes by the name of its file, and everything else by that of the global.

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
            if before != digest and not is_module(name):  # which its user has changed, not the run
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
        name, value, space = walk.waiting.pop(0)
        walk.is_opaque = False
        described = walk.described(value)
        made = _statements(name, space.get("In", ())) if walk.is_opaque else []
        while name in found:  # in another module
            name += "'"
        found[name] = _digest([described, *made])
    return found


def is_module(name: str) -> bool:
    """Whether what goes by this name is a module."""
    return name.rstrip("'").endswith(".py")


def _statements(name: str, cells: Iterable[str]) -> list[str]:
    """Those that set a global, in the last cell that does, of those that a kernel has executed."""
    for cell in reversed([*cells]):
        with suppress(SyntaxError):
            found = [s for s in ast.parse(cell).body if name in names_set(ast.Module([s], []))]
            if found:
                return list(map(ast.unparse, found))
    return []


def _digest(described: object) -> str:
    return hashlib.sha256(json.dumps(described).encode(errors="surrogatepass")).hexdigest()[:12]


class _Walk:
    """Descriptions, as JSON has them, of values.

    The globals and modules that they name are ``waiting``: a name, a value, and where it is global.
    ``is_opaque`` is set where a value was met of which the type is all that can be described.
    """

    def __init__(self, files: set[Path], parameters: Mapping[str, Any]) -> None:
        self.waiting: list[tuple[str, Any, Mapping[str, Any]]] = []
        self.is_opaque = False
        self._files = files
        self._parameters = parameters
        self._named: set[tuple[int, str]] = set()
        self._read: set[Path] = set()
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
            if file := _file(value):
                self._file(file, value, value.__package__)
            return value.__name__
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
        is_ours = not _is_installed(sys.modules.get(type(value).__module__))
        params = getattr(value, "__dataclass_params__", None)
        if params is not None and (is_ours or params.frozen):
            return ((field.name, getattr(value, field.name, None)) for field in fields(value))
        if is_ours or isinstance(value, SimpleNamespace):
            return (object.__getstate__(value),)  # with what it has in slots
        self.is_opaque = True
        return ()

    def _items(self, value: Mapping[Any, Any]) -> Iterable[tuple[Any, Any]]:
        """Without what may differ of the parameters, which a notebook has as a dictionary, too."""
        free = [name for name in FREE if name in value and self._is_parameter(name, value[name])]
        return ((key, part) for key, part in value.items() if key not in free)

    def _function(self, function: FunctionType) -> Any:
        name = _name(function)
        parts: list[Any] = [self.described(getattr(function, "__wrapped__", None))]
        parts += [self.described(_content(cell)) for cell in function.__closure__ or ()]
        if _is_installed(sys.modules.get(function.__module__)):
            return [name, *parts]
        for other, attribute in dict.fromkeys(_globals_in(function.__code__)):
            self._global(function.__globals__, other, attribute)
        parts += map(self.described, (function.__defaults__, function.__kwdefaults__))
        self._imported(function.__code__)
        return [_source(function), self.described(function.__code__), *parts]

    def _global(self, space: Mapping[str, Any], name: str, attribute: str | None) -> None:
        if name not in space:
            return
        value = space[name]
        if isinstance(value, ModuleType) and attribute and not _is_installed(value):
            self._global(vars(value), attribute, None)
        if (id(space), name) not in self._named and not self._is_parameter(name, value):
            self._named.add((id(space), name))
            self.waiting.append((name, value, space))

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

    def _file(self, file: Path, module: ModuleType | None, package: str | None) -> None:
        """Let a module's text wait, and those of the modules that it imports, loaded or not."""
        if file in self._read or _is_installed_file(file):
            return
        self._read.add(file)
        text = file.read_text(encoding="utf-8")
        if file not in self._files:
            self.waiting.append((file.name, text, {}))
        for other in map(_home, vars(module).values() if module else ()):
            self.described(other)
        self._imported(compile(text, file, "exec"), package)

    def _imported(self, code: CodeType, package: str | None = None) -> None:
        steps = _instructions(code)
        for name in dict.fromkeys(s.argval for s in steps if s.opname == "IMPORT_NAME"):
            for full in (name, f"{package}.{name}") if package else (name,):
                with suppress(ImportError, ValueError):
                    spec = importlib.util.find_spec(full)
                    if spec is not None and spec.has_location and spec.origin:
                        file = Path(spec.origin).resolve()
                        self._file(file, sys.modules.get(full), spec.parent)

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
    """The module that something is or comes from."""
    if isinstance(value, (FunctionType, type)):
        return sys.modules.get(value.__module__)
    return value if isinstance(value, ModuleType) else None


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    """Those of code and of the functions within it."""
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions(constant)


def _globals_in(code: CodeType) -> Iterator[tuple[str, str | None]]:
    """Global names, each with the attribute that is asked for; ``co_names`` would mix the two."""
    for one, after in itertools.pairwise(_instructions(code)):  # the last one returns
        if one.opname in {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}:
            is_followed = after.opname in {"LOAD_ATTR", "LOAD_METHOD"}
            yield one.argval, after.argval if is_followed else None


def _source(function: FunctionType) -> str | None:
    try:
        return inspect.getsource(function.__code__)  # which is not unwrapped
    except (OSError, TypeError):  # defined where no source is kept, such as a prompt
        return None


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
    return file is None or _is_installed_file(file)


def _is_installed_file(file: Path) -> bool:
    packaged = {"site-packages", "dist-packages"} & set(file.parts)
    return bool(packaged) or any(file.is_relative_to(place) for place in _installed())


def _file(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file else None
