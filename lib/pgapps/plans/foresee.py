"""Which queries would get another plan on another release, or with other settings."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from pgservers.errors import ServerError, StudyError
from pgservers.programs.installations import find_binaries

from .empty_copy import RESTORES_STATISTICS, EmptyCopy, empty_copy
from .explain import UNPRUNED, Node, QueryPlan, are_close, explain, growth, is_same, tables_of
from .lacking import lacking
from .queries import told_left_out
from .source import programs_of, target_of
from .statements import has_parameters, names_only_catalogs, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..workload.statements import Statement
    from .lacking import Lacking
    from .queries import Query
    from .source import Source, Target


# Tables, functions and types.
_NOT_FOUND = {"42P01", "42883", "42704"}

# Functions and operators, types of parameters, and types that do not fit.
_UNTYPED = {"42883", "42725", "42P18", "42804"}

_MANYFOLD = 3.0
"""The growth of a plan's estimated cost from which it is named although its nodes are the same."""

_WITH_SCHEMA = re.compile(r"\w\.\w")

_LIST = re.compile(r"\(\s*\$\d+(?:\s*,\s*\$\d+)+\s*\)")

_DENIED = "42501"

_NO_TABLE = "that name no table but the catalogs"

# A statement that writes has no parallel workers.
_SERIAL = {"max_parallel_workers_per_gather": "0"}

Verdict = Literal["same", "another plan", "not judged"]


@dataclass(frozen=True)
class Foreseen:
    """The prediction for one query.

    ``before`` is its present plan and ``after`` the predicted one, or the control's if that is not
    the server's.  ``reason`` says why the query is not judged.  ``is_reproduced`` says whether the
    control has the server's own plan; it is None if one of them is missing.
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
        return self.verdict == "another plan" and are_close(self.before or {}, self.after or {})

    @property
    def grows(self) -> bool:
        """Whether it keeps its plan at several times the estimated cost."""
        return self.verdict == "same" and growth(self.before or {}, self.after or {}) > _MANYFOLD


@dataclass(frozen=True)
class Foresight:
    """The predictions, and in words the servers of the plans before and after.

    ``no_control`` is the reason why there is no control, or empty.  ``notes`` say what could not be
    copied, and what was planned in place of queries.  ``left_out`` has the number of statements
    that were not planned, by reason.
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
    script: Sequence[Statement] = (),
    top: int | None = None,
    left_out: Mapping[str, int] = {},
    show: Callable[[str], None] = lambda _: None,
) -> Foresight:
    """Plan the queries on the source and on a copy of it, on the server ``to`` with ``settings``.

    With settings, or a script of SQL, the copy without them is compared with the copy with them: a
    script is executed on a copy of its own.

    The control is a copy
    of the source on its own release, possible from 18 on; a query whose plan it does not reproduce
    is not judged.  With ``top``, only the first so many queries that name a table are planned: the
    others are those of tools, such as this one and pg_dump.
    """
    target = target_of(to)
    _require_able(target.spec, source)
    is_control = target.settings is None and _major(target.spec) == source.major
    # Before anything is dumped.
    release, no_control = _control(source, is_control=is_control)
    show("asking the server for its plans")
    if top is None:
        own = [_own_plan(source, query) for query in queries]
    else:
        queries, own, more = _first(source, queries, top, left_out)
        left_out = {**left_out, **more}
    user = source.connection.info.user
    roles = {query.role for query in queries if query.role}
    with empty_copy(source, target.spec, show, settings, like=target.settings) as copy:
        show("asking the copy")
        plain = after = _plans(copy, queries, source, own)
        if settings and not script:
            after = _tried(copy, queries, source, own)
        lack = lacking(source, copy, {user, *roles})
    if script:
        show("a copy with the SQL to try")
        with empty_copy(
            source, target.spec, show, settings, like=target.settings, script=script
        ) as copy:
            after = _tried(copy, queries, source, own)
    controls = plain if is_control else own
    if release:
        show(f"a control on {source.major}")
        with empty_copy(source, release, show) as control:
            controls = _plans(control, queries, source, own)
    notes = [*source.notes(roles), *copy.notes, *_notes(own, controls, user)]
    pairs = zip(own, controls, strict=True)
    own = [stand_in if plan.code == _DENIED else plan for plan, stand_in in pairs]
    before = plain if settings or script else own
    name_before, name_after = _servers(source, target, copy, script)
    return Foresight(
        queries=[
            _judged(query, *plans, lack=lack, user=user)
            for query, *plans in zip(queries, own, controls, before, after, strict=True)
        ],
        before=name_before,
        after=name_after,
        no_control=no_control,
        notes=notes,
        left_out=left_out,
    )


def _require_able(spec: str, source: Source) -> None:
    """Raise StudyError for programs before 18, or of a release before the source's."""
    binaries = find_binaries(spec)
    if binaries.version < RESTORES_STATISTICS:
        raise StudyError(
            f"Plans can be predicted only for release 18 or later, which restores statistics from "
            f"a dump, and {spec} is {binaries.version_text}: name another by --to."
        )
    if binaries.version // 10000 < source.major:
        raise StudyError(
            f"{source.name} is PostgreSQL {source.major}, and {spec} is {binaries.version_text}: "
            f"give --to its own release or a later one, by a directory of programs if need be."
        )


