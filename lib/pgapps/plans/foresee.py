"""Which queries would get another plan on another release, or with other settings."""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from pgservers.errors import ServerError, StudyError
from pgservers.programs.installations import find_binaries

from .empty_copy import RESTORES_STATISTICS, EmptyCopy, empty_copy
from .explain import UNPRUNED, Node, QueryPlan, are_close, explain, is_same, tables_of
from .lacking import lacking
from .source import target_of
from .statements import names_only_catalogs, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .lacking import Lacking
    from .queries import Query
    from .source import Source


# Tables, functions and types.
_NOT_FOUND = {"42P01", "42883", "42704"}

_WITH_SCHEMA = re.compile(r"\w\.\w")

_DENIED = "42501"

_NO_TABLE = "that name no table but the catalogs"

# What writes has no parallel workers.
_SERIAL = {"max_parallel_workers_per_gather": "0"}

Verdict = Literal["same", "another plan", "not judged"]


@dataclass(frozen=True)
class Foreseen:
    """The prediction for one query.

    Attributes:
        query: The query.
        verdict: Whether its plan stays the same.
        before: Its present plan, if there is one.
        after: The plan foreseen.
        reason: Why it is not judged.
        is_reproduced: Whether the control has the server's own plan; none where one is missing.

    """

    query: Query
    verdict: Verdict
    before: Node | None = None
    after: Node | None = None
    reason: str = ""
    is_reproduced: bool | None = None

    @property
    def is_on_edge(self) -> bool:
        """Whether it gets another plan of nearly the same estimated cost."""
        is_other = self.verdict == "another plan" and self.before and self.after
        return bool(is_other) and are_close(self.before or {}, self.after or {})


@dataclass(frozen=True)
class Foresight:
    """All queries, and the servers that were asked.

    Attributes:
        queries: One entry each, in the order given.
        before: The server of the plans before, in words.
        after: The server of the plans after, in words.
        no_control: Why no copy of the server's own release was asked for its plans, or nothing.
        notes: What could not be copied, and what was planned in place of queries.
        left_out: The server's other statements, counted by the reason why they are not asked for.

    """

    queries: Sequence[Foreseen]
    before: str
    after: str
    no_control: str
    notes: Sequence[str]
    left_out: Mapping[str, int]


def foresee(
    source: Source,
    queries: Sequence[Query],
    *,
    to: str,
    settings: Mapping[str, str] = {},
    top: int | None = None,
    left_out: Mapping[str, int] = {},
    show: Callable[[str], None] = lambda _: None,
) -> Foresight:
    """Plan the queries on the source and on a copy of it, on the server ``to`` with ``settings``.

    With settings, the copy without them is compared with the copy with them.  The control is a copy
    of the source on its own release, possible from 18 on; a query whose plan it does not reproduce
    is not judged.  With ``top`` the queries are the server's own: so many of the first that name a
    table are asked for, as the others are those of tools, this one among them, and of pg_dump.
    """
    target = target_of(to)
    is_control = target.settings is None and _major(target.spec) == source.major
    # Before anything is dumped.
    release, no_control = _control(source, is_control=is_control)
    show("asking the server for its plans")
    if top is None:
        own = [_own_plan(source, query) for query in queries]
    else:
        queries, own, more = _first(source, queries, top)
        left_out = {**left_out, **more}
    with ExitStack() as stack:
        copy = stack.enter_context(
            empty_copy(source, target.spec, show, settings, like=target.settings)
        )
        show("asking the copy")
        plain = _plans(copy, queries, source, own)
        after = plain
        if settings:
            copy.start_as_tried()
            after = _plans(copy, queries, source, own, copy.tried)
        user = source.connection.info.user
        lack = lacking(source, copy, {user} | {query.role for query in queries if query.role})
        if is_control:
            controls = plain
        elif release:
            show(f"a control on {source.major}")
            controls = _plans(
                stack.enter_context(empty_copy(source, release, show)), queries, source, own
            )
        else:
            controls = own
        has_control = not no_control
        notes = source.notes({query.role for query in queries if query.role}) + copy.notes
        stand_in = [has_control and plan.code == _DENIED for plan in own]
        own = [c if other else plan for plan, c, other in zip(own, controls, stand_in, strict=True)]
        notes += _told(own, stand_in, user)
        version = copy.server.version_text
        version += f" with the settings of {target.name}" if target.name else ""
    before = plain if settings else own
    told = source.connection.info.parameter_status("server_version") or str(source.major)
    found = [
        _judged(query, *plans, lack=lack, user=user)
        for query, *plans in zip(queries, own, controls, before, after, strict=True)
    ]
    tried = {**copy.tried, **copy.by_start}
    listed = ", ".join(f"{name} = {value}" for name, value in tried.items())
    return Foresight(
        queries=found,
        before=f"{version}, as it is"
        if settings
        else f"{source.name} (PostgreSQL {told.split()[0]})",
        after=f"{version}, {listed}" if settings else version,
        no_control=no_control,
        notes=notes,
        left_out=left_out,
    )


def _control(source: Source, *, is_control: bool) -> tuple[str, str]:
    """The programs for a control, unless the copy is one; or the reason why there is none."""
    if source.version < RESTORES_STATISTICS:
        return "", "a release before 18 cannot be given the statistics of another server"
    if is_control:
        return "", ""
    try:
        return source.own_programs(), ""
    except StudyError:
        return "", f"the programs of PostgreSQL {source.major} are not at hand here"


