"""The plan of a query, without running it, and the comparison of two plans."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from pgservers.foreign import as_postgres
from pgservers.sessions import within

from .sessions import as_sent
from .statements import first_word, has_parameters, plannable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from psycopg.rows import TupleRow

    from .queries import Query


Node = dict[str, Any]
"""A node of EXPLAIN's JSON."""


class QueryPlan(NamedTuple):
    """The plan of a query, or the reason why there is none, with the error's SQLSTATE.

    With ``is_unpruned`` it was planned without partition pruning.  ``rows_of`` is the query that
    was planned in place of one that writes what our role may not write.
    """

    root: Node | None
    reason: str = ""
    code: str = ""
    is_unpruned: bool = False
    rows_of: str = ""


_SHAPE = (
    *("Node Type", "Strategy", "Partial Mode", "Operation", "Join Type", "Parallel Aware"),
    *("Index Name", "Relation Name", "CTE Name", "Function Name"),
)
"""The fields in which two equal nodes agree; estimates are not among them."""

_CONDITIONS = (
    *("Hash Cond", "Merge Cond", "Join Filter", "Index Cond", "Recheck Cond", "Filter"),
    *("Sort Key", "Presorted Key", "Group Key", "Cache Key"),
)

_CATALOGS = {"pg_catalog", "information_schema", "pg_toast"}

_OF_PARTS = {"Append", "Merge Append"}

_HASHED = re.compile(r"hashed (SubPlan \d+)")

_SET_KNOWN = """
    SELECT pg_catalog.set_config(name, %s, true) FROM pg_catalog.pg_settings WHERE name = %s
"""

# An error that is caught is not logged.  A full disk ends the command.
_QUIETLY = """
    DO $pgstudies$
    DECLARE answer pg_catalog.text; reason pg_catalog.text; code pg_catalog.text;
        cursor_of pg_catalog.refcursor;
    BEGIN
        {how};
        PERFORM pg_catalog.set_config('pgstudies.answer', COALESCE(answer, ''), true);
    EXCEPTION WHEN disk_full THEN
        RAISE;
    WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS reason = MESSAGE_TEXT, code = RETURNED_SQLSTATE;
        PERFORM pg_catalog.set_config('pgstudies.reason', reason, true),
                pg_catalog.set_config('pgstudies.code', code, true);
    END $pgstudies$
"""

_STATEMENT = "EXECUTE pg_catalog.current_setting('pgstudies.statement')"

# A cursor takes one statement, and no PREPARE, so nothing is executed.  Both errors have the same
# SQLSTATE, and messages are in the server's language: they are compared.
_OPENED = f"OPEN cursor_of FOR {_STATEMENT}"

_PREPARE = "PREPARE pgstudies_query AS"

_NO_CURSOR = "42P11"

_ASK = """
    SELECT pg_catalog.set_config('pgstudies.statement', %s, true),
           pg_catalog.set_config('pgstudies.answer', '', true),
           pg_catalog.set_config('pgstudies.reason', '', true),
           pg_catalog.set_config('pgstudies.code', '', true)
"""

_ANSWER = """
    SELECT pg_catalog.current_setting('pgstudies.answer'),
           pg_catalog.current_setting('pgstudies.reason'),
           pg_catalog.current_setting('pgstudies.code')
"""

_EDGE = 0.02
"""The largest relative difference in cost of two plans on the edge."""

_GENERIC_PLAN = 160000
"""The first release whose EXPLAIN takes a query with parameters."""

UNPRUNED = {"enable_partition_pruning": "off"}
"""The setting that keeps all partitions in a plan."""

_CACHE_MODE = 120000
"""The first release with plan_cache_mode."""

_LONGEST_S = 90.0
"""The limit for one query (s), as a function can catch the error of statement_timeout."""

_DEEPEST = 300
"""The deepest plan that is read, in nodes; Python's recursion limit is a thousand."""


@as_postgres("The server")
def explain(
    connection: psycopg.Connection[TupleRow],
    query: Query,
    search_path: str,
    settings: Mapping[str, str] = {},
) -> QueryPlan:
    """The generic plan of a query, for any values of its parameters.

    Settings that the server does not know are ignored.  The transaction is read-only and rolled
    back, so that functions which the planner evaluates write nothing and leave no setting.  Raises
    ServerError if planning does not end, and psycopg.Error if the connection is lost or a disk is
    full.
    """
    with within(connection, _LONGEST_S, f"Planning the query {query.name}"):
        try:
            connection.execute("BEGIN READ ONLY")
            _set_here(connection, {**settings, "search_path": search_path})
            return _plan(connection, query)
        except psycopg.errors.DiskFull:
            raise
        except psycopg.Error as error:
            if connection.closed:
                raise
            return QueryPlan(None, _message(error), error.sqlstate or "")
        finally:
            if not connection.closed:
                connection.execute("ROLLBACK")
                connection.execute("DEALLOCATE ALL")


