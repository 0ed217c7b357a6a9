"""Guards on the servers of a comparison: their settings, their builds, their cores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .comparison import BASELINE, CANDIDATE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .compared import Measured

Verdict = tuple[bool | None, str]
"""Whether a guard passed, None where it could not be looked at, and a sentence."""

_MOST_NAMED = 5

# They belong to the server's version, or to where it is.
_OF_THE_BUILD = {"server_version", "server_version_num", "lc_messages", "cluster_name"}


def _facts(measured: Sequence[Measured]) -> Iterator[tuple[Any, dict[str, Any], dict[str, Any]]]:
    """For each record, the comparison and what both servers are, with the first arm on both."""
    for m in measured:
        for info in m.infos:
            for sides in info["comparison"]["facts"].values():
                if BASELINE in sides and CANDIDATE in sides:
                    yield info["comparison"], sides[BASELINE], sides[CANDIDATE]
                    break


def settings(measured: Sequence[Measured]) -> Verdict:
    """Whether the two differ in nothing but what was declared, and in built-in defaults."""
    undeclared: dict[str, str] = {}
    defaults: dict[str, str] = {}
    looked = False
    for comparison, baseline, candidate in _facts(measured):
        looked = True
        declared = {*comparison[BASELINE]["settings"], *comparison[CANDIDATE]["settings"]}
        before, after = baseline["settings"], candidate["settings"]
        for name in sorted(before.keys() & after.keys() - _OF_THE_BUILD - declared):
            if before[name][0] == after[name][0]:
                continue
            # A build may have other defaults: that is a part of what is compared.
            built_in = {before[name][1], after[name][1]} <= {"default", "override"}
            place = defaults if built_in else undeclared
            place[name] = f"{name} ({before[name][0]} and {after[name][0]})"
        for name in sorted(before.keys() ^ after.keys()):
            defaults[name] = f"{name} (on one only)"
    if not looked:
        return None, "No server could be asked for its settings."
    also = f" Differing defaults: {named(list(defaults.values()))}." if defaults else ""
    if undeclared:
        return (
            False,
            f"Set differently without being declared: {named(list(undeclared.values()))}.",
        )
    return True, f"The same settings but for what is declared.{also}"


def builds(measured: Sequence[Measured]) -> Verdict:
    """Whether both are built without assertions, and at the same level of optimisation."""
    wrong: dict[str, None] = {}
    levels: dict[str, str] = {}
    for _, baseline, candidate in _facts(measured):
        for name, side in ((BASELINE, baseline), (CANDIDATE, candidate)):
            if side["assertions"] == "on":
                wrong[f"the {name} is built with assertions"] = None
            if side["cflags"] is None:
                continue
            found = [word for word in side["cflags"].split() if word.startswith("-O")]
            levels[name] = found[-1] if found else "no -O"
            if levels[name] in {"no -O", "-O0", "-O", "-Og"}:
                wrong[f"the {name} is built with {levels[name]}"] = None
    if wrong:
        return False, f"Not a build to measure: {named(list(wrong))}."
    if len(set(levels.values())) > 1:
        flags = " and ".join(f"the {name} with {level}" for name, level in levels.items())
        return False, f"The two are built differently: {flags}."
    if not levels:
        return None, "No assertions; with what the servers were compiled cannot be seen."
    return True, f"Both are built without assertions, with {' '.join(set(levels.values()))}."


def cores(measured: Sequence[Measured]) -> Verdict:
    """Whether no side alone has I/O workers that would share one core with its session."""
    for m in measured:
        if all(info["pinned_to_core"] is None for info in m.infos):
            continue
        for _, *both in _facts([m]):
            methods = [side["settings"].get("io_method", ["none"])[0] for side in both]
            if methods.count("worker") == 1:
                name = (BASELINE, CANDIDATE)[methods.index("worker")]
                return False, (
                    f"{m.study} keeps each server on one core, where the I/O workers of the {name} "
                    f"take turns with its session: measure with --no-pin."
                )
    return True, "Neither side has I/O workers alone to share one core with."


def named(things: Sequence[str], between: str = ", ") -> str:
    """The first few, and how many more there are."""
    more = f" and {len(things) - _MOST_NAMED} more" if len(things) > _MOST_NAMED else ""
    return between.join(things[:_MOST_NAMED]) + more