def _told(own: Sequence[QueryPlan], stand_in: Sequence[bool], user: str) -> list[str]:
    """The number of queries that were planned in another form than their text."""
    unpruned = sum(plan.is_unpruned for plan in own)
    rows = sum(bool(plan.rows_of) for plan in own)
    denied = sum(other and plan.root is not None for plan, other in zip(own, stand_in, strict=True))
    notes = []
    if unpruned:
        notes.append(
            f"Planned without partition pruning on both sides: {unpruned} with parameters, for "
            f"which servers before 16 choose partitions by given values only."
        )
    if rows:
        notes.append(
            f"Judged by how their rows are found: {rows} that write or lock rows, as {user} may "
            f"only read; on both sides the query of these rows was planned."
        )
    if denied:
        notes.append(
            f"Judged by the plan of the control in place of the server's: {denied} that {user} may "
            f"not run."
        )
    return notes


def _major(spec: str) -> int | None:
    """The major release of programs; None if they are invalid, which ``serve`` will report."""
    try:
        return find_binaries(spec).version // 10000
    except ServerError:
        return None


def _first(
    source: Source, queries: Sequence[Query], top: int
) -> tuple[list[Query], list[QueryPlan], dict[str, int]]:
    """The first queries that name a table, their plans, and how many others there are of a kind."""
    found: list[Query] = []
    plans: list[QueryPlan] = []
    none = 0
    seen: set[tuple[object, ...]] = set()
    for place, query in enumerate(queries):
        if len(found) == top:
            return (
                found,
                plans,
                {_NO_TABLE: none, "with less time than these": len(queries) - place},
            )
        _, path, settings = source.session(query.role)
        alike = (query.text, path, *sorted(settings.items()))
        if alike in seen:
            continue
        seen.add(alike)
        plan = _own_plan(source, query)
        by_text = plan.root is None or bool(plan.rows_of)
        if names_only_catalogs(query.text) if by_text else not tables_of(plan.root or {}):
            none += query.role != source.connection.info.user
            continue
        found.append(replace(query, name=f"{len(found) + 1}"))
        plans.append(plan)
    if not found:
        raise StudyError(
            "No query in pg_stat_statements uses a table that is not a system catalog: use "
            "--queries."
        )
    return found, plans, {_NO_TABLE: none}


def _plans(
    copy: EmptyCopy,
    queries: Sequence[Query],
    source: Source,
    own: Sequence[QueryPlan],
    settings: Mapping[str, str] = {},
) -> list[QueryPlan]:
    plans = []
    with copy.connect(settings) as connection:
        for query, before in zip(queries, own, strict=True):
            _, path, by_role = source.session(query.role)
            # What is tried wins over what a role has set.
            kept = {name: value for name, value in by_role.items() if name not in settings}
            kept |= [UNPRUNED] if before.is_unpruned else []
            kept |= _SERIAL if before.rows_of else {}
            asked = replace(query, text=before.rows_of or query.text)
            plans.append(explain(connection, asked, path, kept))
    return plans


def _own_plan(source: Source, query: Query) -> QueryPlan:
    """The server's own plan, as the sessions of the query's role get it.

    Of a query that our role may not run because it writes, that of the query of its rows.
    """
    whose, path, settings = source.session(query.role)
    plan = explain(source.connection, query, path, settings)
    if plan.code == _DENIED and (rows := rows_of(query.text)):
        reading = replace(query, text=rows)
        found = explain(source.connection, reading, path, {**settings, **_SERIAL})
        return plan if found.root is None else found._replace(rows_of=rows)
    if plan.code not in _NOT_FOUND or _WITH_SCHEMA.search(plan.reason or ""):
        return plan
    reason = (
        f"{plan.reason}; it was looked for in {path or 'no schema'}, the search_path of {whose}: "
        f"grant {source.connection.info.user} USAGE on its schema, or give another search_path in "
        f"the address (?options=-csearch_path%3Da,b)"
    )
    return plan._replace(reason=reason)


def _judged(
    query: Query,
    own: QueryPlan,
    control: QueryPlan,
    before: QueryPlan,
    after: QueryPlan,
    *,
    lack: Lacking,
    user: str,
) -> Foreseen:
    if own.root is None:
        return Foreseen(query, "not judged", reason=f"the server says: {own.reason}")
    if control.root is None:
        return Foreseen(query, "not judged", own.root, reason=f"the control says: {control.reason}")
    # The same object where there is no control, or no plan of the server's own.
    is_reproduced = None if own is control else is_same(own.root, control.root)
    judged = Foreseen(query, "not judged", own.root, is_reproduced=is_reproduced)
    if before.root is None or after.root is None:
        return replace(judged, reason=f"the copy says: {before.reason or after.reason}")
    plans = [own.root, control.root, before.root, after.root]
    roles = [user, query.role or user]
    why = lack.reason(roles, plans, is_reproduced=is_reproduced is True)
    if why:
        return replace(judged, after=after.root, reason=why)
    if is_reproduced is False:
        close = ", of nearly the same cost" if are_close(own.root, control.root) else ""
        reason = f"a copy of the server's own release has another plan than the server{close}"
        return replace(judged, after=control.root, reason=reason)
    same = is_same(before.root, after.root)
    return replace(
        judged,
        verdict="same" if same else "another plan",
        before=before.root,
        after=after.root,
    )
