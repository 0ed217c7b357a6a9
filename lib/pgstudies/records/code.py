"""The code that a run measures with, as digests by name: once it is edited, a run is another one.

What counts is the syntax of statements and modules: comments, docstrings and layout do not.
"""

from __future__ import annotations

import ast
import functools
import gc
import hashlib
import inspect
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

FREE = {"blocks", "server"}
"""The parameters that may differ between the sessions of one run."""

_LIB = Path(__file__).resolve().parents[2]
_SAYS_NOTHING = {"analysis", "charts"}  # of what is measured

_CHANGING = {"add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "register",
             "remove", "reverse", "seed", "setdefault", "sort", "update"}  # fmt: skip
_BINDING = (ast.Assign, ast.AnnAssign, ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
_DEFINING = (ast.FunctionDef, ast.ClassDef)


def code_digests(
    functions: Mapping[str, Callable[..., Any]],
    room: Path | None,
    parameters: Mapping[str, Any],
    also: Iterable[str] = (),
) -> dict[str, str]:
    """Digests of a notebook's globals by name, and of modules by their paths below lib/.

    A notebook's digests are of the executed statements that make what ``functions`` reach: for each
    global the last one that binds it, and later ones that change it.  ``parameters`` do not count:
    runs compare them on their own.  Modules count whole: ``pgservers`` and ``pgstudies`` without
    analysis and charts; the module of a function; and modules of ``pgapps`` and of the study's
    directory ``room`` that these or the modules ``also`` import.  A room's tables count if named.
    """
    inner = [inspect.unwrap(getattr(f, "func", f)) for f in functions.values()]
    spaces = (getattr(function, "__globals__", {}) for function in inner)
    space: Mapping[str, Any] = next((s for s in spaces if "In" in s), {})
    cells = space.get("In", ())
    passed = {n for statement in _statements(cells[-1:]) for n in _names(statement)}
    names: set[str] = set()
    for function in functions.values():  # one without a name is in the cell that passes it
        names |= {n for n, value in space.items() if value is function} or passed
    known = {n for n, v in parameters.items() if type(space.get(n)) is type(v) and space[n] == v}
    reached = _reached(names, known, _statements(cells))
    found = defaultdict(list, {n: [_syntax(s) for s in made] for n, made in reached.items()})
    for role, function in zip(functions, inner, strict=True):  # one file may have several
        found[role].insert(0, getattr(function, "__qualname__", ""))
    trees = [
        *(s for made in reached.values() for s in made),
        *(ast.parse(f"import {m}") for m in also),
    ]
    own = [Path(inspect.getfile(f)) for f in inner if isinstance(f, FunctionType)]
    for file in sorted(_files([f for f in own if f.is_file()], trees, room)):
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
    return hashlib.sha256("\n\n".join(parts).encode()).hexdigest()[:12]


def _content(file: Path) -> str:
    text = file.read_text(encoding="utf-8")
    with suppress(SyntaxError):
        return _syntax(ast.parse(text)) if file.suffix == ".py" else text
    return text


def _syntax(tree: ast.AST) -> str:
    """The text of a tree without docstrings and places; faster than ``ast.dump``."""
    told: list[str] = []
    waiting: list[Any] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            kept = [n for n in node if not isinstance(getattr(n, "value", 0), ast.Constant)
                    or not isinstance(n, ast.Expr)]  # fmt: skip
            told.append(str(len(kept)))
            waiting += kept
        elif isinstance(node, ast.AST):
            told.append(type(node).__name__)
            waiting += [getattr(node, field, None) for field in node._fields]
        else:
            told.append(repr(node))
    return "\n".join(told)


def _statements(cells: Iterable[str]) -> list[ast.stmt]:
    found: list[ast.stmt] = []
    for cell in cells:
        with suppress(SyntaxError):  # which was not executed
            found += ast.parse(cell).body
    return found


def _names(tree: ast.AST) -> set[str]:
    """The names that a tree reads, including locals."""
    nodes = (n for n in ast.walk(tree) if isinstance(n, ast.Name))
    return {n.id for n in nodes if isinstance(n.ctx, ast.Load)}


def _bound(statement: ast.stmt) -> set[str]:
    """The globals that a statement binds."""
    if isinstance(statement, _DEFINING):
        return {statement.name}
    nodes = [*ast.walk(statement)]
    found = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    aliases = (n for n in nodes if isinstance(n, ast.alias))
    return found | {(alias.asname or alias.name).partition(".")[0] for alias in aliases}


def _changed(statement: ast.stmt) -> set[str]:
    """The globals whose values a statement changes."""
    trees = statement.decorator_list if isinstance(statement, _DEFINING) else [statement]
    return {
        _base(node)
        for node in (n for tree in trees for n in ast.walk(tree))
        if isinstance(node, (ast.Attribute, ast.Subscript))
        and (not isinstance(node.ctx, ast.Load) or getattr(node, "attr", "") in _CHANGING)
    }


def _base(node: Any) -> str:
    while node is not None and not isinstance(node, ast.Name):
        node = getattr(node, "value", getattr(node, "func", None))
    return node.id if node else ""


def _reached(
    names: Iterable[str], known: set[str], statements: Sequence[ast.stmt]
) -> dict[str, list[ast.stmt]]:
    """The statements, by global, that make ``names`` and what they read, except ``known`` ones."""
    made: dict[str, list[ast.stmt]] = defaultdict(list)
    for statement in statements:
        reads, bound = _names(statement), _bound(statement)
        for name in bound | _changed(statement):
            has_value = getattr(statement, "value", statement) is not None
            is_definition = isinstance(statement, _DEFINING) or name not in reads
            if isinstance(statement, _BINDING) and has_value and name in bound and is_definition:
                made[name].clear()
            made[name].append(statement)
    found: dict[str, list[ast.stmt]] = {}
    waiting = [*names]
    while waiting:
        name = waiting.pop()
        if name not in found and name not in known and name in made:
            found[name] = made[name]
            waiting += (read for statement in made[name] for read in _names(statement))
    return found


def _files(start: Iterable[Path], trees: Iterable[ast.AST], room: Path | None) -> set[Path]:
    """The files that count: ``start``, arms.py, and what they and ``trees`` import, in depth."""
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
        place = home.parents[level - 1] if level and home else _LIB
        if level or parts[0] == "pgapps":
            stems = (place.joinpath(*parts[: n + 1]) for n in range(len(parts)))
            yield from (f for stem in stems if (f := stem.with_suffix(".py")).is_file())
    if room and (home is None or home.parent == room):
        words = {n.value if isinstance(n, ast.Constant) else getattr(n, "attr", 0) for n in nodes}
        for file in room.glob("*.*"):
            is_named = file.stem.removeprefix("published_") in words
            if is_named and file.suffix in {".py", ".csv", ".toml"}:
                yield file


def _imported(node: ast.AST) -> list[tuple[int, str]]:
    """The modules that an import names, each with the number of its leading dots."""
    if isinstance(node, ast.Import):
        return [(0, alias.name) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        inside = f"{node.module}." if node.module else ""
        return [(node.level, f"{inside}{alias.name}") for alias in node.names]
    return []


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree, without those under TYPE_CHECKING."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)
