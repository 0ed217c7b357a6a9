"""Comparing two servers: effects, verdict, text and report, on blocks whose truth is known."""

from __future__ import annotations

import math
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from pgapps.compare.design import Comparison, Side
from pgapps.compare.judging.measured import (
    Measured,
    _was_looked_at,
    compared_effects,
    read_measured,
    reasons,
)
from pgapps.compare.judging.result import Result, result_of, undecided
from pgapps.compare.report import request_in, write_report
from pgapps.compare.request import Request
from pgapps.compare.text import as_text, noise
from pgapps.compare.wording import COLUMNS, seconds
from pgservers.errors import StudyError
from pgstudies.records.samples import SAMPLES_SCHEMA
from pgstudies.records.writing import write_whole
from tests.made_up import info, samples, swept_info

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GOLDEN = Path(__file__).parents[1] / "golden" / "comparison.txt"

COMPARISON = Comparison(Side("embedded"), Side("/home/me/patched", {"work_mem": "64MB"}))
NOISE = (0.0, 0.004, -0.003, 0.002, -0.004, 0.003, -0.002, 0.001, -0.001)
"""Log-ratios of two equal arms: no effect, no order, no drift."""

FACTS = {
    "settings": {"work_mem": ["4096", "default"], "jit": ["off", "command line"]},
    "assertions": "off",
    "cflags": "-Wall -O2 -g",
    "version_text": "PostgreSQL 18.6",
}


def logs(effect: float) -> list[float]:
    return [math.log(effect) + noise for noise in NOISE]


def samples_of(
    steps: Mapping[str, Sequence[float]],
    metrics: Mapping[tuple[str, str], tuple[float, float, str]] | None = None,
    *,
    again: Sequence[float] | None = None,
) -> pl.DataFrame:
    """Steps by name, each with its log-ratio in every block; further metrics by step and name."""
    copies = NOISE[1:] + NOISE[:1] if again is None else again
    frames = []
    for step, ratios in steps.items():
        blocks = len(ratios)
        seconds = {
            "baseline": [0.5] * blocks,
            "baseline (again)": [0.5 * math.exp(copies[block]) for block in range(blocks)],
            "candidate": [0.5 * math.exp(log_ratio) for log_ratio in ratios],
        }
        answers = {name: [42.0] * blocks for name in seconds}
        frames += [
            samples(seconds, step=step, turns=True),
            samples(answers, step=step, metric="result", unit="digest", turns=True),
        ]
        for (of, metric), (before, after, unit) in (metrics or {}).items():
            if of == step:
                found = {"baseline": [before] * blocks, "candidate": [after] * blocks}
                frames.append(samples(found, step=step, metric=metric, unit=unit))
    return pl.concat(frames).with_columns(
        side="arm",
        copy_of=pl.when(pl.col("arm") == "baseline (again)").then(pl.lit("baseline")),
        arm=pl.format("heap, {}", "arm"),
        of=pl.lit("heap"),
        study=pl.lit("made_up"),
        iteration=pl.lit(0, pl.Int32),
    )


AT = "2026-11-21T20:00:00+00:00"


def info_of(**changed: Any) -> Any:
    """A record of two builds, whose only block in the timeline ran programs relinked."""
    arms: list[dict[str, object]] = [
        {"name": f"heap, {s}", "of": "heap", "side": s, "not_run": None}
        | {"description": "", "baseline": s == "baseline"}
        | {"copy_of": "heap, baseline" if s == "baseline (again)" else None}
        for s in ("baseline", "baseline (again)", "candidate")
    ]
    known = {
        "arms": arms,
        "comparison": {
            "baseline": {"server": "embedded", "settings": {}},
            "candidate": {"server": "/home/me/patched", "settings": {"work_mem": "64MB"}},
        },
        "facts": {
            "heap, baseline": FACTS,
            "heap, candidate": FACTS
            | {"settings": FACTS["settings"] | {"work_mem": ["65536", "command line"]}},  # type: ignore[operator]
        },
        "plans": {
            str(arm["name"]): {"insert": "Insert on t", "select": "Seq Scan on t"} for arm in arms
        },
        "started_at": AT,
        "timeline": [
            {"block": 1, "position": n, "arm": a["name"], "started_at": AT, "finished_at": AT}
            for n, a in enumerate(arms, start=1)
        ],
        "links": [{"block": 1, "arm": arm["name"]} for arm in arms],
        "pinned_to_core": 1,
        "host": {"hostname": "bench1", "cpu_model": "A processor", "kernel": "6.12"},
        "server": {"version_text": "PostgreSQL 18.6"},
        "servers": {"/home/me/patched": {"version_text": "PostgreSQL 19devel"}},
    }
    return info("made_up", **known | changed)