def _servers(
    source: Source, target: Target, copy: EmptyCopy, script: Sequence[Statement]
) -> tuple[str, str]:
    """The servers of the plans before and after, in words."""
    version = copy.server.version_text
    version += f" with the settings of {target.name}" if target.name else ""
    changes = [f"{name} = {value}" for name, value in {**copy.tried, **copy.by_start}.items()]
    changes += [" ".join(statement.text.decode().split()) for statement in script]
    if changes:
        return f"{version}, as it is", f"{version}, {', '.join(changes)}"
    told = source.connection.info.parameter_status("server_version") or str(source.major)
    return f"{source.name} (PostgreSQL {told.split()[0]})", version


def _control(source: Source, *, is_control: bool) -> tuple[str, str]:
    """The programs of a further copy, the control, and the reason why there can be none.

    Both are empty if the copy itself is the control.
    """
    if source.version < RESTORES_STATISTICS:
        return "", "a release before 18 cannot be given the statistics of another server"
    if is_control:
        return "", ""
    try:
        return programs_of(source.version, source.connection), ""
    except StudyError:
        return "", f"the programs of PostgreSQL {source.major} are not at hand here"


def _notes(own: Sequence[QueryPlan], controls: Sequence[QueryPlan], user: str) -> list[str]:
    """Sentences on the number of queries that were planned in another form, or by the control."""
    unpruned = sum(plan.is_unpruned for plan in own)
    rows = sum(bool(plan.rows_of) for plan in own)
    pairs = zip(own, controls, strict=True)
    denied = sum(plan.code == _DENIED and control.root is not None for plan, control in pairs)
    notes = {
        f"Planned without partition pruning on both sides: {unpruned} with parameters, for which "
        f"servers before 16 choose partitions by given values only.": unpruned,
        f"Judged by how their rows are found: {rows} that write or lock rows, as {user} may only "
        f"read; on both sides the query of these rows was planned.": rows,
        f"Judged by the plan of the control in place of the server's: {denied} that {user} may not "
        f"run.": denied,
    }
    return [note for note, count in notes.items() if count]


def _major(spec: str) -> int | None:
    """The major release of programs; None if they are invalid, which ``serve`` will report."""
    try:
        return find_binaries(spec).version // 10000
    except ServerError:
        return None


def _first(
    source: Source, queries: Sequence[Query], top: int, left_out: Mapping[str, int]
) -> tuple[list[Query], list[QueryPlan], dict[str, int]]:
    """The first queries that name a table, their plans, and the numbers of the others by reason.

    Queries that differ only in the length of a list of parameters count as one.
    """
    found: list[Query] = []
    plans: list[QueryPlan] = []
    others = {_NO_TABLE: 0}
    seen: set[tuple[object, ...]] = set()
    for place, query in enumerate(queries):
        if len(found) == top:
            others["with less time than these"] = len(queries) - place
            break
        _, path, settings = source.session(query.role)
        alike = (_LIST.sub("($1)", query.text), path, *sorted(settings.items()))
        if alike in seen:
            continue
        seen.add(alike)
        plan = _own_plan(source, query)
        if plan.root is None or plan.rows_of:
            names_table = not names_only_catalogs(query.text)
        else:
            names_table = bool(tables_of(plan.root))
        if names_table:
            found.append(replace(query, name=f"{len(found) + 1}"))
            plans.append(plan)
        else:
            others[_NO_TABLE] += query.role != source.connection.info.user
    if not found:
        why = f" (left out: {told})" if (told := told_left_out(left_out)) else ""
        raise StudyError(
            f"No query in pg_stat_statements uses a table that is not a system catalog{why}: "
            f"use --queries."
        )
    return found, plans, others


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
            # A setting that is tried takes precedence over the role's.
            kept = {name: value for name, value in by_role.items() if name not in settings}
            kept |= UNPRUNED if before.is_unpruned else {}
            kept |= _SERIAL if before.rows_of else {}
            asked = replace(query, text=before.rows_of or query.text)
            plans.append(explain(connection, asked, path, kept))
    return plans


def _tried(
    copy: EmptyCopy, queries: Sequence[Query], source: Source, own: Sequence[QueryPlan]
) -> list[QueryPlan]:
    """The copy's plans with the settings to try."""
    if copy.by_start:
        copy.server.restart(copy.by_start)
    return _plans(copy, queries, source, own, copy.tried)


def _own_plan(source: Source, query: Query) -> QueryPlan:
    """The server's own plan, as the sessions of the query's role get it.

    If our role may not run the query because it writes, the query of its rows is planned.
    """
    whose, path, settings = source.session(query.role)
    plan = explain(source.connection, query, path, settings)
    if plan.code == _DENIED and (rows := rows_of(query.text)):
        reading = replace(query, text=rows)
        found = explain(source.connection, reading, path, {**settings, **_SERIAL})
        return plan if found.root is None else found._replace(rows_of=rows)
    if plan.code in _UNTYPED and has_parameters(query.text):
        return plan._replace(
            reason=f"{plan.reason}; the types of its parameters are not known: write the query "
            f"into a file of --queries, with casts ($1::date)"
        )
    if plan.code not in _NOT_FOUND or _WITH_SCHEMA.search(plan.reason):
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
    # They are the same object if there is no control, or if its plan stands in for the server's.
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
    verdict: Verdict = "same" if is_same(before.root, after.root) else "another plan"
    return replace(judged, verdict=verdict, before=before.root, after=after.root)
