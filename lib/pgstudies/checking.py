"""Input of others, checked against types."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from pgservers.errors import StudyError

T = TypeVar("T")

_PLACE = re.compile(r"(.*?)(?: - at (`key` in )?`\$(.*)`)?", re.DOTALL)

_EXPECTED = re.compile(r"Expected `([^`]+)`(.*?)(?:, got `(\w+)`)?", re.DOTALL)

_WORDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "null",
}


def checked(value: object, kind: type[T], what: str) -> T:
    """``value`` as ``kind``; raises StudyError: ``what``, a colon, and what is wrong in it."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise StudyError(f"{what}: {misfit(error, value, kind)}.") from None


def misfit(error: Exception, value: object, kind: object) -> str:
    """The place in ``value`` that is not of ``kind``, by msgspec's error, and what it may be."""
    found = _PLACE.fullmatch(str(error))
    if not isinstance(error, msgspec.ValidationError) or found is None:
        return "it has text that is not Unicode"
    message, is_key, path = found.groups()
    place, allowed = _place(path or "", value, kind)
    if is_key:
        place = f"a key of {place}"
    if error.__cause__ is not None:  # a rule of the type's own, in its words
        why = message
    elif message.startswith("Object missing"):
        why = f"has no {message.split('`')[1]}"
    elif message.startswith("Object contains"):
        why = f"has {message.split('`', 1)[1][:-1][:60]!r}, which is none of {allowed}"
    elif message.startswith("Invalid enum value"):
        why = f"must be one of {allowed}"
    elif expected := _EXPECTED.fullmatch(message):
        names = [_WORDS.get(n, n) for n in expected[1].split(" | ") if n != "null"]
        but = f", and it is {_WORDS.get(expected[3], expected[3])}" if expected[3] else ""
        why = f"must be {' or '.join(names)}{expected[2]}{but}"
    else:
        why = "is out of range"
    return f"{place} {why}"


def _place(path: str, value: Any, kind: object) -> tuple[str, str]:
    """A place in words (entries of a list by name, if they have one), and what is allowed there."""
    words: list[str] = []
    of: Any = msgspec.inspect.type_info(kind)
    for name, number in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", path):
        if isinstance(of, msgspec.inspect.UnionType):
            of = next((t for t in of.types if not isinstance(t, msgspec.inspect.NoneType)), None)
        if name:
            words.append(name)
            of = next((f.type for f in getattr(of, "fields", ()) if f.encode_name == name), None)
            value = value.get(name) if isinstance(value, dict) else None
            continue
        of = getattr(of, "item_type", getattr(of, "value_type", None))
        value = value[int(number)] if number.isdigit() and isinstance(value, list) else None
        if number == "...":
            words.append("a value")
        else:
            entry = value if isinstance(value, dict) else {}
            label = entry.get("id", entry.get("name"))
            label = f"{label[:60]!r}" if isinstance(label, str) else int(number) + 1
            words[-1:] = [f"{words[-1]} {label}"]
    names = [f.encode_name for f in getattr(of, "fields", ())] or list(getattr(of, "values", ()))
    return ", ".join(words) or "it", ", ".join(map(str, names))