def made_up(samples: pl.DataFrame, info: Any = None) -> Measured:
    return Measured("made_up", (info or info_of(),), (), samples)


def well() -> Measured:
    return of_inserts(1.0)


def result(measured: Measured, margin: float = 0.02, **how: Any) -> Result:
    return result_of(COMPARISON, [measured], case=None, margin=margin, profile="quick", **how)


def words(result: Result) -> str:
    """The text, in one line."""
    return " ".join(as_text(result).split())


def first_line(result: Result) -> str:
    return " ".join(as_text(result).partition("\n\n")[0].split())


def of_inserts(ratio: float, *, spread: float = 1.0) -> Measured:
    """Two steps, of which insert takes ``ratio`` times as long on the candidate."""
    inserts = [math.log(ratio) + spread * noise for noise in NOISE]
    return made_up(samples_of({"insert": inserts, "select": logs(1.0)}))


@pytest.mark.parametrize(("ratio", "verdict", "code"), [(1.1, "slower", 1), (0.8, "faster", 0)])
def test_a_step_that_takes_longer_is_a_regression(ratio: float, verdict: str, code: int) -> None:
    found = result(of_inserts(ratio))
    assert dict(found.effects.select("step", "verdict").rows()) == {
        "insert": verdict,
        "select": "equivalent",
    }
    assert found.effects["ratio"].round(2).to_list() == [ratio, 1.0]
    assert found.code == code


@pytest.mark.parametrize(
    ("noisy", "told"), [(1, "1 equivalent within 2 %; 1"), (2, "0 equivalent within 2 %; 2")]
)
def test_what_noise_hides_is_no_regression_and_is_told_with_its_width(
    noisy: int, told: str
) -> None:
    wide = [8 * noise + 0.02 for noise in NOISE]
    steps = {"insert": wide, "select": wide if noisy == 2 else logs(1.0)}
    found = result(made_up(samples_of(steps)))
    assert found.code == 0
    first = first_line(found)
    assert first.startswith("No regression found: 0 of 2 steps slower, 0 faster, ")
    assert first.endswith(f" {told} known no better than within 1.7 %.")


def test_a_study_that_could_not_be_compared_leaves_it_undecided_and_is_named() -> None:
    found = result(well(), failures=["cluster_order"])
    assert found.code == 2
    assert first_line(found).startswith("Not decided, because cluster_order could not be compared:")
    assert result(of_inserts(1.1), failures=["cluster_order"]).code == 1


def test_too_few_blocks_for_an_interval_decide_nothing() -> None:
    found = result(made_up(samples_of({"insert": logs(1.0)[:4], "select": logs(1.0)})))
    assert found.code == 2
    assert "because there are too few blocks for an interval of 1 step:" in first_line(found)


def test_settings_that_nothing_used_are_named() -> None:
    unused = {"autovacuum_naptime": "1s", "checkpoint_timeout": "30min", "huge_pages": "try"}
    tried = {**unused, "max_wal_senders": "0", "work_mem": "64MB"}
    shown = {"autovacuum": ["off", "command line"], "huge_pages_status": ["off", "override"]}
    facts = FACTS | {"settings": shown}
    info = info_of(facts={"heap, baseline": facts, "heap, candidate": facts})
    sides = Comparison(Side("embedded"), Side("embedded", tried))
    measured = made_up(samples_of({"insert": logs(1.0)}), info)
    found = result_of(sides, [measured], case=None, margin=0.02, profile="quick")
    assert (
        "Not exercised: autovacuum_naptime (autovacuum is off), checkpoint_timeout (no server ran "
        "for so long), huge_pages (the candidate got none), max_wal_senders (no WAL is archived or "
        "sent)."
    ) in " ".join(as_text(found).split())


