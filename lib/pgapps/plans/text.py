"""The prediction as plain text: the answer first, then each query that gets another plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgservers.terminal import printable

from .explain import lines_of, parting
from .queries import told_left_out

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .explain import Node
    from .foresee import Foreseen, Foresight


def headline(found: Foresight) -> str:
    """The answer in a sentence."""
    of = {v: sum(q.verdict == v for q in found.queries) for v in ("another plan", "not judged")}
    changed, unjudged = of["another plan"], of["not judged"]
    judged = len(found.queries) - unjudged
    get = "gets" if changed == 1 else "get"
    edge = sum(query.is_on_edge for query in found.queries)
    summary = f"{changed} of {judged} queries {get} another plan"
    summary += f", {edge} of them on the edge" if edge else ""
    summary = summary if judged else "No query could be judged"
    return f"{summary}; {unjudged} not judged." if unjudged and judged else f"{summary}."


def confidence(found: Foresight) -> list[str]:
    """How reliable the answer is: what the control reproduced, and what *on the edge* means."""
    told = [_control(found)]
    if any(query.is_on_edge for query in found.queries):
        told.append(
            "On the edge: the estimated costs of both plans are within 2 %, so that the next "
            "ANALYZE may decide for either."
        )
    return told


def _control(found: Foresight) -> str:
    if found.no_control:
        return f"Control: none; {found.no_control}."
    known = [q.is_reproduced for q in found.queries if q.is_reproduced is not None]
    if not known:
        return "Control: the server gave no plan to compare with."
    others = "" if all(known) else "; the others are not judged"
    return (
        f"Control: a copy on the server's own release has {sum(known)} of its {len(known)} plans"
        f"{others}."
    )


def left_out(found: Foresight) -> list[str]:
    """A line on the statements of pg_stat_statements that are not asked for."""
    told = told_left_out(found.left_out)
    not_counted = "without what the role that asks has run itself"
    return [f"Left out of pg_stat_statements, {not_counted}: {told}."] if told else []


def as_text(found: Foresight) -> str:
    """Everything for a terminal, a line per node of the plans that differ."""
    return "\n".join(map(printable, _lines(found)))


def _lines(found: Foresight) -> Iterator[str]:
    yield headline(found)
    yield from confidence(found)
    yield ""
    yield f"Before: {found.before}"
    yield f"After:  {found.after}"
    yield from left_out(found)
    yield from found.notes
    for query in found.queries:
        if query.verdict == "another plan":
            yield from _changed(query)
    unjudged = [query for query in found.queries if query.verdict == "not judged"]
    if unjudged:
        yield ""
        yield "Not judged:"
        for reason in dict.fromkeys(query.reason for query in unjudged):
            yield f"  {reason}"
            yield from (
                f"    {query.query.title}: {_short(query)}"
                for query in unjudged
                if query.reason == reason
            )


def _changed(query: Foreseen) -> Iterator[str]:
    if query.before is None or query.after is None:
        return
    was, becomes = parting(query.before, query.after)
    yield ""
    yield f"{query.query.title}: {was} becomes {becomes}{', on the edge' * query.is_on_edge}"
    yield f"  {_short(query)}"
    for name, plan in (("before", query.before), ("after", query.after)):
        yield f"  {name}"
        yield from tree(plan)


def _short(query: Foreseen) -> str:
    """The first words of a query, on one line."""
    return " ".join(query.query.text.split())[:200]


def tree(plan: Node) -> Iterator[str]:
    """The lines of a plan, with estimated rows and cost."""
    for line in lines_of(plan):
        arrow = "-> " if line.depth and line.cost is not None else ""
        estimate = "" if line.cost is None else f"  (rows {line.rows:,.0f}, cost {line.cost:,.0f})"
        yield f"    {'  ' * line.depth}{arrow}{line.text}{estimate}"
