"""Which claim stands for its study on the front page, and what an open one lacks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pgstudies.analysis.agreement import NOT_TESTED, RUNS
from pgstudies.analysis.claims import headlines
from pgstudies.charts.outcomes import outcome_of, runs_text

from .scorecard import DECIDED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def is_judged(row: Mapping[str, Any]) -> bool:
    """Whether a claim is decided (holds, weaker, gone or reversed); else it is open."""
    return outcome_of(row["verdict"]).word in DECIDED


def shown(study: str, claims: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a study's row shows, of its ``claims`` as ``side_by_side`` returns them.

    - shown: the first claim with a headline that is judged; else the first that has a ratio; else
      the first.  Without headlines, all claims are considered
    - main: the number of claims with a headline; open: the others among them that are open
    - lacks and remedy: what the shown claim lacks and the command that measures it, or empty
    """
    rows = {row["claim"]: row for row in claims}
    main = [rows[name] for name in dict.fromkeys(h.claim for h in headlines(study)) if name in rows]
    among = main or list(claims)
    measured = [row for row in among if row["ratio"] is not None]
    first = ([row for row in measured if is_judged(row)] or measured or among)[0]
    lacks, remedy = ("", "") if is_judged(first) else missing(first)
    left_open = [row for row in main if row is not first and not is_judged(row)]
    return {"shown": first, "main": len(main), "open": left_open, "lacks": lacks, "remedy": remedy}


def missing(row: Mapping[str, Any]) -> tuple[str, str]:
    """What an open claim lacks, as part of a sentence, and the command that measures it."""
    size = f" --profile {row['profile']}" if row["profile"] else ""
    command = f"pgstudies run {row['study']}{size}"
    word, _, reason = row["verdict"].partition(": ")
    if word == NOT_TESTED:
        return reason or "it was not measured", command
    if word == "inconclusive" and (row.get("runs") or 0) >= RUNS:
        return f"{runs_text(row['runs'])} do not decide it", command
    if word == "inconclusive" and row["blocks"]:
        more = re.search(r"(\d+) more block", reason)
        number = int(more[1]) if more else row["blocks"]
        lacks = f"{row['blocks']} blocks do not decide it, {number} more may"
        return lacks, f"{command} -p blocks={row['blocks'] + number}"
    return reason or "it was measured once, and that does not decide it", command