def test_six_blocks_decide_what_all_of_them_show() -> None:
    steps = {f"step {n}": logs(1.0)[:6] for n in range(20)}
    assert result(made_up(samples_of(steps))).code == 0
    assert result(made_up(samples_of(steps | {"insert": logs(1.1)[:6]}))).code == 1


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (("on", True), ("on", True), "JIT: can play on both sides"),
        (("", False), ("on", True), "candidate alone, as the baseline has none before release 11"),
        (("on", True), ("off", False), "the baseline alone, as the candidate has it off"),
        (("on", False), ("on", False), "neither side, as both are built without LLVM"),
        (("off", False), ("off", False), ""),
    ],
)
def test_where_jit_can_play_is_said(
    before: tuple[str, bool], after: tuple[str, bool], said: str
) -> None:
    def facts(jit: str, available: bool) -> dict[str, Any]:
        settings = {"jit": [jit, "default"]} if jit else {}
        return FACTS | {"settings": settings, "jit_available": available}

    sides = {"heap, baseline": facts(*before), "heap, candidate": facts(*after)}
    text = words(result(made_up(well().samples, info_of(facts=sides))))
    assert said in text
    assert bool(said) == ("JIT:" in text)
    assert "JIT:" not in as_text(result(well()))  # these servers were not asked


def test_transactions_that_fail_are_compared_by_their_part_of_all() -> None:
    whole = well().samples
    failed = whole.filter(metric="duration_s", step="insert", side="candidate").with_columns(
        metric=pl.lit("deadlocks"), value=pl.lit(0.03), unit=pl.lit("of transactions")
    )
    found = result(made_up(pl.concat([whole, failed])))
    assert found.code == 0
    (row,) = found.failed.iter_rows(named=True)
    assert (row["of"], row["step"], row["failure"]) == ("heap", "insert", "deadlocks")
    assert (row["baseline"], row["candidate"]) == pytest.approx((0.0, 0.03))
    assert (row["low"], row["high"]) == pytest.approx((0.03, 0.03))
    assert "insert, deadlocks: 0.00 % -> 3.00 % (+3.00 to +3.00 points)" in words(found)
    assert result(well()).failed.is_empty()
    assert "Transactions that failed" not in as_text(result(well()))


def test_every_script_that_is_left_out_is_named() -> None:
    left_out = [
        {"arm": "heap, candidate", "step": f"script {n}", "case": "", "reason": f"line {n} fails"}
        for n in range(9)
    ]
    found = result(made_up(well().samples, info_of(left_out=left_out)))
    assert "faster, 9 not measured" in first_line(found)
    assert "not measured" not in as_text(result(well()))
    told = {f"  made_up, script {n}: line {n} fails." for n in range(9)}
    assert told <= set(as_text(found).splitlines())


def test_half_an_interval_is_told() -> None:
    effects = pl.DataFrame({"low": [0.99, 1.0], "high": [0.99 * 1.02**2, 1.0]})
    assert noise(effects) == "CI half-width: median 1.0 %, worst 2.0 %."
    assert noise(effects.clear()) == ""


def of_work(
    clock: Sequence[float], cpu: Sequence[float], share: float = 0.99, delay: float = 0.0
) -> Measured:
    """One step with these log-ratios by the clock, and by CPU time.

    CPU time is a ``share`` of the time, and waiting for a core a ``delay`` of it.
    """
    whole = samples_of({"probe": clock})
    value = pl.col("value")
    parts = [
        times.filter(metric="duration_s").with_columns(metric=pl.lit(metric), value=part * value)
        for times, metric, part in (
            (samples_of({"probe": cpu}), "cpu_s", share),
            (whole, "run_delay_s", delay),
        )
        if part
    ]
    return made_up(pl.concat([whole, *parts]))


