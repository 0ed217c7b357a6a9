"""Text of records, servers and repositories in HTML and in Markdown: always escaped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pgservers.shown import policy, visible

if TYPE_CHECKING:
    from pathlib import Path


def environment(directory: Path) -> Environment:
    """The templates in ``directory``; a line that is only a tag leaves nothing behind.

    What they are given is escaped, invisible characters included; what is missing is an error.
    """
    made = Environment(
        loader=FileSystemLoader(directory),
        autoescape=True,
        finalize=visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["policy"] = policy
    return made
