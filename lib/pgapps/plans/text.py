"""The prediction as text, and as one HTML file with the plans side by side."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from pgservers.files import write_file
from pgservers.shown import environment
from pgservers.terminal import printable

from .explain import growth, lines_of, parting
from .queries import told_left_out

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .explain import Node
    from .foresee import Foreseen, Foresight


def headline(found: Foresight) -> str:
    """The answer in a sentence."""
    verdicts = Counter(query.verdict for query in found.queries)
    changed, unjudged = verdicts["another plan"], verdicts["not judged"]
    judged = len(found.queries) - unjudged
    if not judged:
        return "No query could be judged."
    get = "gets" if changed == 1 else "get"
    edge = sum(query.is_on_edge for query in found.queries)
    summary = f"{changed} of {judged} queries {get} another plan"
    summary += f", {edge} of them on the edge" if edge else ""
    return f"{summary}; {unjudged} not judged." if unjudged else f"{summary}."


def confidence(found: Foresight) -> Iterator[str]:
    """How reliable the answer is: what the control reproduced, and what *on the edge* means."""
    yield _control(found)
    if any(query.is_on_edge for query in found.queries):
        yield (
            "On the edge: the estimated costs of both plans are within 2 %, so that the next "
            "ANALYZE may decide for either."
        )


def _control(found: Foresight) -> str:
    if found.no_control:
        return f"Control: none; {found.no_control}."
    known = [q.is_reproduced for q in found.queries if q.is_reproduced is not None]
    if not known:
        return "Control: the server gave no plan to compare with."
    count = f"{sum(known)} of its {len(known)} plans"
    others = "" if all(known) else "; the others are not judged"
    return f"Control: a copy on the server's own release has {count}{others}."


def left_out(found: Foresight) -> Iterator[str]:
    """A line on the statements of pg_stat_statements that were left out, if there are any."""
    if told := told_left_out(found.left_out):
        what = "Left out of pg_stat_statements, without what the role that asks has run itself"
        yield f"{what}: {told}."


def as_text(found: Foresight) -> str:
    """The prediction for a terminal, with both plans of each query that gets another one."""
    return "\n".join(map(printable, _lines(found)))


def _lines(found: Foresight) -> Iterator[str]:
    yield headline(found)
    yield from confidence(found)
    yield from ("", f"Before: {found.before}", f"After:  {found.after}")
    yield from left_out(found)
    yield from found.notes
    for query in found.queries:
        if query.verdict == "another plan":
            yield from ("", heading(query), f"  {_short(query)}")
            yield from ("  before", *tree(query.before or {}))
            yield from ("  after", *tree(query.after or {}))
    yield from grown(found)
    unjudged = [query for query in found.queries if query.verdict == "not judged"]
    if unjudged:
        yield from ("", "Not judged:")
    for reason in dict.fromkeys(query.reason for query in unjudged):
        yield f"  {reason}"
        for query in unjudged:
            if query.reason == reason:
                yield f"    {query.query.title}: {_short(query)}"


def grown(found: Foresight) -> Iterator[str]:
    """A line on each query that keeps its plan at several times the estimated cost."""
    for query in found.queries:
        if query.grows:
            times = growth(query.before or {}, query.after or {})
            yield f"{query.query.title}: the same plan at {times:,.0f} times the estimated cost"


def heading(query: Foreseen) -> str:
    """The name of a query that gets another plan, and the lines at which its plans differ."""
    was, becomes = parting(query.before or {}, query.after or {})
    return f"{query.query.title}: {was} becomes {becomes}{', on the edge' * query.is_on_edge}"


def _short(query: Foreseen) -> str:
    """The first words of a query, on one line."""
    return " ".join(query.query.text.split())[:200]


def tree(plan: Node) -> Iterator[str]:
    """The lines of a plan, with estimated rows and cost."""
    for line in lines_of(plan):
        arrow = "-> " if line.depth and line.cost is not None else ""
        estimate = "" if line.cost is None else f"  (rows {line.rows:,.0f}, cost {line.cost:,.0f})"
        yield f"    {'  ' * line.depth}{arrow}{line.text}{estimate}"


def write_report(found: Foresight, target: Path) -> Path:
    """Write the report to ``target``, whole or not at all, and return its path."""
    template = environment(Path(__file__).parent).get_template("plans.html")
    page = template.render(
        found=found,
        headline=headline(found),
        confidence=confidence(found),
        notes=[*left_out(found), *found.notes, *grown(found)],
        heading=heading,
        sides=_sides,
    )
    write_file(target, page.encode("utf-8", "replace"))
    return target


def _sides(query: Foreseen) -> Iterator[tuple[str, list[tuple[str, bool]]]]:
    """The lines of both plans, and whether the other plan lacks the line."""
    before, after = list(tree(query.before or {})), list(tree(query.after or {}))
    for name, lines, others in (("before", before, after), ("after", after, before)):
        nodes = set(map(_node, others))
        yield name, [(line, _node(line) not in nodes) for line in lines]


def _node(line: str) -> str:
    """A line without its estimates."""
    return line.rpartition("  (rows ")[0] or line