def test_cpu_time_judges_what_is_bound_by_the_processor() -> None:
    unsteady = [9 * noise + 0.1 for noise in NOISE]
    effects = compared_effects([of_work(unsteady, logs(1.1))])
    assert effects.select("metric", "verdict").rows() == [("cpu_s", "slower")]
    assert effects["ratio"].round(2).to_list() == [1.1]
    waits = compared_effects([of_work(logs(1.0), logs(1.1), share=0.8)])
    assert waits.select("metric", "verdict").rows() == [("duration_s", "equivalent")]


@pytest.mark.parametrize(("delay", "judges"), [(0.2, "duration_s"), (0.39, "cpu_s")])
def test_a_step_that_waited_for_a_core_is_bound_by_the_processor(delay: float, judges: str) -> None:
    """Other work on the machine takes the core away: that is no wait of the step's."""
    waited = of_work(logs(1.0), logs(1.1), share=0.6, delay=delay)
    assert compared_effects([waited])["metric"].to_list() == [judges]


def test_what_only_waits_longer_is_judged_by_the_clock() -> None:
    measured = of_work(logs(1.1), logs(1.0))
    assert compared_effects([measured])["verdict"].to_list() == ["equivalent"]
    judged = result(measured)
    assert judged.effects.select("metric", "verdict").rows() == [("duration_s", "slower")]
    assert judged.code == 1
    assert "waits longer: wall time is 1.1 times" in judged.effects["note"].item()


def looked_at(*blocks_before: int) -> Measured:
    """Eight blocks, with sessions that began after so many of them."""
    begins = [0, *blocks_before]
    sessions = [{"started_at": f"2026-11-21T20:{10 * n:02}:30+00:00"} for n in begins]
    timeline = [
        {"block": block, "started_at": f"2026-11-21T20:{10 * block - 5:02}:00+00:00"}
        for block in range(1, 6)
    ] + [{"block": block, "started_at": "2026-11-21T20:55:00+00:00"} for block in (6, 7, 8)]
    told = info_of(sessions=sessions, timeline=timeline)
    return replace(well(), was_looked_at=_was_looked_at([told]))


def test_blocks_added_after_a_look_are_judged_as_such() -> None:
    assert not looked_at().was_looked_at
    assert not looked_at(2, 5).was_looked_at, "five blocks decide nothing"
    again = looked_at(9)
    assert again.was_looked_at
    fixed, anytime = result(looked_at()), result(again)
    assert (fixed.anytime, anytime.anytime) == (False, True)
    width = pl.col("high") - pl.col("low")
    assert (anytime.effects.select(width) > fixed.effects.select(width)).to_series().all()
    assert "looked at" in words(anytime)
    assert "looked at" not in words(fixed)


def test_what_more_blocks_would_decide_is_undecided() -> None:
    wide = [math.log(1.012) + 6 * noise for noise in NOISE]
    assert undecided(result(made_up(samples_of({"insert": wide})))) == ["made_up"]
    assert undecided(result(well())) == []


METRICS = {
    ("insert", "wait, IO: WalSync"): (0.1, 0.145, "s"),
    ("insert", "wait, CPU"): (0.3, 0.3, "s"),
    ("insert", "wal_bytes"): (1000.0, 1200.0, "bytes"),
    ("insert", "buffers_read"): (0.0, 5.0, "pages"),
    ("insert", "buffers_hit"): (700.0, 700.0, "pages"),
    ("select", "buffers_hit"): (10.0, 500.0, "pages"),
}


SLOWER = {"insert": logs(1.1), "select": logs(1.0)}

SYNC = "wait, IO: WalSync"


def reasons_of(samples: pl.DataFrame) -> pl.DataFrame:
    measured = [made_up(samples)]
    return reasons(measured, compared_effects(measured))


