"""Templates of HTML: what they are given is escaped, and what is missing is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined

if TYPE_CHECKING:
    from pathlib import Path


def environment(directory: Path) -> Environment:
    """The templates in ``directory``; a line that is only a tag leaves nothing behind."""
    return Environment(
        loader=FileSystemLoader(directory),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
