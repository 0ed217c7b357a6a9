"""The scorecard as a table on the front page, and as lines for a terminal and for mail."""

from __future__ import annotations

import json
import math
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
from IPython.display import HTML

from pgservers import paths
from pgservers.paths import for_display
from pgservers.shown import environment
from pgservers.terminal import printable
from pgstudies.analysis.agreement import MEASURES, MUCH_STRONGER, RUNS, ratio_text
from pgstudies.analysis.claims import all_claims, origins
from pgstudies.charts.claims import answer
from pgstudies.charts.outcomes import OUTCOMES, agreement_with, outcome_of, runs_text, usual_runs
from pgstudies.records.counts import INSTRUCTIONS
from pgstudies.records.reading import made_where
from pgstudies.rooms import find_room

from .checks import doubt, failures, in_short, read_checks
from .scorecard import decided, in_full, in_sum, in_words, is_decided, of_posts
from .shown import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..execution.run import Executed


_TEMPLATES = environment(Path(__file__).parent)

PICTURE = {"width": 120, "gone": 40.0, "published": 80.0}
"""The picture of how much is left of an effect (pixels): its width, and where none and all are."""

MOST_REASONS = 4  # reasons for open claims that are printed after a run; its page has all

# Columns of text: the longest line, an indent, where the text beside the verdict begins, figures.
WIDTH, _INDENT = 79, 2
_COLUMN = _INDENT + max(map(len, OUTCOMES)) + 2
_PUBLISHED = len("published ")
_FIGURES = len("0.0858 (0.0585 to 0.0126)")


def score_front(cards: pl.DataFrame) -> HTML:
    """The front page's table: a row for each study, with its question and one of its main claims.

    ``cards`` is a ``scorecard`` with the reference records.  Above the table are the numbers of
    claims by outcome, and what this machine's column is worth.  A row shows the claim that
    ``shown`` chooses; folded below it are the study's answer and a line for each of its claims,
    which links to the claim's row in the scorecard.  A study without a reference record shows its
    own run alone.
    """
    checks = read_checks()
    studies = []
    for (study,), part in cards.group_by("study", maintain_order=True):
        now, own = now_and_here(part)
        origin = origins()[str(study)]
        claims = [row | {"left": left(row)} for row in side_by_side(part)]
        runs = usual_runs(now)
        studies.append(
            {
                "study": study,
                "question": question(str(study)),
                "post": origin.post,
                "year": next(iter(re.findall(r"\d{4}", origin.post)), ""),
                "answer": answer(str(study), now),
                "doubt": doubt(now, checks),
                "sum": "; ".join(filter(None, [in_sum(of_posts(now)), runs_text(runs)])),
                "about": judged_where(now.row(0, named=True) | {"runs": runs}),
                "own": judged_where(own.row(0, named=True)) if own.height else "",
                "own_doubt": doubt(own, checks),
                "checks": next(iter(checks["study"]), ""),
                "own_sum": in_sum(of_posts(own)) if own.height else "",
                "claims": claims,
                **shown(str(study), claims),
            }
        )
    now, here = _sides(cards)
    failed = checks.filter(pl.col("passed").not_())["check"].unique(maintain_order=True)
    told = decided(of_posts(now)), " and ".join(failed), _worth(here, studies)
    return _html("score_front", studies, came_to(of_posts(cards)), PICTURE, *told)


def question(study: str) -> str:
    """The study's question: the paragraph below its notebook's title, or the title."""
    cells = json.loads(find_room(study).notebook.read_text(encoding="utf-8"))["cells"]
    text = "".join(cells[0]["source"]) if cells else ""
    first = text.strip().partition("\n\n")[2].partition("\n\n")[0]
    return " ".join(first.replace("`", "").split()) or origins()[study].title


def _worth(here: pl.DataFrame, studies: list[dict[str, Any]]) -> dict[str, Any] | None:
    """How many claims this machine's runs decide, and how often they agree; None without runs."""
    if here.is_empty():
        return None
    own = [row["own"]["agreement"] for study in studies for row in study["claims"] if row["own"]]
    sizes = here["profile"].drop_nulls().unique(maintain_order=True)
    return {
        "sizes": " and ".join(sizes) or "unknown",
        "claims": here.height,
        "decided": is_decided(here).sum(),
        "agree": own.count("agrees"),
        "differ": sum(word.startswith("differs") for word in own),
    }


