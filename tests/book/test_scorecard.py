"""The scorecard: each verdict from records of known truth, its text, tiles and cache."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import escape

import pgstudies as pg
from pgapps.book.pages import marked
from pgapps.execution.executed import book_runs
from pgapps.execution.plan import plan, studies
from pgapps.execution.run import Executed, run_study
from pgapps.scorecard import scorecard as scorecards
from pgapps.scorecard.checks import KEY, doubt, machine_of
from pgapps.scorecard.judging import digest_of, judged, judged_by, keep, write_verdicts
from pgapps.scorecard.runs import of_reference
from pgapps.scorecard.scorecard import SCHEMA, decided, holds_when, scorecard
from pgapps.scorecard.table import PICTURE, came_to, checks_line, in_text, left, row_id, score_front
from pgservers import paths
from pgservers.errors import NotebookError, StudyError
from pgstudies.analysis.agreement import HOLDS, agreement, judge
from pgstudies.analysis.claims import Headline, claims
from pgstudies.charts.outcomes import OUTCOMES, agreement_with
from pgstudies.records.reading import read_record
from pgstudies.records.verdicts import VERDICTS
from pgstudies.rooms import find_room, study_module
from tests import made_up
from tests.made_up import SWEPT_CLAIM, copied_rooms, swept_record, timeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgstudies.records.reading import Record

    Write = Callable[..., Path]

CORES = study_module("io_method", "reading")
SCORES = study_module("scorecard", "tables")
CLAIMS = f"""{SWEPT_CLAIM}
[[claim]]
id = "alike"
name = "alike in short"
text = "Two are as many as one, <nearly>."
source = "arithmetic"
kind = "alike"
direction = "alike"
published_ratio = 1.0
judged_by = "rows"
comparison = {{ candidate = "two" }}
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, private: None) -> Path:
    """A project with one study, two claims, and neither a book nor records."""
    assert private is None
    rooms = copied_rooms(tmp_path, "swept")
    (rooms / "swept" / "claims.toml").write_text(CLAIMS)
    for name, kind in (("instrument", "check"), ("scorecard", "summary")):
        (rooms / name).mkdir()
        (rooms / name / f"{name}.ipynb").write_text('{"cells": []}')
        (rooms / name / "sizes.toml").write_text(f'kind = "{kind}"')
    monkeypatch.setattr(paths, "STUDIES", tmp_path / "book" / "studies")
    monkeypatch.setattr(paths, "NOTEBOOKS", (rooms,))
    monkeypatch.setenv("PGSTUDIES_NOTEBOOKS", str(rooms))
    monkeypatch.setattr("pgservers.paths.REFERENCE_RECORDS", tmp_path / "reference")
    return tmp_path


@pytest.fixture
def records(place: Path) -> Write:
    """Write a record of this user; see ``swept_record``."""

    def write(host: str = "db1", **options: Any) -> Path:
        blocks = len(options["two"]) if isinstance(options.get("two"), list) else 6
        done = timeline(*range(1, options.get("blocks", blocks) + 1))
        return swept_record(place / "records" / "swept", host, **{"timeline": done} | options)

    return write


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], pl.DataFrame]:
    """Judge as the notebook does, without a kernel."""

    def judged_here(path: Path) -> pl.DataFrame:
        samples = read_record(path).samples
        by = ["case", "step", "metric"]
        effects = pg.paired_effects(pg.block_values(samples, by=by), baseline="one", by=by)
        return judge(claims("swept"), effects)

    monkeypatch.setattr(scorecards, "judged", judged_here)
    return judged_here


UNSURE = [0.97, 1.02, 1.0, 1.06, 1.04, 1.1, 0.99, 1.08]


