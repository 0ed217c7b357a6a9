"""The order of PostgreSQL's versions, including betas and release candidates."""

from __future__ import annotations

import re

from .errors import ServerError

_STAGES = {"devel": -4, "alpha": -3, "beta": -2, "rc": -1}

VERSION = r"\d\d(?:devel|(?:alpha|beta|rc)\d+)|\d{1,2}(?:\.\d+){0,2}"
"""A pattern of versions: 9.6.24, 16, 18.6, 19beta2, 19rc1, 20devel."""


def version_key(text: str) -> tuple[int, ...]:
    """The sort key of a version: 19beta2, 19rc1, 19, 19.1; raises ServerError for other words."""
    if not re.fullmatch(VERSION, text):
        raise ServerError(f"{text!r} names no version of PostgreSQL.")
    numbers, stage, count = re.split(r"([a-z]+|$)", text, maxsplit=1)
    found = tuple(map(int, numbers.split(".")))
    return (*found, _STAGES[stage], int(count or 0)) if stage else (*found, 0)


def version_in(text: str) -> str:
    """The version that the text begins with: 20devel of a build's own 20devel-patched.

    Raises ServerError where it begins with none.
    """
    found = re.match(VERSION, text)
    if found is None:
        raise ServerError(f"{text!r} names no version of PostgreSQL.")
    return found[0]


def major_number(text: str) -> float:
    """The major release of a version as a number: 9.6 of 9.6.24, 19 of 19rc1."""
    first, second, *_ = version_key(text)
    return first + second / 10 if first < 10 else float(first)
