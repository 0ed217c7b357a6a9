"""Pages that answer first: their order, the strip of claims, and what is said for today."""

from __future__ import annotations

import base64
import json
import math
import re
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from docutils import nodes
from docutils.utils import new_document

from pgapps.book.pages import LARGE, TERMS, answer_first, close_folds, page_of, with_whose_charts
from pgapps.scorecard.advice import advice, advice_text, counted_between, counted_builds
from pgapps.scorecard.judging import (
    digest_of,
    judged_by,
    keep_reference,
    keep_together,
    require_clean,
    write_verdicts,
)
from pgapps.scorecard.runs import of_reference
from pgservers import paths
from pgservers.errors import StudyError
from pgstudies.analysis.agreement import judge, ratio_text
from pgstudies.analysis.claims import claim_marks, claims, meanings, origins
from pgstudies.charts.claims import answer, claims_chart, today, verdict_strip
from pgstudies.records.reading import read_record
from pgstudies.records.verdicts import (
    VERDICTS,
    read_verdicts,
    reference_verdicts,
    together_file,
    verdict_files,
)
from tests.made_up import SWEPT_CLAIM, copied_rooms, swept_record

if TYPE_CHECKING:
    from pathlib import Path

    from pgstudies.records.reading import Record
    from pgstudies.records.verdicts import Reference