def test_reasons_are_what_moved_with_a_step_that_differs() -> None:
    samples = samples_of(SLOWER, METRICS)
    found = reasons_of(samples)
    assert set(found["step"]) == {"insert"}
    assert set(found["metric"]) == {"wal_bytes", "buffers_read", SYNC}
    assert found.filter(metric=SYNC)["share"].item() == pytest.approx(0.9, abs=0.05)
    # A wait of one side only counts as nothing on the other.
    of_baseline = (pl.col("metric") == SYNC) & (pl.col("side") == "baseline")
    row = reasons_of(samples.filter(~of_baseline)).row(
        by_predicate=pl.col("metric") == SYNC, named=True
    )
    assert (row["baseline"], row["candidate"]) == (0, 0.145)


def test_shares_are_of_one_whole_and_go_its_way() -> None:
    metrics = {
        ("insert", "wait, IO: DataFileRead"): (0.10, 0.16, "s"),
        ("insert", "wait, LWLock: WALWrite"): (0.10, 0.14, "s"),
        ("insert", "wait, IO: DataFileExtend"): (0.30, 0.10, "s"),
        ("insert", "cpu_s"): (0.1, 0.1, "s"),
        ("insert", "wait, CPU"): (0.1, 0.2, "s"),
    }
    shares = dict(reasons_of(samples_of(SLOWER, metrics)).select("metric", "share").rows())
    assert shares == pytest.approx(
        {"wait, IO: DataFileRead": 0.6, "wait, LWLock: WALWrite": 0.4}, abs=0.01
    )


def test_an_event_has_one_name_in_all_releases() -> None:
    metrics = {
        ("insert", "wait, IO: WALSync"): (0.1, 0.145, "s"),
        ("insert", "wait, LWLockNamed: WALWriteLock"): (0.1, 0.105, "s"),
    }
    newer = {
        "wait, IO: WALSync": SYNC,
        "wait, LWLockNamed: WALWriteLock": "wait, LWLock: WALWrite",
    }
    is_newer = pl.col("side") == "candidate"
    found = reasons_of(
        samples_of(SLOWER, metrics).with_columns(
            metric=pl.when(is_newer).then(pl.col("metric").replace(newer)).otherwise("metric")
        )
    )
    (row,) = found.filter(metric=SYNC).rows(named=True)
    assert (row["baseline"], row["candidate"]) == (0.1, 0.145)
    assert "wait, IO: WALSync" not in found["metric"]


def test_a_case_is_judged_alone() -> None:
    effects = compared_effects([well()], case="insert")
    assert effects["step"].to_list() == ["insert"]
    with pytest.raises(StudyError, match="No step or case is called 'update'"):
        compared_effects([well()], case="update")


def test_the_text_for_the_mailing_list_is_the_golden_one() -> None:
    info = info_of()
    info["plans"]["heap, candidate"]["insert"] = "Insert on t by the patch"
    steps = SLOWER | {"vacuum": [8 * n + 0.012 for n in NOISE]}
    info["server"]["build"] = (
        "PostgreSQL 18.6 on x86_64, compiled by gcc (Debian 14.2-1) 14.2.0, 64-bit"
    )
    info["facts"]["heap, candidate"]["revision"] = "0123456789+"
    found = result(made_up(samples_of(steps, METRICS), info))
    command = "pgstudies compare --candidate /home/me/patched+my.conf"
    text = as_text(found, command)
    assert max(map(len, text.splitlines())) <= COLUMNS
    assert text.isascii()
    assert text == GOLDEN.read_text(encoding="utf-8").rstrip("\n")


def test_a_side_that_was_built_from_a_repository_is_named_by_its_commit() -> None:
    place = "/home/me/.cache/pgstudies/commits/70782104cc4d/builds/f20c4278342f6afc-5373d40b"
    found = result(made_up(samples_of({"insert": logs(1.0)}, METRICS), info_of()))
    built = replace(COMPARISON, candidate=Side(place, {"work_mem": "64MB"}))
    text = as_text(replace(found, comparison=built))
    assert "Candidate: commit f20c427834 with work_mem = 64MB (" in text
    named = replace(COMPARISON, candidate=Side(f"{place}/install"))
    assert f"Candidate: {place}/install\n" in as_text(replace(found, comparison=named))