def _plan(connection: psycopg.Connection[TupleRow], query: Query) -> QueryPlan:
    text = plannable(query.text)
    if ";" in text and (refused := _refused(connection, text)):
        return refused
    version = connection.info.server_version
    # Without parameters all releases leave out partitions by now() and the like; a generic plan
    # has all of them.
    is_generic = version >= _GENERIC_PLAN and has_parameters(text)
    if version >= _GENERIC_PLAN or first_word(text) == "DECLARE":
        generic = "GENERIC_PLAN, " if is_generic else ""
        return _asked(connection, f"EXPLAIN ({generic}VERBOSE, FORMAT JSON) {text}")
    prepare = f"{_PREPARE} {text}"
    _, reason, code = _quietly(connection, prepare, _STATEMENT)
    if code:
        return QueryPlan(None, reason, code)
    row = connection.execute(
        "SELECT pg_catalog.array_length(parameter_types, 1) FROM pg_catalog.pg_prepared_statements"
    ).fetchone()
    count = int(row[0] or 0) if row else 0
    if count and version < _CACHE_MODE:
        why = "servers before 12 plan a query with parameters for given values only"
        return QueryPlan(None, why)
    if count:
        _set_here(connection, {"plan_cache_mode": "force_generic_plan"})
    values = f"({', '.join(['NULL'] * count)})" if count else ""
    execute = f"EXPLAIN (VERBOSE, FORMAT JSON) EXECUTE pgstudies_query{values}"
    plan = _asked(connection, execute)
    if not (count and plan.root and _has_pruned(plan.root)):
        return plan
    # These releases leave out the partitions that the values (NULL) do not need.
    _set_here(connection, UNPRUNED)
    connection.execute("DEALLOCATE pgstudies_query")
    _quietly(connection, prepare, _STATEMENT)
    return _asked(connection, execute)._replace(is_unpruned=True)


def _refused(connection: psycopg.Connection[TupleRow], text: str) -> QueryPlan | None:
    """Why a text of several statements is not planned: the second would be executed."""
    _, of_one, _ = _quietly(connection, f"{_PREPARE} SELECT 1", _OPENED)
    _, reason, code = _quietly(connection, f"{_PREPARE} {text}", _OPENED)
    if of_one and reason == of_one:
        return None
    if code == _NO_CURSOR:
        reason = "it is several statements: give each a file, or a line -- name: above it"
    return QueryPlan(None, reason, code)


def _set_here(connection: psycopg.Connection[TupleRow], settings: Mapping[str, str]) -> None:
    """Set, for the transaction, the settings that the server knows."""
    for name, value in settings.items():
        connection.execute(_SET_KNOWN, [value, name])


def _quietly(
    connection: psycopg.Connection[TupleRow], statement: str, how: str = f"{_STATEMENT} INTO answer"
) -> tuple[str, str, str]:
    """A statement's result, or message and SQLSTATE of its error, which is kept out of the log."""
    connection.execute(_ASK, [as_sent(connection, statement)])
    connection.execute(_QUIETLY.format(how=how).encode())
    result = connection.execute(_ANSWER).pgresult
    values = (result.get_value(0, column) if result else None for column in range(3))
    answer, reason, code = ((value or b"").decode("utf-8", "replace") for value in values)
    return answer, reason, code


def _asked(connection: psycopg.Connection[TupleRow], statement: str) -> QueryPlan:
    answer, reason, code = _quietly(connection, statement)
    if code:
        return QueryPlan(None, reason, code)
    try:
        root = json.loads(answer)[0]["Plan"]
    except (ValueError, LookupError, TypeError, RecursionError):
        root = None
    if not _is_node(root):
        return QueryPlan(None, "its answer is no plan that can be read")
    return QueryPlan(root)


def _is_node(value: object, depth: int = 0) -> bool:
    """Whether this has the form of a plan: the server is not trusted."""
    if not isinstance(value, dict) or depth > _DEEPEST:
        return False
    below = value.get("Plans", [])
    return (
        isinstance(value.get("Node Type"), str)
        and all(isinstance(value.get(name, ""), str | bool) for name in _SHAPE)
        and all(isinstance(value.get(n, 0), int | float) for n in ("Plan Rows", "Total Cost"))
        and isinstance(below, list)
        and all(_is_node(node, depth + 1) for node in below)
    )


def _message(error: psycopg.Error) -> str:
    result = error.pgresult
    field = psycopg.pq.DiagnosticField.MESSAGE_PRIMARY
    message = (result.error_field(field) if result else None) or str(error).encode()
    return message.decode("utf-8", "replace")