@pytest.mark.parametrize(
    ("claim", "two", "verdict"),
    [
        ("twice", 2.0, "holds"),
        ("twice", 1.2, "holds, weaker"),
        ("twice", 1.001, "gone"),
        ("twice", 0.5, "reversed"),
        ("twice", [2.0] * 4, "inconclusive: 2 more blocks"),
        ("alike", 1.001, "holds"),
        ("alike", 1.2, "gone"),
        ("alike", 0.8, "gone"),
    ],
)
def test_a_record_of_known_truth_gets_its_verdict(
    claim: str, two: float | list[float], verdict: str, records: Write
) -> None:
    path = records(two=two)
    cards = scorecard()
    assert cards.schema == SCHEMA
    (row,) = cards.filter(claim=claim).iter_rows(named=True)
    assert (row["verdict"], row["record"], row["current"]) == (verdict, path.name, True)
    assert row["published_ratio"] == {"twice": 2.0, "alike": 1.0}[claim]
    assert row["link"] == "swept.html#claims"


def test_an_open_verdict_says_how_many_blocks_it_lacks(records: Write) -> None:
    path = records(two=UNSURE)
    row = scorecard().row(0, named=True)
    effects = pg.paired_effects(
        pg.block_values(read_record(path).samples, by=["step"]), baseline="one", by=["step"]
    )
    more = effects["blocks_needed"].item() - len(UNSURE)
    assert more > 1
    assert row["verdict"] == f"inconclusive: {more} more blocks"


@pytest.mark.parametrize(
    ("verdict", "needed", "words"),
    [
        ("inconclusive", 7, "inconclusive: 1 more block"),
        ("inconclusive", None, "inconclusive"),
        ("holds", 9, "holds"),
        ("inconclusive: on its own", 9, "inconclusive: on its own; 3 more blocks"),
    ],
)
def test_one_more_block_is_singular_and_none_is_not_told(
    verdict: str, needed: int | None, words: str
) -> None:
    told = {"verdict": verdict, "blocks": 6, "blocks_needed": needed}
    assert scorecards.in_full(told) == words


def test_what_would_count_as_holding_follows_from_the_rule(records: Write) -> None:
    twice, alike = scorecard()["holds_when"]
    assert twice.startswith("By rows: ")
    assert twice.endswith(", and the ratio past the margin.")
    assert alike.endswith(" lies within the margin of 1.")
    records()
    twice, alike = scorecard()["holds_when"]
    assert twice.endswith("1.41 or above, half of the published effect on a logarithmic scale.")
    assert alike.endswith(" lies within 2 % of 1.")


