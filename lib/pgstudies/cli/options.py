"""Parameters as the command line has them: ``-p name=value``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import StudyError

if TYPE_CHECKING:
    from collections.abc import Mapping


def assignments(texts: list[str]) -> Mapping[str, str]:
    """The parameters of ``-p name=value``, by name; raises StudyError for another form."""
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise StudyError(
                f'A parameter is set by -p name=value, and "{text}" is not of that form.'
            )
        values[name.strip()] = value
    return values