def tables_of(node: Node) -> set[str]:
    """The tables that a plan names, without the server's own; an empty name for pruned ones."""
    name = str(node.get("Relation Name", ""))
    own = {name} if name and str(node.get("Schema")) not in _CATALOGS else set()
    gone = node.get("Subplans Removed") or node.get("One-Time Filter") == "false"
    return own.union({""} if gone else (), *map(tables_of, node.get("Plans", ())))


def _has_pruned(node: Node) -> bool:
    return bool(node.get("Subplans Removed")) or any(map(_has_pruned, node.get("Plans", ())))


def is_same(one: Node, other: Node) -> bool:
    """Whether two plans have the same nodes and hash the same subplans; estimates may differ."""
    return _shape(one) == _shape(other) and len(_hashed(one)) == len(_hashed(other))


def _hashed(node: Node) -> set[str]:
    """The subplans whose rows are hashed: they stand in conditions and outputs."""
    texts = (str(node[name]) for name in (*_CONDITIONS, "Output") if name in node)
    found = {name for text in texts for name in _HASHED.findall(text)}
    return found.union(*map(_hashed, node.get("Plans", ())))


def growth(one: Node, other: Node) -> float:
    """The estimated cost of the second plan to that of the first."""
    before, after = (float(node.get("Total Cost", 0)) for node in (one, other))
    return after / before if before > 0 else 1.0


def are_close(one: Node, other: Node) -> bool:
    """Whether two plans are on the edge: their estimated costs are within 2 %."""
    costs = [float(node.get("Total Cost", 0)) for node in (one, other)]
    return max(costs) - min(costs) <= _EDGE * max(costs)


def _shape(node: Node) -> tuple[object, ...]:
    return (*_kind(node), *map(_shape, node.get("Plans", ())))


def _kind(node: Node) -> tuple[object, ...]:
    # Releases call an index scan without a direction Forward, or NoMovement.
    # Earlier ones leave out what is false.
    return (*(node.get(n) or None for n in _SHAPE), node.get("Scan Direction") == "Backward")


class Line(NamedTuple):
    """A line of a plan: how deep it stands, what it says, and the node's estimates."""

    depth: int
    text: str
    rows: float | None = None
    cost: float | None = None


def lines_of(node: Node, depth: int = 0) -> Iterator[Line]:
    """The plan as EXPLAIN's text has it; of partitions with plans alike only the first."""
    yield Line(depth, _title(node), node.get("Plan Rows"), node.get("Total Cost"))
    for name in _CONDITIONS:
        if name in node:
            value = node[name]
            text = ", ".join(map(str, value)) if isinstance(value, list) else value
            yield Line(depth + 1, f"{name}: {text}")
    last, more = None, 0
    for child in node.get("Plans", ()):
        form = _form(child) if node["Node Type"] in _OF_PARTS else None
        if form is not None and form == last:
            more += 1
            continue
        if more:
            yield Line(depth + 1, f"and {more} more like it")
        yield from lines_of(child, depth + 1)
        last, more = form, 0
    if more:
        yield Line(depth + 1, f"and {more} more like it")


def _form(node: Node) -> tuple[object, ...]:
    """The shape of a part's plan without the names of its table and indexes."""
    own = (node.get(name) for name in _SHAPE if name not in {"Index Name", "Relation Name"})
    return (*own, len(_hashed(node)), *map(_form, node.get("Plans", ())))


def _title(node: Node) -> str:
    kind, join = str(node["Node Type"]), node.get("Join Type", "Inner")
    if kind == "Aggregate":
        named = {"Hashed": "HashAggregate", "Sorted": "GroupAggregate"}
        kind = named.get(node.get("Strategy", ""), kind)
    if kind == "ModifyTable":
        kind = str(node.get("Operation", kind))
    if join != "Inner" and kind == "Nested Loop":
        kind = f"Nested Loop {join} Join"
    elif join != "Inner":
        kind = kind.replace("Join", f"{join} Join")
    mode = node.get("Partial Mode")
    words = [str(mode)] if mode in {"Partial", "Finalize"} else []
    words += ["Parallel"] if node.get("Parallel Aware") else []
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
    """The lines at which two plans first differ, from the root down."""
    if _kind(one) == _kind(other):
        for mine, theirs in zip(one.get("Plans", ()), other.get("Plans", ()), strict=False):
            if not is_same(mine, theirs):
                return parting(mine, theirs)
    if _shape(one) == _shape(other):
        counts = (len(_hashed(node)) for node in (one, other))
        was, becomes = (f"{_title(one)} with {count} hashed subplans" for count in counts)
        return was, becomes
    return _title(one), _title(other)