def test_what_was_measured_and_not_judged_says_why_and_is_no_open_verdict(
    records: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    records()

    def unmet(path: Path) -> pl.DataFrame:
        effects = pg.paired_effects(pg.block_values(read_record(path).samples), baseline="one")
        return judge(claims("swept"), effects, conditions={"alike": "the plan is another"})

    monkeypatch.setattr(scorecards, "judged", unmet)
    cards = scorecard()
    assert cards["verdict"].to_list() == ["holds", "not judged: the plan is another"]
    assert cards["ratio"].to_list() == pytest.approx([2.0, 2.0])
    assert "\nNow: 1 holds; 1 not judged\n" in in_text(cards)


def test_what_was_not_tested_says_why(records: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    assert scorecard()["verdict"].to_list() == ["not tested: no record"] * 2
    assert scorecard()["record"].to_list() == [None, None]
    records()

    def failing(_: Path) -> pl.DataFrame:
        raise NotebookError("swept stopped in cell 3.")

    monkeypatch.setattr(scorecards, "judged", failing)
    assert scorecard()["verdict"].to_list() == ["not tested: swept stopped in cell 3"] * 2


def test_without_a_page_the_newest_record_with_intervals_is_current(records: Write) -> None:
    records(name="1", started_at="2026-11-21T12:00:00+00:00")
    records(name="2", started_at="2026-11-22T12:00:00+00:00", two=1.2)
    records(name="3", started_at="2026-11-23T12:00:00+00:00", two=[2.0])
    records(name="4", started_at="2026-11-24T12:00:00+00:00", status="interrupted")
    assert of_twice("record", "current") == [("2", True), ("1", False)]
    assert scorecard(records="current").filter(claim="twice")["record"].item() == "2"


def test_the_record_of_the_page_is_current_however_short(records: Write, place: Path) -> None:
    records(name="old", started_at="2026-11-21T12:00:00+00:00")
    short = records(name="short", started_at="2026-11-20T12:00:00+00:00", two=[2.0])
    page(place, "swept", short)
    page(place, "scorecard", None)
    assert of_twice("record", "current") == [("short", True), ("old", False)]
    assert [run.study for run in book_runs(paths.STUDIES)] == ["swept"]


def test_a_copy_of_a_record_counts_once(records: Write, place: Path) -> None:
    path = records(name="one")
    shutil.copytree(path, place / "reference" / "swept" / "one")
    assert scorecard()["record"].to_list() == ["one", "one"]  # two claims


def test_hosts_releases_and_dates_stand_side_by_side(records: Write) -> None:
    servers = {"9.6": {"version_text": "PostgreSQL 9.6.24"}}
    info = {"servers": servers, "server": {"version_text": "PostgreSQL 18.6 (Debian 18.6-1)"}}
    arms = made_up.arms_of("one", "two")
    arms[1]["server"] = "9.6"
    records("db1", name="1", **info)
    records("db2", name="2", started_at="2026-11-22T12:00:00+00:00", arms=arms, **info)
    assert of_twice("host", "server", "release", "date") == [
        ("db2", "9.6.24", "9.6", "2026-11-22 12:00"),
        ("db1", "18.6", "18", "2026-11-21 12:00"),
    ]
    first, second = scorecard(), scorecard()
    assert first.equals(second)
    assert in_text(first) == in_text(second)
    assert score_front(first).data == score_front(second).data


def test_the_front_page_has_the_reference_record_and_beside_it_this_machine(
    records: Write, place: Path
) -> None:
    reference, done = place / "reference" / "swept", timeline(*range(1, 7))
    swept_record(reference, "db0", name="20260101T000000Z-a", timeline=done)
    own = records("db1", two=0.5, started_at="2026-11-22T12:00:00+00:00")
    cards = scorecard(records="reference").filter(claim="twice")
    assert cards.select("host", "current", "reference", "verdict").rows() == [
        ("db1", True, False, "reversed"),
        ("db0", False, True, "holds"),
    ]
    front = score_front(cards).data
    assert "on db0, 2026-11-21" in front
    said = " ".join(re.sub(r"<[^>]*>", "", front).split())
    assert "once, at quick size. That decides 1 of its 1 claims; 0 agree" in said
    assert "<small>1 reversed</small>" in front
    assert front.count(">differs: reversed</span>") == 2  # of the study, and of its claim
    words = " ".join(in_text(cards).split())
    assert "holds 2.00 2.00" in words
    assert "this machine differs: reversed: 0.500" in words
    shutil.rmtree(own)
    assert "was measured once" not in score_front(scorecard(records="reference")).data


def test_records_that_are_not_shown_are_not_read(
    records: Write, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = timeline(*range(1, 7))
    reference = swept_record(place / "reference" / "swept", "db0", timeline=done)
    records("db1", started_at="2026-11-20T12:00:00+00:00")
    newest = records("db1", name="db1, later", started_at="2026-11-22T12:00:00+00:00")
    read = []

    def noted(path: str | Path) -> Record:
        read.append(Path(path).resolve())
        return read_record(path)

    monkeypatch.setattr("pgstudies.records.reading.read_record", noted)
    scorecard(records="reference")
    assert read == [newest.resolve(), reference.resolve()]


@pytest.fixture
def references(place: Path, in_process: Callable[[Path], pl.DataFrame]) -> Write:
    """Write a reference record with its verdicts; see ``swept_record``."""

    def write(day: int, two: float, profile: str = "standard", **told: Any) -> Path:
        path = swept_record(
            place / "reference" / "swept",
            "db0",
            name=f"202601{day:02}T000000Z-a",
            two=two,
            timeline=timeline(*range(1, 7)),
            profile=profile,
            **told,
        )
        write_verdicts(path / VERDICTS, in_process(path), "abc")
        return path

    return write


def of_twice(*columns: str) -> list[tuple[Any, ...]]:
    """These columns of the rows of the claim "twice"."""
    return scorecard().filter(claim="twice").select(*columns).rows()


def test_reference_records_of_other_sizes_and_code_stand_side_by_side(references: Write) -> None:
    references(1, 0.5, "quick")
    references(2, 1.001)
    references(3, 2.0)
    assert of_twice("record", "verdict", "runs", "reference") == [
        ("20260103T000000Z-a", "holds", 1, True),
        ("20260102T000000Z-a", "gone", None, False),
        ("20260101T000000Z-a", "reversed", None, False),
    ]


def test_a_record_on_another_number_of_cores_stands_beside_and_judges_nothing(
    references: Write,
) -> None:
    on_two = references(2, 2.0, cores=2)
    references(3, 0.5, cores=1)
    assert of_twice("record", "verdict", "reference") == [
        ("20260102T000000Z-a", "holds", True),
        ("20260103T000000Z-a", "reversed", False),
    ]
    found = of_reference("swept")
    assert found is not None
    assert found[0] == on_two
    beside = CORES.by_cores(read_record(on_two), found[1]).filter(claim="twice")
    assert beside.select("cores", "verdict").rows() == [(1, "reversed"), (2, "holds")]


CODE = {"procedure": "0123"}
"""Digests of code: without them records are not of one version."""


def test_six_reference_records_of_one_version_judge_together(references: Write) -> None:
    ratios = (4.0, 2.2, 1.8, 2.0, 1.9, 2.1, 2.05)
    for day, two in enumerate(ratios, start=1):
        at = f"2026-01-{day:02}T12:00:00+00:00"
        session = {"started_at": at, "boot_id": f"boot {day}"}
        code = {"procedure": "4567"} if two == 4.0 else CODE
        newest = references(day, two, code=code, sessions=[session], started_at=at)
    together, *alone = of_twice("runs", "low", "high", "verdict", "current", "record")
    assert together[:3] == (6, pytest.approx(1.8), pytest.approx(2.2))
    assert together[3:] == ("holds", True, f"{newest.name} and those alike")
    assert [row[1] for row in alone] == pytest.approx([*ratios[::-1]])
    assert all(row[0] is None and not row[4] for row in alone)
    assert "standard size, 6 runs" in " ".join(in_text(scorecard()).split())


def test_with_fewer_than_six_runs_the_newest_judges_and_says_how_many(references: Write) -> None:
    for day, two in ((1, 1.6), (2, 2.6)):
        session = {"started_at": f"2026-01-0{day}T12:00:00+00:00", "boot_id": f"boot {day}"}
        references(day, two, code=CODE, sessions=[session])
    assert of_twice("runs", "ratio", "verdict")[0] == (2, pytest.approx(2.6), "holds")
    cards = scorecard()
    assert "6 blocks, standard size, two runs" in " ".join(in_text(cards).split())
    assert "; two runs</small>" in score_front(cards).data
    assert "standard size, two runs" in SCORES.score_table(cards).data
    is_other = (pl.col("claim") == "alike") & pl.col("reference")
    more = cards.with_columns(runs=pl.when(is_other).then(3).otherwise("runs"))
    for shown in (in_text(more), SCORES.score_table(more).data):
        words = " ".join(shown.split())
        assert "two runs" in words
        assert "three runs" in words


def test_an_unknown_study_is_named() -> None:
    with pytest.raises(StudyError, match="no claims of absent; the studies are: swept"):
        scorecard("absent")


@pytest.fixture
def cards() -> pl.DataFrame:
    return made_up.cards("swept")


def test_the_text_fits_79_columns_and_says_every_verdict(cards: pl.DataFrame) -> None:
    text = in_text(cards)
    assert max(map(len, text.splitlines())) <= 79
    assert all(f"  {word} " in text for word in OUTCOMES)
    assert "0.00123 (0.000900 to 0.00210)" in text
    words = " ".join(text.split())
    assert "12 more blocks" in words
    assert "A study of nothing (Nobody, 2026) " in words
    assert "1 gone; 1 reversed; 1 inconclusive; 1 not judged; 1 not tested." in words


def test_the_text_without_any_record_says_so(cards: pl.DataFrame) -> None:
    text = in_text(scorecard())
    assert "not tested no record" in " ".join(text.split())
    assert "2 claims: 2 not tested." in text
    assert in_text(cards.head(1)).count("1 claim: 1 holds") == 1


SAME = (2.0, 1.9, 2.1)


@pytest.mark.parametrize(
    ("reference", "own", "verdicts", "words"),
    [
        (SAME, SAME, ("holds", "holds"), "agrees"),
        (SAME, SAME, ("gone", "gone"), "agrees"),
        (SAME, SAME, ("holds", "holds, perhaps weaker"), "agrees"),
        (SAME, SAME, ("holds", "holds, much stronger"), "agrees"),
        (SAME, SAME, ("holds", "holds, weaker"), "differs: holds, weaker"),
        (SAME, SAME, ("holds", "reversed"), "differs: reversed"),
        (SAME, SAME, ("holds", "inconclusive: 3 more blocks"), "inconclusive"),
        (SAME, SAME, ("inconclusive", "gone"), "gone"),
        (SAME, SAME, ("not tested: no disk", "not tested: no disk"), "not tested"),
        ((2.24, 2.1, 2.4), (1.25, 1.2, 1.3), ("holds", "holds"), "same direction, weaker"),
        ((0.5, 0.45, 0.55), (0.3, 0.25, 0.35), ("holds", "holds"), "same direction, stronger"),
        (SAME, (2.2, 2.05, 2.35), ("holds", "holds"), "agrees"),
        ((2.0, 2.0, 2.0), (2.04, 2.04, 2.04), ("holds", "holds"), "agrees"),  # within the margin
    ],
)
def test_a_run_agrees_where_verdicts_do_and_both_intervals_allow_one_ratio(
    reference: tuple[float, ...], own: tuple[float, ...], verdicts: tuple[str, str], words: str
) -> None:
    rows = [
        {"verdict": verdict, "margin": 0.02, **dict(zip(("ratio", "low", "high"), x, strict=True))}
        for x, verdict in zip((reference, own), verdicts, strict=True)
    ]
    assert agreement_with(*rows) == words


def test_a_study_is_a_row_that_shows_its_question_and_the_claim_of_its_first_headline(
    cards: pl.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = cards.drop_nulls("ratio")["claim"][-1]
    headlines = [Headline(last, "{now}")]
    monkeypatch.setattr("pgapps.scorecard.shown.headlines", lambda _: headlines)
    monkeypatch.setattr("pgapps.scorecard.table.question", lambda _: "Is <it> faster?")
    front = score_front(cards).data
    assert front.count("score-study") == 1
    (row,) = re.findall(r'<th scope="row">.*?</th>', front)
    assert "Is &lt;it&gt; faster?" in row
    assert str(escape(cards.filter(claim=last)["name"].item())) in row
    assert "this machine" not in front.partition("<details")[0]  # nothing was run


def test_tiles_escape_what_they_show(cards: pl.DataFrame) -> None:
    tiles = score_front(cards).data
    assert "<many>" not in tiles
    assert "&lt;no&gt; compiler" in tiles
    assert all(f'class="verdict {o.css}"' in tiles for o in OUTCOMES.values())
    assert all(o.sign in tiles for o in OUTCOMES.values())
    ids = re.findall(r'href="studies/scorecard.html#([^"]+)"', tiles)
    assert ids == [row_id(row) for row in cards.iter_rows(named=True)]


def test_what_is_left_of_an_effect_is_placed_between_none_and_all() -> None:
    row: dict[str, Any] = {"kind": "direction", "published_ratio": 4.0, "ratio": 2.0}
    row |= {"low": 1.0, "high": 4.0}
    half = (PICTURE["gone"] + PICTURE["published"]) / 2
    placed = {"x": half, "from": PICTURE["gone"], "to": PICTURE["published"], "beyond": False}
    assert left(row) == placed
    inverse = {name: 1 / row[name] for name in ("published_ratio", "ratio")}
    assert left(row | inverse | {"low": 0.25, "high": 1.0}) == placed
    far = left(row | {"ratio": 0.01, "low": 0.01, "high": 0.01})
    assert far is not None
    assert far["beyond"]
    assert left(row | {"kind": "alike"}) is None  # no effect was claimed
    assert left(row | {"published_ratio": None}) is None


def test_the_state_of_the_instrument_is_told(place: Path) -> None:
    assert "Measuring was not tested" in checks_line().data
    page(place, "instrument", None, checks=[check(passed=True)])
    assert "was tested on db1, 2026-11-21: 1 of 1 checks passed." in checks_line().data
    assert 'href="studies/instrument.html"' in checks_line().data
    page(place, "instrument", None, checks=[check(passed=False)])
    assert "failed: speed" in checks_line().data


@pytest.mark.parametrize(
    ("host", "metric", "machine", "is_marked"),
    [
        ("db1", "cpu_s", {}, True),
        ("db1", "rows", {}, False),
        ("db2", "cpu_s", {}, False),
        ("db1", "cpu_s", {"machine": "another, of the same name"}, False),
    ],
)
def test_the_times_of_a_failed_instrument_are_marked(
    *,
    host: str,
    metric: str,
    machine: dict[str, str],
    is_marked: bool,
    place: Path,
    records: Write,
) -> None:
    records(host)
    page(place, "instrument", None, checks=[check(passed=False) | machine])
    cards = scorecard().with_columns(metric=pl.lit(metric))
    shown, text = score_front(cards).data, in_text(cards)
    told = "2 of these 2 claims rest on times that may be off"
    mark = f'<a href="studies/instrument.html#the-checks">⚠ {told}.</a>'
    assert re.findall(r'<small class="doubtful">(.*?)</small>', shown) == [mark] * is_marked
    assert shown.count("because speed failed on that machine") == is_marked
    assert (f"MARKED: {told}" in text) is is_marked


def test_counts_of_a_failed_instrument_are_not_marked() -> None:
    failed = pl.DataFrame(
        {"check": ["speed"], "passed": [False], "sentence": ["slow"], "machine": ["a"]}
    )
    rows = pl.DataFrame({"machine": ["a", "a", "b"], "metric": ["buffers_read", "cpu_s", "cpu_s"]})
    assert doubt(rows, failed) == "1 of these 3 claims rests on times that may be off"
    assert doubt(rows.filter(metric="buffers_read"), failed) is None
    assert doubt(rows.filter(machine="b"), failed) is None


def test_a_page_says_that_its_machine_failed_a_check(place: Path, records: Write) -> None:
    here, elsewhere = records("db1"), records("db2", name="2")

    def shown(record: Path) -> str:
        title = {"cell_type": "markdown", "source": ["# Title\n", "\n", "Words."]}
        about = {"pgstudies": {"record": str(record)}}
        return str(marked({"cells": [title], "metadata": about})["cells"][0]["source"])

    page(place, "instrument", None, checks=[check(passed=True)])
    assert "may be off" not in shown(here)
    page(place, "instrument", None, checks=[check(passed=False)])
    assert shown(here).startswith("# Title\n\nWords.\n\n⚠ ")
    link = '<a href="instrument.html#the-checks">check of the measuring</a> (speed)'
    assert link in shown(here)
    assert "may be off" not in shown(elsewhere)
    assert "may be off" not in shown(place / "no record")


def test_what_the_claims_came_to_is_counted_with_the_claims_themselves(cards: pl.DataFrame) -> None:
    sums = came_to(cards)
    assert [row["outcome"].word for row in sums] == [
        word for word in OUTCOMES if word != "holds, much stronger"
    ]
    assert [row["now"] for row in sums] == [2] + [1] * (len(sums) - 1)
    assert [row["here"] for row in sums] == [None] * len(sums)
    words = ["hold, 1 of them much stronger", "holds, perhaps weaker", "holds, weaker"]
    assert [row["words"] for row in sums][:3] == words
    ids = [claim["id"] for row in sums for claim in row["claims"]]
    assert ids == [row_id(row) for row in cards.iter_rows(named=True)]
    front = score_front(cards).data
    assert f"Of {cards.height} claims" in front
    assert "✓ 2 hold, 1 of them much stronger<" in front


def test_claims_by_a_stand_in_bear_a_sign_and_are_counted_apart(cards: pl.DataFrame) -> None:
    is_one = pl.col("claim").is_in(cards["claim"][[0, -1]].to_list())  # holds, and is not tested
    stood = cards.with_columns(stand_in=pl.when(is_one).then(pl.lit("A twin stands for <it>.")))
    assert decided(cards) == "6 of 9 decided"
    assert decided(stood) == "6 of 9 decided, 1 of these by a stand-in"
    for shown in (score_front(stood).data, SCORES.score_table(stood).data):
        assert shown.count("A twin stands for &lt;it&gt;.") >= 2
        assert "A twin stands for <it>" not in shown
    assert score_front(stood).data.count("(by a stand-in)") == 2
    assert "1 of these by a stand-in" in SCORES.score_sum(stood).data
    assert " ".join(in_text(stood).split()).count("†") == 3  # and what it means


def test_the_ratio_by_wall_time_stands_beside_a_verdict_by_cpu_time(cards: pl.DataFrame) -> None:
    for metric, beside, number in (("cpu_s", 1.08, 1), ("duration_s", 1.08, 0), ("cpu_s", None, 0)):
        row = cards.head(1).with_columns(metric=pl.lit(metric), beside=pl.lit(beside, pl.Float64()))
        assert SCORES.score_table(row).data.count("by wall time 1.08") == number


def test_a_record_is_replayed_once(records: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = records(two=2.0)
    replayed: list[Executed] = []

    def counted(study: str, **options: Any) -> Executed:
        replayed.append(run_study(study, **options))
        return replayed[-1]

    monkeypatch.setattr("pgapps.scorecard.judging.run_study", counted)
    first = judged(path)
    assert first.select("claim", "verdict").rows() == [("twice", "holds"), ("alike", "gone")]
    # Better words for readers change nothing, other claims may.
    file = find_room("swept").directory / "claims.toml"
    file.write_text(CLAIMS.replace("Two are <twice> as many", "Two is the double"))
    assert judged(path).equals(first)
    assert len(replayed) == 1
    file.write_text(CLAIMS.replace("arithmetic", "sums"))
    again = judged(path)
    assert again["source"].to_list() == ["sums", "sums"]
    assert len(replayed) == 2
    (kept,) = paths.JUDGED.rglob("*.json")
    assert judged_by(kept) == digest_of("swept", path)
    kept.write_bytes(kept.read_bytes()[:-2])
    replay = iter([replayed[-1]])
    monkeypatch.setattr("pgapps.scorecard.judging.run_study", lambda *_, **__: next(replay))
    assert judged(path).equals(again)
    assert not [*replay], "damaged verdicts were read"


def test_a_run_leaves_its_verdicts_for_the_scorecard(
    records: Write, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = records(two=2.0)
    keep(run_study("swept", replay=path, output=place / "out.ipynb"))

    def never(*_: object, **__: object) -> Executed:
        raise AssertionError("replayed again")

    monkeypatch.setattr("pgapps.scorecard.judging.run_study", never)
    assert judged(path)["verdict"].to_list() == ["holds", "gone"]
    assert not [p for p in paths.JUDGED.rglob("*") if p.is_file() and p.suffix != ".json"]


def test_the_scorecard_is_no_study_and_yet_can_be_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "NOTEBOOKS", (paths.ROOT / "notebooks",))
    assert "scorecard" not in studies()
    assert plan("scorecard").parameters == {"study": "", "release": "", "history": True}
    assert plan("scorecard").injected == {}
    asked = plan("scorecard", server="16", parameters={"release": "16"})
    assert asked.injected == {"release": "16"}


def page(
    place: Path, name: str, record: Path | None, checks: list[dict[str, Any]] | None = None
) -> None:
    """An executed notebook of the book, as far as the scorecard looks at it."""
    studies = place / "book" / "studies"
    studies.mkdir(parents=True, exist_ok=True)
    about = {} if record is None else {"record": str(record), "profile": "quick"}
    cells = [{"outputs": [{"metadata": {KEY: checks}}]}] if checks else []
    text = json.dumps({"cells": cells, "metadata": {"pgstudies": about}})
    (studies / f"{name}.ipynb").write_text(text)


def check(*, passed: bool) -> dict[str, Any]:
    said = {"check": "speed", "passed": passed, "sentence": "as it was made"}
    machine = machine_of({"hostname": "db1"})
    return said | {"host": "db1", "date": "2026-11-21", "machine": machine}


HALF = "half of the published effect on a logarithmic scale"
PAST = "and the ratio past the margin of 2 %"
DISTANCE = "the post's own distance of 3.7 %"
AMONG = "so it must be among all of the study's claims"


@pytest.mark.parametrize(
    ("kind", "direction", "published", "told", "rule"),
    [
        ("direction", "slower", 4.0, {}, f"is 2.00 or above, {HALF}; {AMONG}"),
        ("count", "fewer", 0.25, {}, f"is 0.500 or below, {HALF}"),
        ("count", "fewer", 0.98, {}, f"is 0.990 or below, {HALF}, {PAST}"),
        ("threshold", "fewer", 0.1, {"threshold": 0.1}, "is 0.1 or below"),
        ("alike", "alike", 1.0, {"margin": 0.1}, "lies within 10 % of 1"),
        ("alike", "alike", 0.96429, {}, f"lies within {DISTANCE} and 2 % of 1"),
    ],
)
def test_the_rule_in_words(
    kind: str, direction: str, published: float, told: dict[str, float], rule: str
) -> None:
    usual: dict[str, Any] = {"metric": "cpu_s", "published_ratio": published, "margin": 0.02}
    words = f"By CPU time: the whole interval of the ratio {rule}."
    assert holds_when(kind, direction, **(usual | told)) == words


@settings(deadline=None)
@given(st.floats(1.001, 10), st.floats(1.0, 10), st.sampled_from([0.02, 0.1]))
def test_the_words_say_what_the_rule_does(published: float, ratio: float, margin: float) -> None:
    """The effect has no noise; ratios that the words round to the limit are left out."""
    words = holds_when("count", "more", metric="rows", published_ratio=published, margin=margin)
    at_least = max(math.sqrt(published), 1 + margin if "past the margin" in words else 1.0)
    assert "half of the published effect" in words
    if abs(ratio / at_least - 1) > 1e-9:
        held = agreement(published, ratio, ratio, ratio, margin) in HOLDS[:2]
        assert held == (ratio > at_least)


def test_what_no_post_claims_is_listed_apart_and_not_counted(cards: pl.DataFrame) -> None:
    is_beyond = pl.Series([False, False, True])
    some = cards.head(3).with_columns(beyond=is_beyond, reference=pl.lit(value=True))
    text = in_text(some)
    assert text.count("Beyond the post") == 1
    counts = [part.count("A claim of") for part in text.split("Beyond the post")]
    assert [counts[0] // 2, counts[1] // 2] == [2, 1]  # the words are there twice
    assert "2 claims: " in text
    front = score_front(some).data
    assert "Of 2 claims" in front
    assert front.index("claim 1 of") < front.index("Beyond the post") < front.index("claim 2 of")
