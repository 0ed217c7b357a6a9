"""The predicted plans, as one HTML file with the plans side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgservers.files import write_file
from pgservers.shown import environment

from .explain import parting
from .text import confidence, headline, left_out, tree

if TYPE_CHECKING:
    from .foresee import Foreseen, Foresight


def write_report(found: Foresight, target: Path) -> Path:
    """Write the report to ``target``, whole or not at all, and return its path."""
    changed = [query for query in found.queries if query.verdict == "another plan"]
    template = environment(Path(__file__).parent).get_template("plans.html")
    page = template.render(
        headline=headline(found),
        before=found.before,
        after=found.after,
        confidence=confidence(found),
        notes=[*left_out(found), *found.notes],
        changed=[_changed(query) for query in changed],
        every=[
            {
                "name": q.query.title,
                "verdict": q.verdict,
                "reason": q.reason,
                "text": q.query.text,
            }
            for q in found.queries
        ],
    )
    write_file(target, page.encode("utf-8", "replace"))
    return target


def _changed(query: Foreseen) -> dict[str, Any]:
    before, after = query.before or {}, query.after or {}
    was, becomes = parting(before, after)
    sides = {"before": list(tree(before)), "after": list(tree(after))}
    nodes = {name: {_node(line) for line in lines} for name, lines in sides.items()}
    other = {"before": "after", "after": "before"}
    return {
        "name": query.query.title,
        "text": query.query.text,
        "was": was,
        "becomes": f"{becomes}{', on the edge' * query.is_on_edge}",
        "plans": [
            (name, [(line, _node(line) not in nodes[other[name]]) for line in lines])
            for name, lines in sides.items()
        ],
    }


def _node(line: str) -> str:
    """A line without its estimates."""
    return line.rpartition("  (rows ")[0] or line