MORE = '<details class="rest"><summary>More: {}</summary>\n'
CLAIMS = (
    """\
headlines = [
    { claim = "twice", text = "Two took {published} times as long, {now} now ({low} to {high})." },
    { claim = "twice", text = "{published_percent_more} % more, {now_percent_more} now." },
]
"""
    + SWEPT_CLAIM
    + 'today = { about = "counting", releases = [16, 17], '
    + 'holds = "Expect {ratio} times, {percent_more} % more." }\n'
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One claim, and reference records of the test's own."""
    rooms = copied_rooms(tmp_path, "swept")
    (rooms / "swept" / "claims.toml").write_text(CLAIMS)
    monkeypatch.setattr(paths, "NOTEBOOKS", (rooms,))
    monkeypatch.setattr(paths, "REFERENCE_RECORDS", tmp_path / "reference")
    return tmp_path


@pytest.fixture
def record(place: Path) -> Record:
    """A record of this machine."""
    return read_record(swept_record(place / "records", "db2"))


def kept(place: Path, ratio: float) -> Path:
    """A reference record, with its verdicts."""
    path = swept_record(place / "reference" / "swept", "db1", name="20260101T000000Z-a")
    write_verdicts(path / VERDICTS, verdicts(ratio), "abc")
    return path


def verdicts(ratio: float, low: float | None = None) -> pl.DataFrame:
    """The table of ``judge`` for the one claim, which two arms count ``ratio`` times."""
    row: dict[str, Any] = {"candidate": "two", "baseline": "one", "metric": "rows", "ratio": ratio}
    row |= {"low": low or ratio, "high": ratio, "blocks": 8, "margin": 0.02, "p_value": 0.001}
    row |= {"level": 0.95, "blocks_needed": None, "verdict": "more" if ratio > 1 else "fewer"}
    row |= {"log_ratios": [math.log(ratio)] * 8}
    return judge(claims("swept"), pl.DataFrame([row], schema_overrides={"blocks_needed": pl.Int64}))


def told() -> Reference | None:
    """The verdicts of the reference records together, stored anew."""
    keep_together("swept")
    return reference_verdicts("swept")


def cell(source: str, *tags: str) -> dict[str, Any]:
    return {"cell_type": "code", "source": source, "metadata": {"tags": list(tags)}}


def prose(source: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "source": source, "metadata": {}}


def shown(*cells: dict[str, Any]) -> Any:
    """The cells of the page of a notebook with these cells."""
    return page_of({"cells": [*cells], "metadata": {}})["cells"]


def test_a_page_begins_with_its_answer_and_leaves_out_the_cell_of_parameters() -> None:
    cells = [
        prose("# Title"),
        cell("rows = 1", "parameters"),
        cell("rows = 2", "injected-parameters"),
        cell("chart", "hide-input", "finding"),
        cell("gate", "fold"),
        cell("strip", "hide-input", "answer"),
    ]
    tags = {c["source"]: c["metadata"].get("tags", []) for c in shown(*cells)}
    assert [*tags] == [
        *("# Title", "strip", "chart", "rows = 1", "rows = 2", "gate", "chart\n\nstrip"),
    ]
    assert "remove-cell" in tags["rows = 1"]
    assert "remove-cell" in tags["rows = 2"]
    assert "hide-output" in tags["gate"]
    assert "remove-input" in tags["strip"]
    assert "hide-input" not in tags["chart"]
    assert cells[3]["metadata"]["tags"] == ["hide-input", "finding"]  # the notebook stays as it was


def test_the_hidden_code_of_a_section_has_one_bar() -> None:
    hidden = [cell(f"hidden = {n}", "hide-input") for n in range(3)]
    first = [prose("## 1"), hidden[0], cell("shown"), hidden[1]]
    second = [prose("## 2"), hidden[2], cell("left out", "remove-input")]
    found = shown(prose("# Title"), *first, *second)
    bars = [c["source"] for c in found if "hide-input" in c["metadata"].get("tags", [])]
    assert bars == ["hidden = 0\n\nhidden = 1", "hidden = 2"]
    assert [c["source"] for c in found][1:7] == [
        *("## 1", "hidden = 0", MORE.format("2 pieces of code"), "shown", "hidden = 1", bars[0]),
    ]


def showing(source: str, mime: str) -> dict[str, Any]:
    return cell(source, "remove-input") | {"outputs": [{"data": {mime: ["<table>"]}}]}


def test_a_section_shows_its_words_and_first_figure_and_folds_the_rest() -> None:
    table, chart = "text/html", "application/vnd.vegalite.v5+json"
    cells = [
        *(prose("# Title"), prose("## 0"), prose("Words 0."), showing("a", chart)),
        *(prose("Words 1."), showing("b", table), showing("c", table)),
        *(prose("## 1"), cell("code"), showing("d", chart)),
        *(prose("## 2"), showing("e", table), prose("Words 1."), prose("## 3")),
    ]
    found = [c["source"] for c in shown(*cells)]
    assert found == [
        *("# Title", "## 0", "Words 0.", "a", MORE.format("2 tables"), "Words 1.", "b", "c"),
        *("## 1", MORE.format("1 chart, 1 piece of code"), "code", "d"),
        *("## 2", "e", "Words 1.", "## 3"),
    ]


def test_a_fold_ends_with_its_section_whatever_lies_within() -> None:
    page, section, inner = new_document("page"), nodes.section(), nodes.section()
    page += section
    section += [nodes.title("", "1"), nodes.raw("", MORE.format("2 tables"), format="html"), inner]
    inner += nodes.paragraph("", "Words.")
    page += nodes.section("", nodes.title("", "2"))
    close_folds(None, page)  # type: ignore[arg-type]
    assert [type(child).__name__ for child in section] == ["title", "raw", "section", "raw"]
    assert section[-1].astext() == "</details>"
    assert len(page[1]) == 1


def test_a_large_file_goes_beside_its_page(tmp_path: Path) -> None:
    link = '<a download="{}" href="data:application/octet-stream;base64,{}">x</a>'
    large, small = base64.b64encode(bytes(LARGE)).decode(), base64.b64encode(b"abc").decode()
    html = link.format("swept-samples.parquet", large) + link.format("swept-record.json", small)
    about = cell("study.about()") | {"outputs": [{"data": {"text/html": [html]}}]}
    source = [json.dumps({"cells": [about], "metadata": {}})]
    answer_first(SimpleNamespace(outdir=tmp_path), "book/studies/swept", source)  # type: ignore[arg-type]
    (output,) = json.loads(source[0])["cells"][0]["outputs"]
    (file,) = tmp_path.rglob("swept-samples.parquet")
    assert file.read_bytes() == bytes(LARGE)
    assert f'href="../../{file.relative_to(tmp_path)}"' in output["data"]["text/html"]
    assert small in output["data"]["text/html"]


def test_a_term_of_the_glossary_is_linked_where_it_is_first_used() -> None:
    text = "# Arms and blocks\n\nIn a `block` every [arm](x.md) starts. Arms, arms and blocks.\n"
    text += "An arm."
    (page,) = shown(prose(text))
    assert page["source"] == (
        "# Arms and blocks\n\nIn a `block` every [arm](x.md) starts. "
        "Arms, {term}`arms <arm>` and {term}`blocks <block>`.\nAn arm."
    )


def test_every_term_that_is_linked_stands_in_the_glossary() -> None:
    entries = (paths.BOOK / "glossary.md").read_text(encoding="utf-8").split("\n")
    assert set(TERMS) <= set(entries)


def test_the_strip_has_the_posts_figure_ours_and_the_verdict(record: Record) -> None:
    strip = verdict_strip(verdicts(1.9, 1.8), record).data
    assert "Two are &lt;twice&gt; as many as one." in strip
    row = r">2.00<.*>1.90 <small>1.80 to 1.90</small><.*holds</span>"
    assert re.search(row, strip, re.DOTALL)
    assert "PostgreSQL 18.6 on db2, 2026-11-21, quick size" in strip
    assert "this machine" not in strip


def test_the_strip_sets_the_reference_record_beside_another(place: Path, record: Record) -> None:
    reference = kept(place, 0.5)
    strip = verdict_strip(verdicts(1.9), record, told()).data
    assert ">this machine <small>quick size</small><" in strip
    assert re.search(r">0.500<.*⇄ reversed<.*>differs: holds</span> <small>1.90", strip, re.DOTALL)
    assert ">agrees</span>" in verdict_strip(verdicts(0.4), record, told()).data
    alone = verdict_strip(verdicts(0.5), read_record(reference), told()).data
    assert ">this machine" not in alone
    assert ">this record" not in alone


def figures_of(strip: str) -> list[list[str]]:
    """The numbers of each row of a table of claims: published, now, and of the other run."""
    rows = strip.partition("<tbody>")[2].split("</tr>")[:-1]
    ours = r'<td class="number"[^>]*>([^<]*)(?:<small>(.*?)</small>)?</td>'
    other = r"</span> <small>(\S*)(?: <small>(.*?)</small>)?</small>"
    found = [re.findall(f"{ours}", row) + re.findall(other, row) for row in rows]
    return [[" ".join(x.split()) for pair in row for x in pair if x] for row in found]


def drawn_of(chart: Any) -> list[list[str]]:
    """The numbers of each row of a chart of claims, as its table has them."""
    spec = chart.to_dict()
    named = {x["name"]: spec["datasets"][x["data"]["name"]] for x in spec["layer"] if "name" in x}
    here = {row["claim"]: row for row in named.get("here", [])}
    rows = []
    for row in named["now"]:
        told = [ratio_text(row["published_ratio"])]
        for one in filter(None, (row, here.get(row["claim"]))):
            told.append(ratio_text(one["ratio"]))
            if one["low"] not in {None, one["high"]}:
                told.append(f"{ratio_text(one['low'])} to {ratio_text(one['high'])}")
        rows.append(told)
    return rows


@pytest.mark.parametrize("study", origins())
def test_the_chart_of_a_study_has_the_numbers_of_its_table(study: str) -> None:
    reference = reference_verdicts(study)
    assert reference is not None
    for file in (verdict_files(study)[0], reference.record / VERDICTS):
        judged, record = read_verdicts(file), read_record(file.parent)
        table = figures_of(verdict_strip(judged, record, reference).data)
        chart = drawn_of(claims_chart(judged, record, reference))
        measured = [row for row in table if len(row) > 1 and row[1] != "–"]
        assert chart == measured
        assert len(chart) > 1


def test_a_page_says_where_its_charts_are_of_another_run_than_its_answer(place: Path) -> None:
    answer, chart = cell("", "answer"), cell("", "finding")

    def between(record: Path) -> str:
        about = {"pgstudies": {"record": str(record)}}
        page = with_whose_charts({"cells": [answer, chart], "metadata": about})
        first, *words, last = page["cells"]
        assert (first, last) == (answer, chart)
        return "".join(cell["source"] for cell in words)

    own = swept_record(place / "records" / "swept", "db2")
    assert between(own) == ""  # there is no reference
    reference = kept(place, 2.4)
    alone, several = (verdicts(2.4).with_columns(runs=pl.lit(n, pl.Int64)) for n in (1, 6))
    write_verdicts(together_file("swept"), alone, reference.name)
    assert "of this machine's run (" in between(own)
    assert between(reference) == ""
    write_verdicts(together_file("swept"), several, reference.name)
    assert "of this page's record alone" in between(reference)


def test_what_is_drawn_depends_on_the_arguments_alone(place: Path, record: Record) -> None:
    def drawn() -> list[str]:
        judged = verdicts(1.9)
        return [verdict_strip(judged, record).data, today("swept", judged, None, None).data]

    before = drawn()
    kept(place, 0.5)
    assert told() is not None
    assert drawn() == before


def test_the_strip_says_which_claims_have_changed_since_it_was_begun(record: Record) -> None:
    assert "does not have the claims" in verdict_strip(verdicts(1.9), record).data
    marks = claim_marks("swept")
    record.info["claims"] = marks
    assert "are those that the record was begun with" in verdict_strip(verdicts(1.9), record).data
    record.info["claims"] = marks | {"twice": "another"}
    assert "since the record was begun: twice." in verdict_strip(verdicts(1.9), record).data


@pytest.mark.parametrize(
    ("info", "refused"),
    [
        ({"git": {"dirty": True}}, False),  # of before claims were kept
        ({"claims": {}, "git": {"dirty": False}}, False),
        ({"claims": {}, "git": None}, False),
        ({"claims": {}, "git": {"dirty": True}}, True),
    ],
)
def test_what_no_commit_has_cannot_be_a_reference(
    info: dict[str, Any], refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgapps.scorecard.judging.read_info", lambda _: info)
    with pytest.raises(StudyError, match="commit them") if refused else nullcontext():
        require_clean(tmp_path)


@pytest.mark.usefixtures("place")
def test_what_a_verdict_means_today_is_said_in_the_words_for_that_outcome() -> None:
    row = ("twice", "counting", "Expect 2.00 times, 100 % more.", 16.0, 17.0)
    assert meanings("swept", verdicts(2.0)).drop("study").rows() == [row]
    assert "Expect 2.00 times" in today("swept", verdicts(2.0), None, None).data
    weaker = verdicts(1.2)
    assert weaker["verdict"].to_list() == ["holds, weaker"]
    assert meanings("swept", weaker)["sentence"].to_list() == ["Expect 1.20 times, 20.0 % more."]
    assert meanings("swept", verdicts(0.5)).is_empty()
    assert today("swept", verdicts(0.5), None, None).data.strip() == ""


def test_what_it_means_today_is_by_the_reference_and_not_by_this_machine(
    place: Path, record: Record
) -> None:
    kept(place, 2.4)
    assert "Expect 2.40 times" in today("swept", verdicts(1.9), told(), None).data
    headed = "Two took 2.00 times as long, 2.40 now (2.40 to 2.40): holds."
    assert headed in verdict_strip(verdicts(1.9), record, told()).data


def test_an_open_verdict_says_what_its_claim_asks_for(place: Path, record: Record) -> None:
    asks = CLAIMS.replace('kind = "count"', 'kind = "threshold"\nthreshold = 1.5')
    (place / "notebooks" / "swept" / "claims.toml").write_text(asks)
    assert "holds at 1.5 or above" in verdict_strip(verdicts(1.6, 1.4), record).data
    assert "holds at" not in verdict_strip(verdicts(1.9, 1.8), record).data


@pytest.mark.usefixtures("place")
def test_the_answer_is_that_of_claims_that_hold() -> None:
    assert answer("swept", verdicts(1.9, 1.8)).endswith("100 % more, 90.0 now: holds.")
    assert answer("swept", verdicts(0.5)) == ""


@pytest.mark.parametrize(
    ("ratio", "words"), [(2.4, "2.40"), (1 / 11.12, "11.1, 91.0 %"), (189.3, "189")]
)
def test_a_ratio_is_told_as_its_sentence_names_it(place: Path, ratio: float, words: str) -> None:
    holds, against = "{ratio}", "{times_as_fast}, {percent_less} %"
    said = f'{{ about = "x", holds = "{holds}", reversed = "{against}" }}'
    text = re.sub(r"(?m)^today = .*$", lambda _: f"today = {said}", CLAIMS)
    (place / "notebooks" / "swept" / "claims.toml").write_text(text)
    assert meanings("swept", verdicts(ratio))["sentence"].to_list() == [words]


@pytest.mark.parametrize(
    "body",
    [
        '{ about = "x" }',
        '{ holds = "x" }',
        '"x"',
        '{ about = "x", holds = "{nothing}" }',
        '{ about = "x", holds = "{percent_less}" }',
        '{ about = "x", reversed = "{percent_more}" }',
        '{ about = "x", gone = "{times_as_fast}" }',
    ],
)
def test_words_for_today_that_cannot_be_said_are_refused(place: Path, body: str) -> None:
    spoilt = re.sub(r"(?m)^today = .*$", f"today = {body}", CLAIMS)
    (place / "notebooks" / "swept" / "claims.toml").write_text(spoilt)
    with pytest.raises(StudyError, match=r"invalid: claim 'twice'(, today (must|has)| has a s)"):
        claims("swept")


def test_advice_comes_from_reference_records_alone(place: Path) -> None:
    assert advice().is_empty()
    kept(place, 2.0)
    keep_together("swept")
    (row,) = advice().iter_rows(named=True)
    assert row["sentence"] == "Expect 2.00 times, 100 % more."
    assert (row["ratio"], row["verdict"]) == (2.0, "holds")
    assert row["where"] == "PostgreSQL 18.6 on db1, 2026-11-21, quick size, one run"


def test_damaged_reference_verdicts_are_one_sentence(place: Path) -> None:
    kept(place, 2.0)
    (file,) = keep_together("swept")
    content = file.read_bytes()
    for size in (0, len(content) // 2, len(content) - 2):
        file.write_bytes(content[:size])
        with pytest.raises(StudyError, match=r"is damaged: its SHA-256.*make verdicts"):
            advice()
    for bit in range(0, 8 * len(content), 997):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        with pytest.raises(StudyError, match=r"is damaged"):
            advice()


def test_the_card_of_an_upgrade_has_what_was_counted_and_what_lies_between() -> None:
    units = counted_between("14", "15")
    assert (units.select(pl.max_horizontal("ratio", 1 / pl.col("ratio"))).to_series() >= 1.05).all()
    created = units.filter(pl.col("unit") == "one function created", pl.col("open") == 2000)
    assert 0.5 < created["ratio"].item() < 0.65
    text = advice_text("14", "18")
    assert max(map(len, text.splitlines())) <= 79
    assert "maintenance_work_mem" in text
    assert "maintenance_work_mem" not in advice_text("17", "18")
    assert "pgstudies compare --baseline 14 --candidate 18" in text
    assert "synchronize_seqscans" in advice_text()
    assert counted_builds("14", "18").startswith("Both are built with gcc 7.5.0")
    told = re.sub(r"\s+", " ", advice_text("9.6", "14"))
    assert "9.6 is built with gcc 4.4.7" in told
    assert "14 with gcc 7.5.0" in told
    assert "compare --baseline DIRECTORY --candidate DIRECTORY" in told
    assert "builds differ: " in text
    assert "builds differ" not in advice_text()


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("14", None, "Give both releases"),
        ("14", "8.2", "^8.2 was not counted"),
        ("14", "this server", r"^this server was not counted; there is [\d., ]*\. To count"),
        ("18", "14", "14 is not newer than 18"),
        ("14", "14", "14 is not newer than 14"),
    ],
)
def test_a_release_that_is_not_known_is_named(before: str, after: str | None, words: str) -> None:
    with pytest.raises(StudyError, match=words):
        advice_text(before, after)


@pytest.mark.parametrize("study", origins())
def test_the_verdicts_beside_a_reference_record_are_of_this_code(study: str) -> None:
    known, found = reference_verdicts(study), of_reference(study)
    assert known is not None, "run `make verdicts`"
    stale = "the verdicts are older than the notebook or the analysis: run `make verdicts`"
    assert judged_by(known.record / VERDICTS) == digest_of(study, known.record), stale
    assert found is not None
    assert found[0] == known.record, stale
    assert known.verdicts.equals(found[1]), stale


def test_verdicts_of_this_code_are_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("replayed")

    monkeypatch.setattr("pgapps.scorecard.judging.run_study", never)
    assert keep_reference() == []


def test_the_strip_has_the_ratio_by_wall_time_and_the_sign_of_a_stand_in(
    place: Path, record: Record
) -> None:
    by_cpu = verdicts(1.9).with_columns(metric=pl.lit("cpu_s"), beside=pl.lit(1.08))
    assert "by wall time 1.08" in verdict_strip(by_cpu, record).data
    counted = by_cpu.with_columns(metric=pl.lit("rows"))
    strip = verdict_strip(counted, record).data
    assert "by wall time" not in strip
    assert "†" not in strip
    (file,) = place.rglob("swept/claims.toml")
    text = file.read_text()
    (candidate,) = set(re.findall(r'candidate = "(\w+)"', text))
    file.write_text(f"stand_ins = {{ {candidate} = 'A <twin> stands for it.' }}\n{text}")
    strip = verdict_strip(counted, record).data
    assert 'title="A &lt;twin&gt; stands for it.">†</abbr>' in strip
    assert "† by a stand-in: A &lt;twin&gt; stands for it." in strip