def came_to(cards: pl.DataFrame) -> list[dict[str, Any]]:
    """The numbers of claims of a ``scorecard`` by outcome, the best outcome first.

    Each is a dict of outcome, words (how a sentence goes on after the number), now and here (how
    many; here is None if nothing was run), and claims: those of now, as ``for_template``, with the
    study's title.  Claims that hold much stronger count as holding.
    """
    now, here = _sides(cards)
    claims = [for_template(row) for row in now.iter_rows(named=True)]
    own = [outcome_of(verdict) for verdict in here["verdict"]]
    found = []
    stronger = OUTCOMES[MUCH_STRONGER]
    for outcome in OUTCOMES.values():
        of = {outcome, stronger} if outcome.word == "holds" else {outcome} - {stronger}
        rows = [row for row in claims if row["outcome"] in of]
        if rows or of & set(own):
            much = sum(row["outcome"] == stronger for row in rows)
            found.append(
                {
                    "outcome": outcome,
                    "words": in_words(outcome, len(rows), much),
                    "now": len(rows),
                    "here": sum(map(own.count, of)) if own else None,
                    "claims": [row | {"title": origins()[row["study"]].title} for row in rows],
                }
            )
    return found


def _sides(cards: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """``now_and_here`` of all studies."""
    parts = cards.partition_by("study", maintain_order=True) or [cards]
    now, here = zip(*map(now_and_here, parts), strict=True)
    return pl.concat(now), pl.concat(here)


def now_and_here(part: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows of a study in a ``scorecard`` for now, and those of this machine.

    Now is the newest reference record, or without one the current record, which is then not
    repeated for this machine.
    """
    if not part["reference"].any():
        return part.filter("current"), part.clear()
    newest = part.filter("reference").unique("claim", keep="first", maintain_order=True)
    own = part.filter("current", ~pl.col("reference"), pl.col("record").is_not_null())
    missing = part.filter("current").join(newest, on="claim", how="anti")
    return pl.concat([newest, missing]), own


def side_by_side(part: pl.DataFrame) -> list[dict[str, Any]]:
    """The claims of a study, as ``for_template`` of now, with this machine's as ``own``.

    ``own`` has the key agreement, by ``agreement_with``; it is None if nothing was run here.
    """
    now, own = now_and_here(part)
    usual = usual_runs(now)
    beside = {row["claim"]: row for row in own.iter_rows(named=True)}
    rows = []
    for row in now.iter_rows(named=True):
        here = beside.get(row["claim"])
        own_row = here and for_template(here) | {"agreement": agreement_with(row, here)}
        rows.append(for_template(row, runs_text(row["runs"], usual)) | {"own": own_row})
    return rows


def left(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """The places of our ratio and its interval in ``PICTURE`` (pixels), on a logarithmic scale.

    ``beyond`` says that ours is outside of it.  None if the post claims no change or has no figure,
    and without our ratio.
    """
    published, ratio = row["published_ratio"], row["ratio"]
    if not ratio or row["kind"] == "alike" or published in {None, 1.0}:
        return None
    unit = PICTURE["published"] - PICTURE["gone"]

    def place(value: float) -> float:
        x = PICTURE["gone"] + unit * math.log(value) / math.log(published)
        return round(min(max(x, 4.0), PICTURE["width"] - 4.0), 1)

    x = place(ratio)
    bounds = [place(value) for value in (row["low"], row["high"]) if value] or [x]
    is_beyond = x in {4.0, PICTURE["width"] - 4.0}
    return {"x": x, "from": min(bounds), "to": max(bounds), "beyond": is_beyond}


def checks_line() -> HTML:
    """A line on the checks of this machine's measuring, which names the failed ones."""
    return _html("checks_line", in_short(read_checks()))


def row_id(row: Mapping[str, Any]) -> str:
    """The id of a claim's row in ``score_table``."""
    return re.sub(r"[^a-z0-9]+", "-", f"{row['study']} {row['claim']}".lower())


def for_template(row: Mapping[str, Any], runs: str = "") -> dict[str, Any]:
    """The row, with the texts that the templates show.

    ``figures`` is our ratio, and its interval with the words for ``runs``; ``measure`` is what it
    is a ratio of; ``by_wall`` is the ratio by wall time if CPU time judged, ``by_cpu`` the ratio by
    CPU time if instructions judged, else a dash.
    """
    ratio, _, interval = ("", "", "") if row["ratio"] is None else interval_text(row).partition(" ")
    interval = ", ".join(filter(None, [interval, runs]))
    return {
        **row,
        "id": row_id(row),
        "outcome": outcome_of(row["verdict"]),
        "figures": (ratio, interval) if ratio else None,
        "published": ratio_text(row["published_ratio"]),
        "measure": MEASURES.get(row["metric"], row["metric"]),
        "by_wall": ratio_text(row["beside"]) if row["metric"] == "cpu_s" else "–",
        "by_cpu": ratio_text(row["beside"]) if row["metric"] == INSTRUCTIONS else "–",
    }


def interval_text(row: Mapping[str, Any]) -> str:
    """Our ratio and its interval, such as "1.75 (1.47 to 2.07)"."""
    if row["low"] is None:
        within = "no interval"
    elif row["low"] == row["high"]:
        what = "run" if (row.get("runs") or 0) >= RUNS else "block"
        within = f"in every {'count' if row.get('metric') == INSTRUCTIONS else what}"
    else:
        within = f"{ratio_text(row['low'])} to {ratio_text(row['high'])}"
    return f"{ratio_text(row['ratio'])} ({within})"


def then_and_now(row: Mapping[str, Any]) -> str:
    """The published ratio and ours with its interval, such as "published 2.00, now 1.75 (…)"."""
    return f"published {ratio_text(row['published_ratio'])}, now {interval_text(row)}"


def judged_where(row: Mapping[str, Any]) -> str:
    """The run that judged a row: release, machine, date and size, and the number of runs."""
    if row["record"] is None:
        return "no record"
    where = made_where(row["server"], row["host"], row["date"], row["profile"])
    return ", ".join(filter(None, [where, runs_text(row["runs"])]))


def _html(macro: str, *values: object) -> HTML:
    text = str(getattr(_TEMPLATES.get_template("score.html").module, macro)(*values)).strip()
    return HTML(text)  # type: ignore[no-untyped-call]


def in_text(cards: pl.DataFrame) -> str:
    """A ``scorecard``, study by study: published, now and this machine; then ``in_sentence``."""
    lines: list[str] = []
    for (study,), part in cards.group_by("study", maintain_order=True):
        lines += [*_study(str(study), part), ""]
    lines += wrapped(in_sentence(cards))
    lines += wrapped(
        "Ratios are candidate / baseline: published, then ours with its 95 % interval. "
        "Weaker: less than half as large on a logarithmic scale. "
        "†: by a stand-in for what the post had."
    )
    return "\n".join(map(printable, lines))


def in_sentence(cards: pl.DataFrame) -> str:
    """The numbers of a ``scorecard``'s claims by outcome, now and on this machine, in words."""
    now, own = _sides(of_posts(cards))
    words = (
        f"{now.height} {'claim' if now.height == 1 else 'claims'}: {in_sum(now)}. {decided(now)}."
    )
    here = f" This machine, {own.height}: {in_sum(own)}. {decided(own)}."
    return words + here if own.height else words


def ended(study: str, done: Executed) -> list[str]:
    """A run's result for a terminal: outcomes of its claims, what is open and why, its page."""
    lines: list[str] = []
    verdicts = done.verdicts
    if verdicts is not None and verdicts.height:
        left_open = verdicts.filter(~is_decided(verdicts))
        number_open = f"{left_open.height} open" if left_open.height else ""
        parts = filter(None, [in_sum(verdicts.filter(is_decided(verdicts))), number_open])
        count = f"{verdicts.height} {'claim' if verdicts.height == 1 else 'claims'}"
        lines += wrapped(f"{count}: {'; '.join(parts)}.", _INDENT)
        lines += _open_lines(study, left_open)
    page = paths.HTML / "book" / "studies" / f"{study}.html"
    lines.append(f"{' ' * _INDENT}Its page, which `pgstudies book` builds: {for_display(page)}")
    return [f"{study}: {for_display(done.notebook)}", *map(printable, lines)]


def _open_lines(study: str, left_open: pl.DataFrame) -> Iterator[str]:
    names = dict(all_claims().filter(study=study).select("claim", "name").iter_rows())
    reasons: dict[str, list[str]] = {}
    for row in left_open.iter_rows(named=True):
        reasons.setdefault(in_full(row), []).append(names.get(row["claim"], row["claim"]))
    common = sorted(reasons.items(), key=lambda item: -len(item[1]))
    for reason, claims in common[:MOST_REASONS]:
        yield from wrapped(f"Open: {'; '.join(claims)} ({reason}).", _INDENT)
    if rest := sum(len(claims) for _, claims in common[MOST_REASONS:]):
        yield from wrapped(f"Open for other reasons, which the page has: {rest}.", _INDENT)


def _study(study: str, part: pl.DataFrame) -> Iterator[str]:
    origin = origins()[study]
    post = f"({origin.post})"
    room = WIDTH - len(origin.title)
    if len(post) < room:
        yield f"{origin.title}{post:>{room}}"
    else:
        yield from [*wrapped(origin.title), *wrapped(post)]
    yield "=" * WIDTH
    now, own = now_and_here(part)
    for name, rows in (("Now", now), ("This machine", own)):
        if rows.height:
            yield from _about(name, rows)
    yield ""
    yield f"{'':{_COLUMN}}{'published':{_PUBLISHED}}now, with its 95 % interval"
    usual = _usual(now)
    was_beyond = False
    for row in side_by_side(part):
        if row["beyond"] and not was_beyond:
            yield from ("", "Beyond the post:")
            was_beyond = True
        yield from _claim(row, usual)


def _about(name: str, rows: pl.DataFrame) -> Iterator[str]:
    """The outcomes of the rows, the run that judged them, and whether its times may be off."""
    yield from wrapped(f"{name}: {in_sum(of_posts(rows))}")
    usual = _usual(rows)
    if usual["record"] is not None:
        runs = f", {runs_text(usual['runs'])}" if usual["runs"] else ""
        builds = f"; {usual['builds']}" if usual["builds"] else ""
        yield from wrapped(
            f"{usual['host']}, PostgreSQL {usual['server']}, {usual['date']} UTC, "
            f"{usual['blocks']} blocks, {usual['profile'] or 'unknown'} size{runs}{builds}",
            _INDENT,
        )
    checks = read_checks()
    if told := doubt(rows, checks):
        yield from wrapped(f"MARKED: {told} ({failures(checks)}).")


def _usual(part: pl.DataFrame) -> dict[str, Any]:
    """The most frequent values; a row shows only what differs from them."""
    found = part.drop_nulls("blocks") if part["blocks"].count() else part
    modes = {name: found[name].mode().sort()[-1] for name in ("server", "blocks")}
    return found.row(0, named=True) | modes | {"runs": usual_runs(part)}


def _claim(row: Mapping[str, Any], usual: Mapping[str, Any]) -> Iterator[str]:
    word = outcome_of(row["verdict"]).word
    remarks = [
        runs_text(row["runs"], usual["runs"]),
        "" if row["blocks"] in {usual["blocks"], None} else f"{row['blocks']} blocks",
        "" if row["server"] in {usual["server"], None} else f"on {row['server']}",
        row["verdict"].removeprefix(word).removeprefix(": "),
    ]
    text = "; ".join(filter(None, remarks))
    if row["ratio"] is not None:
        text = f"{row['published']:{_PUBLISHED}}{interval_text(row):{_FIGURES}}  {text}".rstrip()
    lines = wrapped(text, _COLUMN) or [""]
    yield f"{' ' * _INDENT}{word:{_COLUMN - _INDENT}}{lines[0].strip()}".rstrip()
    yield from lines[1:]
    if own := row["own"]:
        figures = f": {interval_text(own)}" if own["ratio"] is not None else ""
        yield from wrapped(f"this machine {own['agreement']}{figures}", _COLUMN)
    yield from wrapped(f"{row['text']}{' †' if row['stand_in'] else ''}", _COLUMN)


def wrapped(text: str, indent: int = 0) -> list[str]:
    """The text in lines of at most ``WIDTH`` columns."""
    space = " " * indent
    return textwrap.wrap(
        text, WIDTH, initial_indent=space, subsequent_indent=space, break_on_hyphens=False
    )
