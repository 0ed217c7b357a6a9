"""The scorecard: the verdict on every published claim, record by record."""

from __future__ import annotations

import math
import re
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from pgservers import paths
from pgservers.errors import StudyError
from pgstudies.analysis.agreement import (
    FAMILY,
    HOLDS,
    MEASURES,
    MUCH_STRONGER,
    NOT_TESTED,
    RUNS,
    UPWARD,
)
from pgstudies.analysis.claims import all_claims, origins
from pgstudies.analysis.intervals import fewest_blocks
from pgstudies.charts.outcomes import OUTCOMES, outcome_of
from pgstudies.records.reading import (
    builds_note,
    host_of,
    infos_below,
    list_records,
    read_info,
    readable_records,
    representative,
    version_number,
)

from ..execution.executed import book_runs
from .checks import machine_of
from .judging import judged
from .runs import of_all_runs

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pgstudies.charts.outcomes import Outcome
    from pgstudies.records.reading import Record


SCHEMA: dict[str, pl.DataType] = {
    **dict.fromkeys(["study", "claim", "name", "text", "source", "kind"], pl.String()),
    "holds_when": pl.String(),  # what would count as holding
    "metric": pl.String(),  # what the claim is judged by
    # The post's ratio at the size of the run; ours with its 95 % interval; beside it the ratio by
    # wall time where CPU time judged, and by CPU time where wall time did.
    **dict.fromkeys(["published_ratio", "ratio", "low", "high", "beside"], pl.Float64()),
    "blocks": pl.Int64(),
    # How many reference records of one version measured the claim; ``RUNS`` or more judge it
    # together.  Null in the row of one record alone.
    "runs": pl.Int64(),
    # The verdict is one of ``agreement``, "inconclusive: n more blocks", "not judged: reason" or
    # "not tested: reason"; the date (UTC) is when the record was begun.
    **dict.fromkeys(["verdict", "server", "release", "host", "date"], pl.String()),
    # How the servers were built, if that differs; the place on the study's page.
    **dict.fromkeys(["profile", "record", "machine", "builds", "link"], pl.String()),
    # What stands for what the post had, or null; the commit that judges in its place, where the
    # ratio of the stand-in is stood_in.
    **dict.fromkeys(["stand_in", "commit"], pl.String()),
    **dict.fromkeys(["stood_in", "stood_in_low", "stood_in_high"], pl.Float64()),
    # Whether no post makes the claim; whether this is the record of the study's page, or without a
    # page the newest one, if possible with enough blocks for intervals; whether it is the newest
    # reference record of the study.
    **dict.fromkeys(["beyond", "current", "reference"], pl.Boolean()),
}
"""The columns of a ``scorecard``, in order."""

_RELEASE = re.compile(r"\d\d+|\d\.\d+")


def scorecard(
    study: str | None = None,
    *,
    records: Literal["current", "reference", "all"] = "all",
    own: Collection[str] | None = None,
) -> pl.DataFrame:
    """Every claim (of ``study``) by the record its page rests on, and by others.

    ``records`` chooses the current record alone, the reference record beside it, or all.  Of
    studies that are not in ``own``, if that is given, the reference record alone counts.

    Rows, with the columns of ``SCHEMA``, are in the order of the claims, each by its current record
    first, then by the others from the newest on.  A record never judged before is replayed.  Raises
    StudyError for a study without claims.
    """
    known = origins()
    if study is not None and study not in known:
        raise StudyError(f"There are no claims of {study}; the studies are: {', '.join(known)}.")
    in_book = {run.study: run.record for run in book_runs(paths.STUDIES) if run.record}
    claims, rows = all_claims(), list[dict[str, Any]]()
    for name in [study] if study else known:
        newest = representative(infos_below(paths.REFERENCE_RECORDS, name))
        reference = newest.name if newest else None
        if own is None or name in own:
            places = _places(name, in_book.get(name))
        else:
            places = [newest] if newest else []
        found = list(islice(readable_records(places), None if records == "all" else 1))
        if records == "reference" and reference not in [record.path.name for record in found]:
            found += readable_records(place for place in places if place.name == reference)
        cards = [
            card
            for record in found
            for card in _cards(record, record.path.name == reference, records == "all")
        ]
        link = {"link": f"{name}.html#{known[name].anchor}"}
        why = "the study's page does not judge it" if cards else "no record"
        for claim in claims.filter(study=name).iter_rows(named=True):
            judged = [card[claim["claim"]] for card in cards if claim["claim"] in card]
            rows += [
                _with_rule(claim | link | {k: v for k, v in card.items() if v is not None})
                | {"current": not n, "reference": card.get("reference", False)}
                for n, card in enumerate(judged or [{"verdict": f"{NOT_TESTED}: {why}"}])
            ]
    return pl.DataFrame(
        [{column: row.get(column) for column in SCHEMA} for row in rows], schema=SCHEMA
    )


