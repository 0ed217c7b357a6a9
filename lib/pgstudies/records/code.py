"""The code that a run measures with, as digests by name: once it is edited, a run is another one.

What counts is the syntax of statements and modules: comments, docstrings and layout do not.
"""

from __future__ import annotations

import ast
import functools
import gc
import hashlib
import importlib.util
import inspect
import json
import os
import symtable
import sys
import sysconfig
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

FREE = {"blocks", "server"}
"""The parameters in which the sessions of one run may differ."""

_LIB = Path(__file__).resolve().parents[2]
_SAYS_NOTHING = {"analysis", "charts"}  # of what is measured

_LOADED_AT = time.time()
"""A module whose file changed later is not what its file says."""

_CHANGING = {"add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "register",
             "remove", "reverse", "seed", "setdefault", "sort", "update"}  # fmt: skip
_BINDING = (ast.Assign, ast.AnnAssign, ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
_EVERYTHING = "*"


def code_digests(
    functions: Mapping[str, Callable[..., Any]],
    room: Path | None,
    parameters: Mapping[str, Any],
    also: Iterable[str] = (),
) -> dict[str, str]:
    """Digests by the names of a notebook's globals, and of modules by their paths below lib/.

    Of a notebook those statements count, of the cells that were executed, that make what
    ``functions``, by their roles, reach: for each global the last one that binds it, and what
    changes it after that.  ``parameters`` are compared by themselves.  Of modules, whole:
    ``pgservers`` and ``pgstudies``, but for analysis and charts; the module of a function; those of
    the study's directory, ``room``, and of ``pgapps`` and the reader's own that what counts names;
    and the modules ``also``.  A room's tables count where they are named.

    Code of which no source is kept is like none of another process.
    """
    inner = {role: inspect.unwrap(getattr(f, "func", f)) for role, f in functions.items()}
    spaces = (getattr(function, "__globals__", {}) for function in inner.values())
    space: Mapping[str, Any] = next((s for s in spaces if "In" in s), {})
    files = [Path(inspect.getfile(f)) for f in inner.values() if isinstance(f, FunctionType)]
    files = [file for file in files if file.is_file()]
    found: dict[str, list[str]] = defaultdict(list)
    names = {_EVERYTHING}
    for role, function in inner.items():
        found[role].append(getattr(function, "__qualname__", ""))
        found[role] += [] if space or files else [_this_process()]
        own = {name for name, value in space.items() if value is functions[role]}
        names |= own or {n for s in _statements([*space.get("In", ())][-1:]) for n in s.loads}
    known = {n for n, v in parameters.items() if type(space.get(n)) is type(v) and space[n] == v}
    trees: list[ast.AST] = [ast.parse(f"import {name}") for name in also]
    for name, statements in _reached(names, known, _statements(space.get("In", ()))).items():
        found[name] += [_syntax(s.tree) for s in statements]
        trees += [s.tree for s in statements]
    for file in sorted(_files(files, trees, room)):
        name = file.relative_to(_LIB).as_posix() if file.is_relative_to(_LIB) else file.name
        found[name].append(_content(file))
    return _library() | {name: _digest(parts) for name, parts in found.items() if parts}


@functools.cache
def _library() -> dict[str, str]:
    files = [f for name in ("pgservers", "pgstudies") for f in (_LIB / name).rglob("*.py")]
    counted = [f for f in files if not _SAYS_NOTHING & {*f.relative_to(_LIB).parts}]
    was_enabled = gc.isenabled()
    gc.disable()  # which takes a third of the time, and finds no cycle in a tree
    try:
        return {file.relative_to(_LIB).as_posix(): _digest([_content(file)]) for file in counted}
    finally:
        (gc.enable if was_enabled else gc.disable)()


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def _this_process() -> str:
    return f"{os.getpid()} {_LOADED_AT}"


def _content(file: Path) -> str:
    """What of a file counts.  A module that changed since it was loaded is like no other."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".py":
        return text
    module = sys.modules.get(f"notebooks.{file.parent.name}.{file.stem}")  # see study_module
    is_stale = file.stat().st_ctime > getattr(module, "__loaded_at__", _LOADED_AT)
    with suppress(SyntaxError):
        text = _syntax(ast.parse(text))
    return f"{text}\n{_this_process()}" if is_stale else text


def _syntax(tree: ast.AST) -> str:
    """A tree without docstrings, places and comments, in less time than ``ast.dump`` takes."""
    told: list[str] = []
    waiting: list[Any] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            kept = [n for n in node if not _is_text(n)]
            told.append(str(len(kept)))
            waiting += kept
        elif isinstance(node, ast.AST):
            told.append(type(node).__name__)
            waiting += [getattr(node, field, None) for field in node._fields]
        else:
            told.append(repr(node))
    return "\n".join(told)


def _is_text(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


@dataclass(frozen=True)
class _Statement:
    """A statement of a cell, and the globals that it has to do with."""

    tree: ast.stmt

    @cached_property
    def _table(self) -> symtable.SymbolTable:
        return symtable.symtable(ast.unparse(self.tree), "<cell>", "exec")

    @cached_property
    def loads(self) -> set[str]:
        """The globals that it, or a function in it, reads."""
        return _loaded(self._table)

    @cached_property
    def changes(self) -> set[str]:
        """The globals that it binds, or whose values it changes."""
        is_definition = isinstance(self.tree, (ast.FunctionDef, ast.ClassDef))
        within = getattr(self.tree, "decorator_list", ()) if is_definition else [self.tree]
        found = {s.get_name() for s in self._table.get_symbols() if _is_bound(s)}
        for node in (n for tree in within for n in ast.walk(tree)):
            if isinstance(node, (ast.Attribute, ast.Subscript)) and (
                not isinstance(node.ctx, ast.Load) or getattr(node, "attr", "") in _CHANGING
            ):
                found.add(_base(node))
        is_star = isinstance(self.tree, ast.ImportFrom) and self.tree.names[0].name == "*"
        is_magic = "get_ipython" in self.loads  # it may bind what nobody can tell
        return found | {_EVERYTHING} if is_star or is_magic else found

    def makes(self, name: str) -> bool:
        """Whether what the global was before makes no difference."""
        known = {s.get_name(): s for s in self._table.get_symbols()}
        has_value = getattr(self.tree, "value", self.tree) is not None
        is_binding = isinstance(self.tree, _BINDING) and has_value and name in known
        return is_binding and _is_bound(known[name]) and not known[name].is_referenced()


def _is_bound(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported()


def _loaded(table: symtable.SymbolTable) -> set[str]:
    is_module = table.get_type() == "module"
    symbols = table.get_symbols()
    own = {s.get_name() for s in symbols if (s.is_referenced() if is_module else s.is_global())}
    return own.union(*map(_loaded, table.get_children()))


def _base(node: Any) -> str:
    while node is not None and not isinstance(node, ast.Name):
        node = getattr(node, "value", getattr(node, "func", None))
    return node.id if node else ""


def _statements(cells: Iterable[str]) -> list[_Statement]:
    found: list[_Statement] = []
    for cell in cells:
        with suppress(SyntaxError):  # which was not executed
            found += map(_Statement, ast.parse(cell).body)
    return found


def _reached(
    names: Iterable[str], known: set[str], statements: Sequence[_Statement]
) -> dict[str, list[_Statement]]:
    """The statements that make ``names``, and what those read, but for what is ``known``."""
    found: dict[str, list[_Statement]] = {}
    waiting = [*names]
    while waiting:
        name = waiting.pop()
        if name in found or name in known:
            continue
        found[name] = []
        for statement in reversed(statements):
            if name in statement.changes:
                found[name].append(statement)
                waiting += statement.loads
                if statement.makes(name):
                    break
    return found


def _files(start: Iterable[Path], trees: Iterable[ast.AST], room: Path | None) -> set[Path]:
    """The files that count of those that ``trees`` and ``start`` name, and that those name."""
    arms = [room / "arms.py"] if room and (room / "arms.py").is_file() else []
    waiting = [*start, *arms, *(file for tree in trees for file in _named(tree, None, room))]
    found: set[Path] = set()
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            with suppress(SyntaxError):
                text = file.read_text(encoding="utf-8") if file.suffix == ".py" else ""
                waiting += _named(ast.parse(text), file, room)
    return found


def _named(tree: ast.AST, home: Path | None, room: Path | None) -> Iterator[Path]:
    """The files that a module ``home``, or a cell, imports or, of a room's, names."""
    nodes = [*_executed(tree)]
    for level, name in (imported for node in nodes for imported in _imported(node)):
        parts = name.split(".")
        if place := home.parents[level - 1] if level and home else _place(parts[0]):
            stems = [place.joinpath(*parts[: n + 1]) for n in range(len(parts))]
            files = (f for s in stems for f in (s.with_suffix(".py"), s / "__init__.py"))
            yield from (file for file in files if file.is_file())
    if room and (home is None or home.parent == room):
        words = {n.value if isinstance(n, ast.Constant) else getattr(n, "attr", 0) for n in nodes}
        for file in room.glob("*.*"):
            is_named = file.stem.removeprefix("published_") in words
            if is_named and file.suffix in {".py", ".csv", ".toml"}:
                yield file


def _imported(node: ast.AST) -> list[tuple[int, str]]:
    """What an import names, each with the number of its leading dots."""
    if isinstance(node, ast.Import):
        return [(0, alias.name) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        inside = f"{node.module}." if node.module else ""
        return [(node.level, f"{inside}{alias.name}") for alias in node.names]
    return []


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree, without what is there for the type checker alone."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)


@functools.cache
def _place(package: str) -> Path | None:
    """The directory that holds the reader's own package, or ours; None for what is installed."""
    if package in {"pgservers", "pgstudies"}:  # which count whole
        return None
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.has_location and spec.origin:
            file = Path(spec.origin).resolve()
            place = file.parents[1 if spec.submodule_search_locations else 0]
            installed = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
            packaged = {"site-packages", "dist-packages"} & set(place.parts)
            is_installed = packaged or any(place.is_relative_to(p.resolve()) for p in installed)
            return None if is_installed and place != _LIB else place
    return None
