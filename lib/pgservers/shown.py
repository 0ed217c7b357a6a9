"""Untrusted text in Markdown, HTML and charts, and the policy of their pages."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from .terminal import lines_printable, printable

if TYPE_CHECKING:
    from pathlib import Path


def policy(*scripts: str) -> str:
    """The Content-Security-Policy of a page that fetches nothing and runs only these scripts.

    They are in the page.  Attributes such as ``onclick`` and ``javascript:`` links do nothing.
    """
    allowed = " ".join(map(digest_source, scripts)) or "'none'"
    return f"default-src 'none'; script-src {allowed}; img-src data: blob:; {_STYLED}"


def digest_source(script: str) -> str:
    """A policy's name for an inline script."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


_STYLED = "style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def visible(value: object) -> object:
    """Text without control characters that hide or reverse other text."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return lines_printable(value)
    return value


_MARKS = re.compile(r"[\\`*_{}\[\]<>&|#@~$^:]")


def markdown(text: str) -> str:
    """Text on one line, escaped for Markdown."""
    return _MARKS.sub(r"\\\g<0>", printable(" ".join(text.split())))


def quotable(spec: Any) -> Any:
    """The specification with nothing in its titles that would end a string.

    Vega-Lite makes expressions of titles, and escapes only quotes: no backslash, no line end.
    """
    if isinstance(spec, list):
        return list(map(quotable, spec))
    return {k: _quotable(k, v) for k, v in spec.items()} if isinstance(spec, dict) else spec


def _quotable(key: str, value: Any) -> Any:
    if key == "title" and isinstance(value, list):
        return [_quotable(key, line) for line in value]
    if key == "title" and isinstance(value, str):
        return printable(value).replace("\\", "∖")
    return value if key == "datasets" else quotable(value)


def environment(directory: Path) -> Environment:
    """The templates in ``directory``, where a line that is only a tag leaves nothing behind.

    Values are escaped, invisible characters included; a missing value is an error.
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