def _with_rule(row: dict[str, Any]) -> dict[str, Any]:
    """The row with its metric, and with what would count as holding at the run's size."""
    metric = row.get("metric") or row["judged_by"]
    if row.get("commit"):
        row["stand_in"] = row["with_commit"]
    rule = holds_when(
        row["kind"],
        row["direction"],
        metric=metric,
        published_ratio=row["published_ratio"],
        threshold=row["threshold"],
        margin=row.get("margin"),
    )
    return row | {"metric": metric, "holds_when": rule}


def holds_when(
    kind: str,
    direction: str,
    *,
    metric: str,
    published_ratio: float | None,
    threshold: float | None = None,
    margin: float | None = None,
) -> str:
    """What would count as holding, by ``agreement``, in a sentence; the margin may be unknown."""
    percent = "the margin" if margin is None else f"{100 * margin:g} %"
    measure = MEASURES.get(metric, metric)
    if kind == "alike":
        apart = 100 * (max(published_ratio or 1, 1 / (published_ratio or 1)) - 1)
        of_post = f"the post's own distance of {apart:.2g} % and " if apart else ""
        return f"By {measure}: the whole interval of the ratio lies within {of_post}{percent} of 1."
    is_up = direction in UPWARD
    side = "above" if is_up else "below"
    if threshold is not None:
        return f"By {measure}: the whole interval of the ratio is {threshold:g} or {side}."
    far_enough, half = f"{side} 1", 1.0
    if published_ratio is not None:
        half = math.sqrt(published_ratio)
        far_enough = f"{half:#.3g} or {side}, half of the published effect on a logarithmic scale"
    if margin is None or abs(math.log(half)) < math.log1p(margin):
        past = f"past {'the margin' if margin is None else f'the margin of {percent}'}"
        far_enough += f", and the ratio {past}"
    family = "; so it must be among all of the study's claims" if kind in FAMILY else ""
    return f"By {measure}: the whole interval of the ratio is {far_enough}{family}."


def _places(study: str, in_book: Record | None) -> list[Path]:
    """The records that count: the current one, then those with enough blocks from the newest on.

    Without a page the current one is the ``representative`` one of the newest record's host.
    """
    complete = list_records(study).filter(status="complete").reverse()
    enough = complete.filter(pl.col("blocks_done") >= fewest_blocks())["path"].to_list()
    own = [str(in_book.path)] if in_book else [] if enough else complete["path"].to_list()[:1]
    once = {Path(path).name: Path(path) for path in reversed([*own, *enough])}  # a copy is the same
    found = list(reversed(once.values()))
    if in_book is None and found:
        infos = [(path, read_info(path)) for path in reversed(found)]
        host = host_of(infos[-1][1])
        first = representative(pair for pair in infos if host_of(pair[1]) == host)
        found.sort(key=lambda path: path != first)
    return found


