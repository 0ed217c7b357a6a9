"""What changed in a notebook or the library since a record was made."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ..parameters import listed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .info import Setup

_MOST_NAMED = 5
_FILES = (".py", ".csv", ".toml")


def what_changed(before: Setup, now: Setup, headings: Mapping[str, str]) -> str:
    """The globals, settings, arms and modules that differ, each with its heading.

    ``headings`` has the notebook's heading above each global.  Empty if nothing differs, or if one
    of the two lacks the digests of its code or of the library.
    """
    old, new = before.get("code"), now.get("code")
    if not old or not new or not any("/" in name for name in old):
        return ""
    # What is only reached now, or no longer, is so because of something else that changed.
    names = {name for name in old.keys() & new.keys() if old[name] != new[name]}
    names = names or set(old.keys() ^ new.keys())
    if before.get("settings") != now.get("settings"):
        names.add("settings")
    if "arms.py" not in names and _arms(before) != _arms(now):
        names.add("arms")
    found = sorted(names, key=lambda name: (name.endswith(_FILES), name))
    places: dict[str, list[str]] = {}
    for name in found[:_MOST_NAMED]:
        spelled = name if name.endswith(_FILES) else f"`{name}`"
        places.setdefault(headings.get(name, ""), []).append(spelled)
    words = [
        f'{listed(names)} under "{heading}"' if heading else listed(names)
        for heading, names in sorted(places.items(), reverse=True)
    ]
    if len(found) > _MOST_NAMED:
        words.append(f"{len(found) - _MOST_NAMED} more")
    return listed(words) if words else ""


def _arms(setup: Setup) -> object:
    """What a notebook says of its arms that the procedure may depend on."""
    told = ("name", "state", "settings", "options", "server")
    arms = [[arm.get(key) for key in told] for arm in setup["arms"] if not arm["copy_of"]]
    return json.loads(json.dumps(arms, default=str))
