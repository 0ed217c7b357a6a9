"""The predicted plans, as one HTML file with the plans side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pgservers.files import write_file
from pgservers.shown import environment

from .text import confidence, heading, headline, left_out, tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .foresee import Foreseen, Foresight


def write_report(found: Foresight, target: Path) -> Path:
    """Write the report to ``target``, whole or not at all, and return its path."""
    template = environment(Path(__file__).parent).get_template("plans.html")
    page = template.render(
        found=found,
        headline=headline(found),
        confidence=confidence(found),
        notes=[*left_out(found), *found.notes],
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