def _cards(record: Record, is_reference: bool, in_detail: bool) -> list[dict[str, dict[str, Any]]]:
    """The verdicts of a record, by claim, without columns that do not apply.

    For the reference record, the first are by all records of its version; then ``in_detail`` come
    its own verdicts on claims that several records judge together.
    """
    about = {
        "host": host_of(record.info),
        "date": str(record.info["started_at"])[:16].replace("T", " "),
        "profile": record.info.get("profile"),
        "record": record.path.name,
        "machine": machine_of(record.info["host"]),
        "builds": builds_note(record.info),
    }
    try:
        alone = together = judged(record.path)
        if is_reference:
            together = of_all_runs(record.info["study"], record.path, alone)
    except StudyError as error:
        reason = f"{NOT_TESTED}: {str(error).rstrip('.')}"
        claims = all_claims().filter(study=record.info["study"])["claim"]
        alone = together = pl.DataFrame({"claim": claims}).with_columns(verdict=pl.lit(reason))

    def cards(table: pl.DataFrame) -> dict[str, dict[str, Any]]:
        return {
            row["claim"]: {k: v for k, v in row.items() if k not in _WORDS}
            | about
            | _server(record, row.get("candidate"))
            | {"verdict": in_full(row)}
            for row in table.iter_rows(named=True)
        }

    found, several = cards(together), set[str]()
    for claim, card in found.items():
        card["reference"] = is_reference
        if (card.get("runs") or 0) >= RUNS:
            several.add(claim)
            card["record"] = f"{record.path.name} and those alike"
    own = {claim: card for claim, card in cards(alone).items() if claim in several}
    return [found, own] if own and in_detail else [found]


_WORDS = {"text", "baseline"}  # the text may have been improved since


def in_full(row: Mapping[str, Any]) -> str:
    """A verdict of ``judge`` with the blocks that an open one lacks."""
    more = (row.get("blocks_needed") or 0) - (row.get("blocks") or 0)
    verdict = str(row["verdict"])
    if outcome_of(verdict).word != "inconclusive" or more <= 0:
        return verdict
    separator = "; " if ":" in verdict else ": "
    return f"{verdict}{separator}{more} more {'block' if more == 1 else 'blocks'}"


def _server(record: Record, candidate: str | None) -> dict[str, str | None]:
    """The version of the candidate, which may be another release than the record's own server."""
    arms = dict(record.arms.select("name", "server").drop_nulls().iter_rows())
    known = {version_number(version): version for version in arms.values()}
    known |= {name: s.get("version_text") for name, s in record.info.get("servers", {}).items()}
    version = arms.get(candidate or "") or known.get(re.split("[ ,]", candidate or "")[0])
    number = version_number(version or record.info["server"].get("version_text"))
    release = _RELEASE.match(number)
    return {"server": number, "release": release[0] if release else number}


def of_posts(cards: pl.DataFrame) -> pl.DataFrame:
    """The claims that a post makes."""
    return cards.filter(~pl.col("beyond").fill_null(value=False))


def with_outcome(cards: pl.DataFrame) -> pl.DataFrame:
    """Add the column outcome, the word that the verdict begins with."""
    return cards.with_columns(outcome=pl.col("verdict").str.split(":").list.first())


def in_sum(cards: pl.DataFrame) -> str:
    """The numbers of claims by outcome, best first: "2 hold; 1 gone"."""
    counts = dict(with_outcome(cards)["outcome"].value_counts().iter_rows())
    if much := counts.pop(MUCH_STRONGER, 0):
        counts["holds"] = counts.get("holds", 0) + much
    return "; ".join(
        f"{counts[word]} {in_words(o, counts[word], much if word == 'holds' else 0)}"
        for word, o in OUTCOMES.items()
        if word in counts
    )


DECIDED = (*HOLDS, "gone", "reversed")
"""The outcomes of claims that are judged: those of any other outcome are open."""


def is_decided(cards: pl.DataFrame) -> pl.Series:
    """Which claims are judged, as ``DECIDED`` says."""
    return with_outcome(cards)["outcome"].is_in(DECIDED)


def decided(cards: pl.DataFrame) -> str:
    """How many claims were decided, such as "61 of 75 decided, 24 of these by a stand-in"."""
    found = cards.filter(is_decided(cards))
    words = f"{found.height} of {cards.height} decided"
    stood = found["stand_in"].count()
    return f"{words}, {stood} of these by a stand-in" if stood else words


def in_words(outcome: Outcome, count: int, much: int) -> str:
    """How a sentence goes on after a number of claims, such as "hold" after 2, "holds" after 1.

    ``much`` of them hold much stronger.
    """
    is_verb = outcome.several.startswith("hold")
    words = outcome.word if is_verb and count == 1 else outcome.several
    how = "" if much == count else f" {much} of them"
    return f"{words},{how} much stronger" if much else words
