"""What is foreseen, as plain text: the answer first, then each query that gets another plan."""

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
    summary = f"{changed} of {judged} queries {get} another plan"
    summary = summary if judged else "No query could be judged"
    return f"{summary}; {unjudged} not judged." if unjudged and judged else f"{summary}."


def control(found: Foresight) -> str:
    """Whether a control was possible."""
    if found.control:
        return "Control: a copy of the server's own release reproduces the plans that are judged."
    return "Control: none; a release before 18 cannot be given the statistics of another server."


def left_out(found: Foresight) -> list[str]:
    """A line on the statements of pg_stat_statements that are not asked for."""
    told = told_left_out(found.left_out)
    return [f"Left out of pg_stat_statements: {told}."] if told else []


def as_text(found: Foresight) -> str:
    """Everything for a terminal, a line per node of the plans that differ."""
    return "\n".join(map(printable, _lines(found)))


def _lines(found: Foresight) -> Iterator[str]:
    yield headline(found)
    yield ""
    yield f"Before: {found.before}"
    yield f"After:  {found.after}"
    yield control(found)
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
    yield f"{query.query.title}: {was} becomes {becomes}"
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
