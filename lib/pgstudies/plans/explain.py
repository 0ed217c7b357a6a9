"""The plan of a query, asked of a server without running it, and what two plans have in common."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from psycopg.pq import ExecStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg.rows import TupleRow

    from .queries import Query


Node = dict[str, Any]
"""A node of EXPLAIN's JSON."""


class Plan(NamedTuple):
    """The plan of a query, or why there is none."""

    root: Node | None
    reason: str = ""


_SHAPE = (
    "Node Type",
    "Strategy",
    "Partial Mode",
    "Operation",
    "Join Type",
    "Parallel Aware",
    "Index Name",
    "Relation Name",
    "CTE Name",
    "Function Name",
)
"""What makes two nodes the same; not their estimates."""


_CONDITIONS = (
    "Hash Cond",
    "Merge Cond",
    "Join Filter",
    "Index Cond",
    "Recheck Cond",
    "Filter",
    "Sort Key",
    "Presorted Key",
    "Group Key",
    "Cache Key",
)


_GENERIC_PLAN = 160000
"""From here on EXPLAIN takes a query with parameters."""


_CACHE_MODE = 120000
"""From here on a prepared statement can be planned generically at once."""


def explain(connection: psycopg.Connection[TupleRow], query: Query) -> Plan:
    """The plan for any values of the query's parameters; nothing is executed."""
    version, count = connection.info.server_version, query.parameters
    if count and version < _CACHE_MODE:
        return Plan(None, "servers before 12 plan a query with parameters for given values only")
    # By the extended protocol, which takes one statement only: a second would be executed below.
    prepared = connection.pgconn.exec_params(
        f"PREPARE pgstudies_query AS {query.text}".encode(), None
    )
    if prepared.status != ExecStatus.COMMAND_OK:
        return Plan(None, _said(prepared))
    try:
        if version >= _GENERIC_PLAN:
            return _asked(connection, f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {query.text}")
        if count:
            connection.execute("SET plan_cache_mode = force_generic_plan")
        values = f"({', '.join(['NULL'] * count)})" if count else ""
        plan = _asked(connection, f"EXPLAIN (FORMAT JSON) EXECUTE pgstudies_query{values}")
        if count and plan.root and _has_pruned(plan.root):
            return Plan(None, "servers before 16 choose partitions for given values only")
        return plan
    finally:
        connection.execute("DEALLOCATE pgstudies_query")


def _asked(connection: psycopg.Connection[TupleRow], statement: str) -> Plan:
    done = connection.pgconn.exec_(statement.encode())
    value = done.get_value(0, 0) if done.status == ExecStatus.TUPLES_OK else None
    return Plan(None, _said(done)) if value is None else Plan(json.loads(value)[0].get("Plan", {}))


def _said(result: psycopg.pq.abc.PGresult) -> str:
    said = result.error_field(psycopg.pq.DiagnosticField.MESSAGE_PRIMARY) or b"no answer"
    if b"multiple commands" in said:
        return "it is several statements: give each a file, or a line -- name: above it"
    return said.decode("utf-8", "replace")


def _has_pruned(node: Node) -> bool:
    return bool(node.get("Subplans Removed")) or any(map(_has_pruned, node.get("Plans", ())))


def is_same(one: Node, other: Node) -> bool:
    """Whether two plans do the same: their nodes, not their estimates."""
    return _shape(one) == _shape(other)


def _shape(node: Node) -> tuple[object, ...]:
    return (*_kind(node), *map(_shape, node.get("Plans", ())))


def _kind(node: Node) -> tuple[object, ...]:
    # Releases call an index scan without a direction Forward, or NoMovement.
    return (*map(node.get, _SHAPE), node.get("Scan Direction") == "Backward")


class Line(NamedTuple):
    """A line of a plan: how deep it stands, what it says, and the node's estimates."""

    depth: int
    text: str
    rows: float | None = None
    cost: float | None = None


def lines_of(node: Node, depth: int = 0) -> Iterator[Line]:
    """The plan as EXPLAIN's text has it."""
    yield Line(depth, _title(node), node.get("Plan Rows"), node.get("Total Cost"))
    for name in _CONDITIONS:
        if name in node:
            value = node[name]
            said = ", ".join(map(str, value)) if isinstance(value, list) else value
            yield Line(depth + 1, f"{name}: {said}")
    for child in node.get("Plans", ()):
        yield from lines_of(child, depth + 1)


def _title(node: Node) -> str:
    words = ["Parallel"] if node.get("Parallel Aware") else []
    kind = node["Node Type"]
    strategy = node.get("Strategy", "")
    if kind == "Aggregate" and strategy != "Plain":
        kind = {"Hashed": "HashAggregate", "Sorted": "GroupAggregate"}.get(strategy, kind)
    if kind == "ModifyTable":
        kind = node.get("Operation", kind)
    if node.get("Partial Mode") in {"Partial", "Finalize"}:
        words.insert(0, node["Partial Mode"])
    join = node.get("Join Type", "Inner")
    if "Join" in kind and join != "Inner":
        kind = kind.replace("Join", f"{join} Join")
    elif kind == "Nested Loop" and join != "Inner":
        kind = f"Nested Loop {join} Join"
    words.append(kind)
    if node.get("Scan Direction") == "Backward":
        words.append("Backward")
    if "Index Name" in node:
        words += ["using" if "Relation Name" in node else "on", str(node["Index Name"])]
    place = str(node.get("Relation Name") or node.get("CTE Name") or node.get("Function Name", ""))
    if place:
        alias = str(node.get("Alias", place))
        words += ["on", place, *([alias] if alias != place else [])]
    return " ".join(words)


def parting(one: Node, other: Node) -> tuple[str, str]:
    """The lines of two plans at which they part, from the root down."""
    if _kind(one) != _kind(other):
        return _title(one), _title(other)
    below, beside = one.get("Plans", ()), other.get("Plans", ())
    for mine, theirs in zip(below, beside, strict=False):
        if not is_same(mine, theirs):
            return parting(mine, theirs)
    return _title(one), _title(other)