def test_the_text_is_of_what_moved_and_says_how_little_the_rest_did() -> None:
    steps = {f"step {n}": logs(1.0) for n in range(40)}
    steps |= {f"slow {n}": logs(1.1 + n / 100) for n in range(20)}
    found = result(made_up(samples_of(steps)))
    text = as_text(found)
    assert len(text.splitlines()) <= 25
    assert "slow 19" in text
    assert "slow 0" not in text
    assert "step 1" not in text
    remark = "12 more are in the report. Nothing else that is decided moved by more than 0.3 %"
    assert remark in words(found)
    assert first_line(result(well())).startswith("No regression: 0 of 2 steps slower, 0 faster")
    assert "Nothing moved by more than 0.3 %." in words(result(well()))


def test_times_are_told_in_the_unit_that_fits() -> None:
    assert seconds(1.504e-05, 1.6e-05) == ("15", "16 µs")
    assert seconds(0.0, 0.0123) == ("0", "12.3 ms")
    assert seconds(2.0, 1.5) == ("2", "1.5 s")
    assert seconds(0.0, 0.0) == ("0", "0 ns")


def test_the_report_holds_what_it_takes_to_measure_again(tmp_path: Path) -> None:
    candidate = Side("17", {"jit": "on <!--<script></script>"})
    request = Request(Side("embedded"), candidate, ("made_up",), blocks=7, case="insert")
    path = write_report(result(well()), request, "a text", tmp_path / "r.html")
    assert request_in(path) == request
    body = path.read_text(encoding="utf-8").split("<body>")[1]
    assert "<!--<script>" not in body
    body = body.split("<script>")[0]
    assert re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', body) == []


def test_the_report_has_what_statements_of_moved_steps_did_on_both_sides(tmp_path: Path) -> None:
    names = ["insert", "insert, 2: SELECT", "vacuum"]
    sides = ("baseline", "candidate")
    did = {f"heap, {side}": {n: f"{n} of the {side}" for n in names} for side in sides}
    info = info_of(analyzed=did)
    found = result(made_up(samples_of(SLOWER | {"vacuum": logs(1.0)}), info))
    request = Request(Side("embedded"), Side("17"), ("made_up",))
    page = write_report(found, request, "a text", tmp_path / "r.html").read_text(encoding="utf-8")
    assert page.count("<h3>EXPLAIN (ANALYZE, BUFFERS)") == 2
    assert "insert, 2: SELECT of the candidate" in page
    assert "vacuum of the baseline" not in page


def test_a_block_that_two_records_have_counts_as_the_newer_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSTUDIES_RECORDS", str(tmp_path))
    whole = samples_of({"insert": logs(1.0), "warm up": logs(2.0)}).drop("study", "of", "side")
    places = []
    for number, blocks in enumerate(([1, 2, 3], [3, 4])):
        place = tmp_path / "compare_made_up" / f"2026112{number}T000000Z-host-abcdef"
        samples = whole.filter(pl.col("block").is_in(blocks)).with_columns(
            value=pl.col("value") + number
        )
        about = info_of(
            status="complete",
            not_compared=["warm up"],
            started_at=f"2026-11-2{number}T00:00:00+00:00",
            host={"hostname": socket.gethostname()},
        )
        empty = pl.DataFrame(schema=SAMPLES_SCHEMA)
        rows = pl.concat([empty, samples], how="diagonal_relaxed").cast(pl.Schema(SAMPLES_SCHEMA))
        write_whole(place, swept_info(socket.gethostname()) | about, rows)
        places.append(place)
    measured = read_measured("made_up", places)
    assert measured.blocks == 4
    assert set(measured.samples["step"]) == {"insert"}  # and not what is not compared
    third = measured.samples.filter(block=3, side="baseline", metric="duration_s")
    assert third["value"].to_list() == [1.5]
    assert read_measured("made_up", places[1:]).blocks == 2
