"""Comparing two servers: verdict, guards, text and report, on blocks whose truth is known."""

from __future__ import annotations

import math
import re
import socket
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest

from pgapps.compare import run
from pgapps.compare.design import Comparison, Side, designed
from pgapps.compare.judging.measured import (
    Measured,
    _was_looked_at,
    compared_effects,
    read_measured,
    reasons,
)
from pgapps.compare.judging.result import Result, result_of, undecided
from pgapps.compare.report import request_in, write_report
from pgapps.compare.request import Request, share_cores_alike, side
from pgapps.compare.text import COLUMNS, as_text, noise, seconds
from pgservers.errors import StudyError
from pgservers.servers.settings import read_settings
from pgstudies.measuring.arms import Arm
from pgstudies.records.reading import SAMPLES_SCHEMA
from pgstudies.records.writing import write_whole
from pgstudies.rooms import rooms
from book.bench.machines import GOOD, after_others
from tests.made_up import info, samples, swept_info

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pgstudies.measuring.design import Design

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
    return made_up(samples_of({"insert": logs(1.0), "select": logs(1.0)}))


def guards_of(measured: Measured, **how: Any) -> dict[str, tuple[bool | None, str]]:
    found = result(measured, **how).guards
    return {row["guard"]: (row["passed"], row["sentence"]) for row in found.iter_rows(named=True)}


def verdict_of(measured: Measured, **how: Any) -> int:
    return result(measured, **how).code


def result(measured: Measured, margin: float = 0.02, **how: Any) -> Result:
    return result_of(COMPARISON, [measured], case=None, margin=margin, profile="quick", **how)


def test_two_equal_servers_are_no_regression() -> None:
    assert verdict_of(well()) == 0
    told = {name: passed for name, (passed, _) in guards_of(well()).items()}
    assert told.pop("order") is None  # of eight blocks even the clearest could be luck
    assert told.pop("settling") is None  # of so few turns
    assert told.pop("carry-over") is None
    assert set(told.values()) == {True}


def test_sixteen_blocks_are_enough_for_every_guard() -> None:
    steps = {step: [*NOISE, *NOISE] for step in ("insert", "select")}
    measured = made_up(samples_of(steps, again=[*NOISE[1:], *NOISE, NOISE[0]]))
    unsaid = {name for name, (passed, _) in guards_of(measured).items() if passed is not True}
    assert unsaid == {"settling", "carry-over"}
    assert guards_of(settling(1.01))["settling"][0] is True


def test_a_step_that_takes_a_tenth_more_is_a_regression() -> None:
    measured = made_up(samples_of({"insert": logs(1.1), "select": logs(1.0)}))
    effects = compared_effects([measured])
    assert dict(effects.select("step", "verdict").rows()) == {
        "insert": "slower",
        "select": "equivalent",
    }
    assert effects["ratio"].round(2).to_list() == [1.1, 1.0]
    assert verdict_of(measured) == 1


def test_a_faster_candidate_is_no_regression() -> None:
    assert verdict_of(made_up(samples_of({"insert": logs(0.8), "select": logs(1.0)}))) == 0


def test_what_noise_hides_is_no_regression_and_is_told_with_its_width() -> None:
    wide = [8 * noise + 0.02 for noise in NOISE]
    noisy = made_up(samples_of({"insert": wide, "select": logs(1.0)}))
    assert verdict_of(noisy) == 0
    first = " ".join(as_text(result(noisy)).partition("\n\n")[0].split())
    assert first == (
        "No regression found: 0 of 2 steps slower, 0 faster, 1 equivalent within 2 %; "
        "1 known no better than within 1.7 %."
    )


def test_a_study_that_could_not_be_compared_leaves_it_undecided_and_is_named() -> None:
    found = result(well(), failures=["cluster_order"])
    assert found.code == 2
    assert first_line(found).startswith("Not decided, because cluster_order could not be compared:")
    slower = made_up(samples_of({"insert": logs(1.1), "select": logs(1.0)}))
    assert verdict_of(slower, failures=["cluster_order"]) == 1


def first_line(result: Result) -> str:
    return " ".join(as_text(result).partition("\n\n")[0].split())


def test_where_noise_hides_every_step_none_is_found_slower_and_the_width_is_told() -> None:
    wide = {step: [8 * noise + 0.02 for noise in NOISE] for step in ("insert", "select")}
    found = result(made_up(samples_of(wide)))
    assert found.code == 0
    assert first_line(found) == (
        "No regression found: 0 of 2 steps slower, 0 faster, 0 equivalent within 2 %; "
        "2 known no better than within 1.7 %."
    )


def test_too_few_blocks_for_an_interval_decide_nothing() -> None:
    few = {"insert": logs(1.0)[:4], "select": logs(1.0)}
    found = result(made_up(samples_of(few)))
    assert found.code == 2
    assert "because there is no interval for 1 step:" in first_line(found)


def answering_otherwise(*steps: str) -> Measured:
    """Insert is slower, and these steps give another result on the candidate."""
    samples = samples_of({"insert": logs(1.1), "select": logs(1.0)}).with_columns(
        value=pl.when(
            pl.col("metric") == "result",
            pl.col("side") == "candidate",
            pl.col("step").is_in(steps),
        )
        .then(43.0)
        .otherwise("value")
    )
    return made_up(samples)


def test_a_step_whose_guard_failed_is_not_decided_and_the_others_are() -> None:
    assert verdict_of(answering_otherwise("insert", "select")) == 2
    assert verdict_of(answering_otherwise("insert")) == 2
    other = result(answering_otherwise("select"))
    assert other.code == 1
    assert dict(other.effects.select("step", "failed").rows()) == {
        "insert": None,
        "select": "results",
    }
    assert "REGRESSION: 1 of 2 steps slower, 0 faster, 1 not decided." in as_text(other)


def test_a_setting_that_differs_leaves_every_step_undecided() -> None:
    info = info_of()
    info["facts"]["heap, candidate"] = FACTS | {"assertions": "on"}
    samples = samples_of({"insert": logs(1.1), "select": logs(1.0)})
    assert verdict_of(made_up(samples, info)) == 2


def test_an_undeclared_setting_is_named() -> None:
    info = info_of()
    other = {"work_mem": ["65536", "command line"], "jit": ["on", "configuration file"]}
    info["facts"]["heap, candidate"] = FACTS | {"settings": other}
    passed, sentence = guards_of(made_up(well().samples, info))["settings"]
    assert passed is False
    assert sentence == "Set differently without being declared: jit (off and on)."


def test_another_default_is_a_part_of_the_candidate() -> None:
    info = info_of()
    sides = info["facts"]
    for name, value in {"heap, baseline": "1", "heap, candidate": "16"}.items():
        more = {"effective_io_concurrency": [value, "default"]}
        sides[name] = sides[name] | {"settings": sides[name]["settings"] | more}
    passed, sentence = guards_of(made_up(well().samples, info))["settings"]
    assert passed is True
    assert "Differing defaults: effective_io_concurrency (1 and 16)." in sentence


@pytest.mark.parametrize("source", ["default", "command line"])
def test_of_many_defaults_those_that_move_times_are_told_first(source: str) -> None:
    info = info_of()
    names = [f"autovacuum_{n}" for n in range(9)]
    names += [
        "work_mem_of_others",
        "jit_above_cost",
        "jit",
        "io_method",
        "default_toast_compression",
    ]
    for number, name in enumerate(("heap, baseline", "heap, candidate")):
        more = {setting: [f"{number} {'very ' * 9}long", "default"] for setting in names}
        known = info["facts"][name]["settings"] | more | {"port": [str(number), source]}
        info["facts"][name] = FACTS | {"settings": known}
    measured = made_up(well().samples, info)
    passed, sentence = guards_of(measured)["settings"]
    assert passed is (source == "default")
    order = ["jit (", "jit_above_cost (", "default_toast_compression (", "io_method ("]
    places = [sentence.partition("Differing defaults: ")[2].index(name) for name in order]
    assert places == sorted(places)
    text = as_text(result(measured)).splitlines()
    begin = next(n for n, line in enumerate(text) if "Differing defaults:" in line)
    assert "jit (0 very" in text[begin]
    if passed:
        of_these = [line for line in text[begin + 1 :] if line.startswith("    ")]
        assert len(of_these) == 4
        assert of_these[-1].endswith(" ...")


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"assertions": "on"}, "the candidate is built with assertions"),
        ({"cflags": "-g -O0"}, "the candidate is built with -O0"),
        ({"cflags": "-g"}, "the candidate is built with no -O"),
        ({"cflags": "-O3"}, "built differently: the baseline with -O2 and the candidate with -O3"),
    ],
)
def test_a_build_that_is_not_to_be_measured_is_named(facts: dict[str, str], words: str) -> None:
    info = info_of()
    info["facts"]["heap, candidate"] = FACTS | facts
    passed, sentence = guards_of(made_up(well().samples, info))["builds"]
    assert passed is False
    assert words in sentence


def test_a_build_that_cannot_be_seen_is_not_said_to_be_alike() -> None:
    info = info_of()
    info["facts"]["heap, candidate"] = FACTS | {"cflags": None}
    assert guards_of(made_up(well().samples, info))["builds"][0] is None


def test_compilers_that_differ_are_named() -> None:
    info = info_of()
    for place, compiler in {
        "baseline": "gcc (GCC) 4.4.7",
        "candidate": "clang version 19.1",
    }.items():
        build = {"build": f"PostgreSQL 18.6 on x86_64, compiled by {compiler}, 64-bit"}
        info["facts"][f"heap, {place}"] = FACTS | build
    assert guards_of(made_up(well().samples, info))["builds"] == (
        True,
        "Both are built without assertions, with -O2, by gcc 4.4.7 and clang 19.1.",
    )


def test_workers_of_one_side_alone_on_one_core_are_named() -> None:
    info = info_of()
    sides = info["facts"]
    for name, method in {"heap, baseline": "sync", "heap, candidate": "worker"}.items():
        more = {"io_method": [method, "default"]}
        sides[name] = sides[name] | {"settings": sides[name]["settings"] | more}
    passed, sentence = guards_of(made_up(well().samples, info))["cores"]
    assert passed is False
    assert "the I/O workers of the candidate take turns with its session" in sentence
    assert guards_of(made_up(well().samples, info | {"pinned_to_core": None}))["cores"][0] is True


def test_cores_are_not_shared_where_one_side_alone_has_workers() -> None:
    old, new = Side("14"), Side("18")
    assert not share_cores_alike(old, new)
    assert share_cores_alike(old, Side("18", {"io_method": "sync"}))
    assert share_cores_alike(new, Side("embedded"))
    assert not share_cores_alike(old, Side("postgresql://me@db/test"))  # it is not known


def test_different_results_are_named_with_their_step() -> None:
    samples = well().samples.with_columns(
        value=pl.when(
            pl.col("metric") == "result", pl.col("side") == "candidate", pl.col("block") == 3
        )
        .then(43.0)
        .otherwise("value")
    )
    passed, sentence = guards_of(made_up(samples))["results"]
    assert passed is False
    assert sentence == ("The two answer differently: made_up, heap, insert; made_up, heap, select.")


def test_results_that_the_copies_do_not_share_are_drawn_at_random() -> None:
    drawn = (pl.col("metric") == "result") & (pl.col("step") == "insert")
    samples = well().samples.with_columns(
        value=pl.when(drawn).then(pl.col("position") + pl.col("block")).otherwise("value")
    )
    passed, sentence = guards_of(made_up(samples))["results"]
    assert passed is True
    assert "Drawn at random, so not compared: made_up, heap, insert." in sentence


def test_another_plan_is_told_and_shown() -> None:
    info = info_of()
    info["plans"]["heap, candidate"]["select"] = "Index Scan using t_i on t"
    found = result(made_up(well().samples, info))
    assert found.plans.rows() == [
        ("made_up", "heap", "select", "Seq Scan on t", "Index Scan using t_i on t")
    ]
    assert "FAILED plans: 1 plan is not the same on both" in as_text(found)
    assert found.code == 0  # an explanation, no fault


def test_a_step_of_one_side_only_is_named() -> None:
    one_sided = (pl.col("step") == "select") & (pl.col("side") == "candidate")
    passed, sentence = guards_of(made_up(well().samples.filter(~one_sided)))["both sides"]
    assert passed is False
    assert sentence == "Measured on one side only: made_up, heap, select."


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (("on", True), ("on", True), "JIT: can play on both sides"),
        (
            ("", False),
            ("on", True),
            "the candidate alone, as the baseline has none before release 11",
        ),
        (("on", True), ("off", False), "the baseline alone, as the candidate has it off"),
        (
            ("on", False),
            ("on", False),
            "neither side, as both are built without LLVM",
        ),
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
    text = " ".join(as_text(result(made_up(well().samples, info_of(facts=sides)))).split())
    assert said in text
    assert bool(said) == ("JIT:" in text)
    assert "JIT:" not in as_text(result(well()))  # these servers were not asked


def with_failures(candidate: float) -> Measured:
    """The same times on both sides, and that part of the candidate's inserts that failed."""
    whole = well().samples
    failed = whole.filter(metric="duration_s", step="insert", side="candidate").with_columns(
        metric=pl.lit("deadlocks"), value=pl.lit(candidate), unit=pl.lit("of transactions")
    )
    return made_up(pl.concat([whole, failed]))


def test_transactions_that_fail_are_compared_by_their_part_of_all() -> None:
    found = result(with_failures(0.03))
    assert found.code == 0
    (row,) = found.failed.iter_rows(named=True)
    assert (row["of"], row["step"], row["failure"]) == ("heap", "insert", "deadlocks")
    assert (row["baseline"], row["candidate"]) == pytest.approx((0.0, 0.03))
    assert (row["candidate"], row["low"], row["high"]) == pytest.approx((0.03, 0.03, 0.03))
    text = " ".join(as_text(found).split())
    assert "made_up, heap, insert, deadlocks: 0.00 % -> 3.00 % (+3.00 to +3.00 points)" in text
    assert result(well()).failed.is_empty()
    assert "Transactions that failed" not in as_text(result(well()))


def test_every_script_that_is_left_out_is_named() -> None:
    left_out = [
        {"arm": "heap, candidate", "step": f"script {n}", "case": "", "reason": f"line {n} fails"}
        for n in range(9)
    ]
    text = as_text(result(made_up(well().samples, info_of(left_out=left_out))))
    assert "faster, 9 not measured" in " ".join(text.split())
    assert "not measured" not in as_text(result(well()))
    assert [f"  made_up, script {n}: line {n} fails." in text.splitlines() for n in range(9)] == [
        True
    ] * 9


def of_blocks(steps: Mapping[str, Sequence[float]], blocks: int) -> Measured:
    return made_up(samples_of(steps).filter(pl.col("block") <= blocks))


def test_six_blocks_decide_what_all_of_them_show() -> None:
    steps = {f"step {n}": logs(1.0) for n in range(20)} | {"insert": logs(1.1)}
    assert verdict_of(of_blocks(steps, 6)) == 1
    del steps["insert"]
    assert verdict_of(of_blocks(steps, 6)) == 0


def test_without_an_interval_nothing_is_decided() -> None:
    measured = of_blocks({"insert": logs(1.1)}, 5)
    assert verdict_of(measured) == 2
    found = guards_of(measured)
    for name in ("order", "drift", "A/A"):
        assert found[name] == (None, "Too few blocks to tell.")


def test_half_an_interval_is_told() -> None:
    (low, high, ratio) = (0.99, 0.99 * 1.02**2, 1.0)
    effects = pl.DataFrame({"low": [low, 1.0], "high": [high, 1.0], "ratio": [ratio, 1.0]})
    assert noise(effects) == ("CI half-width: median 1.0 %, worst 2.0 %.")
    assert noise(effects.clear()) is None


def of_work(clock: Sequence[float], cpu: Sequence[float], share: float = 0.99) -> Measured:
    """One step with these log-ratios by the clock, and by CPU time, which is a ``share`` of it."""
    by_clock = samples_of({"probe": clock})
    by_cpu = (
        samples_of({"probe": cpu})
        .filter(metric="duration_s")
        .with_columns(metric=pl.lit("cpu_s"), value=share * pl.col("value"))
    )
    return made_up(pl.concat([by_clock, by_cpu]))


def test_cpu_time_judges_what_is_bound_by_the_processor() -> None:
    unsteady = [9 * noise + 0.1 for noise in NOISE]
    effects = compared_effects([of_work(unsteady, logs(1.1))])
    assert effects.select("metric", "verdict").rows() == [("cpu_s", "slower")]
    assert effects["ratio"].round(2).to_list() == [1.1]
    waits = compared_effects([of_work(logs(1.0), logs(1.1), share=0.8)])
    assert waits.select("metric", "verdict").rows() == [("duration_s", "equivalent")]


def test_a_step_that_waited_for_a_core_is_bound_by_the_processor() -> None:
    """Other work on the machine takes the core away: that is no wait of the step's."""
    waited = of_work(logs(1.0), logs(1.1), share=0.6)
    by_clock = waited.samples.filter(metric="duration_s")
    for part, judges in ((0.2, "duration_s"), (0.39, "cpu_s")):
        delay = by_clock.with_columns(metric=pl.lit("run_delay_s"), value=part * pl.col("value"))
        measured = replace(waited, samples=pl.concat([waited.samples, delay]))
        assert compared_effects([measured])["metric"].to_list() == [judges]


def test_what_only_waits_longer_is_caught_by_the_clock() -> None:
    """Wall time judges it then, which needs no second try."""
    measured = of_work(logs(1.1), logs(1.0))
    assert compared_effects([measured])["verdict"].to_list() == ["equivalent"]
    judged = result(measured)
    assert judged.effects.select("metric", "verdict").rows() == [("duration_s", "slower")]
    assert judged.code == 1
    assert judged.effects["note"].to_list() == [
        "waits longer: wall time is 1.1 times what CPU time explains"
    ]
    alike = of_work(logs(1.178), logs(1.192))
    assert guards_of(alike)["clock"][0] is True
    assert result(alike).effects["metric"].to_list() == ["cpu_s"]


def test_what_waits_less_than_cpu_time_explains_fails_the_guard() -> None:
    measured = of_work(logs(1.0), logs(1.1))
    passed, sentence = guards_of(measured)["clock"]
    assert passed is False
    assert "made_up, heap, probe: wall time is 0.910 times what CPU time explains" in sentence
    assert verdict_of(measured) == 2


def test_what_is_slower_by_both_clocks_is_slower_whatever_they_explain() -> None:
    measured = of_work(logs(1.6), logs(1.8))
    passed, sentence = guards_of(measured)["clock"]
    assert passed is True
    assert sentence == (
        "CPU time judges 1 step. Where it explains too much, both agree: "
        "made_up, heap, probe: wall time is 0.893 times what CPU time explains."
    )
    assert verdict_of(measured) == 1


def test_cpu_time_explains_as_many_seconds_of_wall_time() -> None:
    """A client on the same core has its own time, which does not grow with the server's."""
    shared = of_work(logs(1.18), logs(1.3), share=0.6)
    by_clock = shared.samples.filter(metric="duration_s")
    delay = by_clock.with_columns(metric=pl.lit("run_delay_s"), value=0.39 * pl.col("value"))
    measured = replace(shared, samples=pl.concat([shared.samples, delay]))
    assert guards_of(measured)["clock"][0] is True
    judged = result(measured)
    assert judged.effects.select("metric", "verdict").rows() == [("cpu_s", "slower")]
    assert judged.code == 1


BUILD, SETTINGS = Side("/home/me/patched"), Side("embedded", {"jit": "on"})


@pytest.mark.parametrize(
    ("candidate", "asked", "seconds"),
    [
        (BUILD, {}, [120.0]),
        (BUILD, {"minutes": 20.0}, [240.0]),
        (BUILD, {"blocks": 9}, [120.0]),
        (BUILD, {"instructions": True}, [300.0]),
        (BUILD, {"instructions": True, "blocks": 9}, [math.inf]),
        (BUILD, {"instructions": False}, []),
        (SETTINGS, {}, []),
        (SETTINGS, {"instructions": True}, [300.0]),
        (Side("postgresql://me@db/test"), {}, []),
    ],
)
def test_instructions_are_counted_where_programs_differ_or_it_is_asked_for(
    candidate: Side,
    asked: dict[str, Any],
    seconds: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[float] = []
    monkeypatch.setattr(run, "counted", lambda *_, seconds: given.append(seconds))
    monkeypatch.setattr(run, "reason_no_valgrind", lambda: None)
    request = Request(baseline=Side("embedded"), candidate=candidate, studies=("made_up",), **asked)
    run._counts(request, warn=print)
    assert given == seconds
    given.clear()
    monkeypatch.setattr(run, "reason_no_valgrind", lambda: "there is no valgrind")
    run._counts(request, warn=print)
    assert given == (seconds if asked.get("instructions") else [])


def test_what_cannot_be_counted_ends_a_comparison_only_where_counts_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StudyError("One script fails.")

    monkeypatch.setattr(run, "counted", fail)
    monkeypatch.setattr(run, "reason_no_valgrind", lambda: None)
    request = partial(Request, baseline=Side("embedded"), candidate=BUILD, studies=("made_up",))
    told: list[str] = []
    assert run._counts(request(), warn=told.append) is None
    assert told == ["No instructions are counted: One script fails."]
    with pytest.raises(StudyError, match="One script fails"):
        run._counts(request(instructions=True), warn=told.append)


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
    line = "Intervals hold however often the blocks were looked at."
    assert line in " ".join(as_text(anytime).split())
    assert line not in " ".join(as_text(fixed).split())


def test_what_more_blocks_would_decide_is_undecided() -> None:
    wide = [math.log(1.012) + 6 * noise for noise in NOISE]
    assert undecided(result(made_up(samples_of({"insert": wide})))) == ["made_up"]
    assert undecided(result(well())) == []


def test_an_order_effect_is_named() -> None:
    later = [0.1 if block % 2 else -0.1 for block in range(1, 17)]
    ratios = [x + noise for x, noise in zip(later, (NOISE + NOISE)[:16], strict=True)]
    steps = {"insert": ratios, "select": [*NOISE, *NOISE][:16]}
    measured = made_up(samples_of(steps, again=[*NOISE[1:], *NOISE, NOISE[0]]))
    passed, sentence = guards_of(measured)["order"]
    assert passed is False
    assert "made_up, heap, insert: the arm that runs later in a block reads" in sentence


def test_a_drift_of_one_side_is_named() -> None:
    ratios = [0.02 * block for block in range(16)]
    steps = {"insert": ratios, "select": [*NOISE, *NOISE]}
    measured = made_up(samples_of(steps, again=[*NOISE[1:], *NOISE, NOISE[0]]))
    passed, sentence = guards_of(measured)["drift"]
    assert passed is False
    assert "made_up, heap, insert: the ratio ends the run" in sentence


def test_of_many_steps_one_whose_copies_differ_by_luck_does_not_undo_the_comparison() -> None:
    unlucky = [0.03 + noise for noise in NOISE]
    steps = {f"step {n}": logs(1.0) for n in range(20)}
    samples = samples_of(steps)
    is_unlucky = (pl.col("step") == "step 7") & (pl.col("side") == "baseline (again)")
    factors = pl.DataFrame({"block": range(1, len(NOISE) + 1), "factor": map(math.exp, unlucky)})
    samples = samples.join(factors, on="block", how="left", maintain_order="left").with_columns(
        value=pl.when(is_unlucky).then(pl.col("value") * pl.col("factor")).otherwise("value")
    )
    found = result(made_up(samples.drop("factor")))
    (row,) = found.effects.filter(step="step 7").iter_rows(named=True)
    assert row["aa_low"] > 1.02
    assert row["verdict"] != "not valid"


def test_copies_that_differ_are_named() -> None:
    measured = made_up(
        samples_of({"insert": logs(1.0), "select": logs(1.0)}, again=[0.1] * len(NOISE))
    )
    passed, sentence = guards_of(measured)["A/A"]
    assert passed is False
    assert "the second copy of the baseline reads 10.5 % higher" in sentence


def settling(effect: float, blocks: int = 10, turns: int = 30) -> Measured:
    """A candidate that takes ``effect`` times as long in a block's first third, then 1 % more."""
    d = [math.log(effect if turn < turns // 3 else 1.01) for turn in range(turns)]
    noise = [NOISE[turn % len(NOISE)] for turn in range(turns)]
    seconds = {
        "baseline": [0.5] * turns,
        "baseline (again)": [0.5 * math.exp(x) for x in noise],
        "candidate": [0.5 * math.exp(a + b) for a, b in zip(d, noise[1:] + noise[:1], strict=True)],
    }
    rows = [
        samples({arm: [values[turn]] * blocks for arm, values in seconds.items()}, turn=turn)
        for turn in range(turns)
    ]
    return made_up(
        pl.concat(rows).with_columns(
            side="arm",
            arm=pl.format("heap, {}", "arm"),
            of=pl.lit("heap"),
            study=pl.lit("made_up"),
            step=pl.lit("insert"),
            iteration=pl.lit(0, pl.Int32),
        )
    )


def test_a_candidate_that_is_not_warm_when_a_block_begins_is_named() -> None:
    passed, sentence = guards_of(settling(1.44))["settling"]
    assert passed is False
    assert "insert" in sentence
    assert guards_of(settling(1.01))["settling"][0] is True


def test_settling_is_judged_by_the_margin_of_the_comparison() -> None:
    measured = settling(1.06)
    strict, loose = (guards_of(measured, margin=margin)["settling"] for margin in (0.02, 0.1))
    assert strict[0] is False
    assert loose[0] is True


def carrying_over(cost: float) -> Measured:
    """A candidate whose turns are e^``cost`` times as long after any other side's turn."""
    costs = {"baseline": 0.0, "baseline (again)": 0.0, "candidate": cost}
    values = after_others(np.random.default_rng(1), GOOD, costs)
    turn = pl.col("round").str.extract(r"(\d+)$").cast(pl.Int32)
    rows = values.with_columns(turn=turn, side="arm", group=1, step=pl.lit("insert"))
    same = {"case": "", "metric": "duration_s", "of": "heap", "study": "made_up"}
    told = rows.with_columns(pl.lit(value).alias(name) for name, value in same.items())
    return made_up(told.drop("round").with_columns(iteration=pl.lit(0, pl.Int32)))


def test_a_candidate_that_suffers_from_the_other_sides_turns_is_named() -> None:
    passed, sentence = guards_of(carrying_over(0.15))["carry-over"]
    assert passed is False
    assert "insert" in sentence
    assert "another arm's turn before them" in sentence
    assert guards_of(carrying_over(0.0))["carry-over"][0] is True


def test_a_busy_machine_is_told() -> None:
    info = info_of(gate=[{"name": "load", "level": "warn", "sentence": "The load average is 9."}])
    passed, sentence = guards_of(made_up(well().samples, info))["machine"]
    assert passed is True  # it comes upon both sides alike; A/A would tell
    assert sentence.startswith("The load average is 9.")
    assert verdict_of(made_up(well().samples, info)) == 0


def test_what_changes_the_work_itself_fails_the_guard() -> None:
    info = info_of(gate=[{"name": "swap", "level": "warn", "sentence": "9 GB of swap are in use."}])
    told = guards_of(made_up(well().samples, info))["machine"]
    assert told == (False, "9 GB of swap are in use.")


def without_candidate_of(step: str) -> Measured:
    is_left_out = (pl.col("step") == step) & (pl.col("side") == "candidate")
    return made_up(well().samples.filter(~is_left_out))


def of_sixteen(insert: Sequence[float]) -> Measured:
    steps = {"insert": insert, "select": [*NOISE, *NOISE]}
    return made_up(samples_of(steps, again=[*NOISE[1:], *NOISE, NOISE[0]]))


def with_facts(**facts: Any) -> Measured:
    info = info_of()
    info["facts"]["heap, candidate"] = info["facts"]["heap, candidate"] | facts
    return made_up(well().samples, info)


def with_another_plan() -> Measured:
    info = info_of()
    info["plans"]["heap, candidate"]["select"] = "Index Scan using t_i on t"
    return made_up(well().samples, info)


SWAP = {"name": "swap", "level": "warn", "sentence": "9 GB of swap are in use."}


def relinked(*sides: str) -> Any:
    """A record of which only these sides' programs were relinked."""
    return info_of(links=[{"block": 1, "arm": f"heap, {side}"} for side in sides])


FAILING: dict[str, Callable[[], Measured]] = {
    "settings": lambda: with_facts(settings={"jit": ["on", "configuration file"]}),
    "builds": lambda: with_facts(assertions="on"),
    "cores": lambda: with_facts(settings={"io_method": ["worker", "default"]}),
    "results": lambda: answering_otherwise("insert"),
    "plans": with_another_plan,
    "both sides": lambda: without_candidate_of("select"),
    "clock": lambda: of_work(logs(1.0), logs(1.1)),
    "layout": lambda: made_up(well().samples, relinked("baseline", "baseline (again)")),
    "order": lambda: of_sixteen([(-0.1, 0.1)[n % 2] + (NOISE * 2)[n] for n in range(16)]),
    "drift": lambda: of_sixteen([0.02 * block for block in range(16)]),
    "independence": lambda: made_up(
        samples_of(
            {key: [0.05 * (4 <= n < 12) for n in range(16)] for key in ("insert", "select")},
            again=[0.0] * 16,
        )
    ),
    "A/A": lambda: made_up(samples_of({"insert": logs(1.0)}, again=[0.1] * len(NOISE))),
    "settling": lambda: settling(1.44),
    "carry-over": lambda: carrying_over(0.15),
    "machine": lambda: made_up(well().samples, info_of(gate=[SWAP])),
}
"""A comparison that fails each guard."""


@pytest.mark.usefixtures("private")
@pytest.mark.parametrize("name", guards_of(well()))
def test_every_guard_can_fail(name: str) -> None:
    assert guards_of(FAILING[name]())[name][0] is False


METRICS = {
    ("insert", "wait, IO: WalSync"): (0.1, 0.145, "s"),
    ("insert", "wait, CPU"): (0.3, 0.3, "s"),
    ("insert", "wal_bytes"): (1000.0, 1200.0, "bytes"),
    ("insert", "buffers_read"): (0.0, 5.0, "pages"),
    ("insert", "buffers_hit"): (700.0, 700.0, "pages"),
    ("select", "buffers_hit"): (10.0, 500.0, "pages"),
}


def test_reasons_are_what_moved_with_a_step_that_differs() -> None:
    measured = made_up(samples_of({"insert": logs(1.1), "select": logs(1.0)}, METRICS))
    found = reasons([measured], compared_effects([measured]))
    assert set(found["step"]) == {"insert"}
    assert set(found["metric"]) == {"wal_bytes", "buffers_read", "wait, IO: WalSync"}
    (share,) = found.filter(pl.col("metric") == "wait, IO: WalSync")["share"]
    assert share == pytest.approx(0.9, abs=0.05)


def test_a_wait_of_one_side_only_counts_as_nothing_on_the_other() -> None:
    samples = samples_of({"insert": logs(1.1), "select": logs(1.0)}, METRICS)
    new = (pl.col("metric") == "wait, IO: WalSync") & (pl.col("side") == "baseline")
    measured = made_up(samples.filter(~new))
    found = reasons([measured], compared_effects([measured]))
    row = found.filter(pl.col("metric") == "wait, IO: WalSync").row(0, named=True)
    assert (row["baseline"], row["candidate"]) == (0, 0.145)


def test_shares_are_of_one_whole_and_go_its_way() -> None:
    metrics = {
        ("insert", "wait, IO: DataFileRead"): (0.10, 0.16, "s"),
        ("insert", "wait, LWLock: WALWrite"): (0.10, 0.14, "s"),
        ("insert", "wait, IO: DataFileExtend"): (0.30, 0.10, "s"),
        ("insert", "cpu_s"): (0.1, 0.1, "s"),
        ("insert", "wait, CPU"): (0.1, 0.2, "s"),
    }
    measured = made_up(samples_of({"insert": logs(1.1), "select": logs(1.0)}, metrics))
    found = reasons([measured], compared_effects([measured]))
    shares = dict(found.select("metric", "share").rows())
    assert shares == pytest.approx(
        {"wait, IO: DataFileRead": 0.6, "wait, LWLock: WALWrite": 0.4}, abs=0.01
    )


def test_an_event_has_one_name_in_all_releases() -> None:
    metrics = {
        ("insert", "wait, IO: WALSync"): (0.1, 0.145, "s"),
        ("insert", "wait, LWLockNamed: WALWriteLock"): (0.1, 0.105, "s"),
    }
    newer = {"wait, IO: WALSync": "wait, IO: WalSync"}
    newer["wait, LWLockNamed: WALWriteLock"] = "wait, LWLock: WALWrite"
    is_newer = pl.col("side") == "candidate"
    samples = samples_of({"insert": logs(1.1), "select": logs(1.0)}, metrics).with_columns(
        metric=pl.when(is_newer).then(pl.col("metric").replace(newer)).otherwise("metric")
    )
    measured = made_up(samples)
    found = reasons([measured], compared_effects([measured]))
    (row,) = found.filter(pl.col("metric") == "wait, IO: WalSync").rows(named=True)
    assert (row["baseline"], row["candidate"]) == (0.1, 0.145)
    assert "wait, IO: WALSync" not in found["metric"]


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        ("Seq Scan on t", "Seq Scan on t\n  Disabled: true", True),
        (
            "Seq Scan on t\n  Filter: (i > $1)\n  InitPlan 1 (returns $1)\n    ->  Result",
            "Seq Scan on t\n  Filter: (i > (InitPlan 1).col1)\n  InitPlan 1\n    ->  Result",
            True,
        ),
        ("Limit\n  ->  Seq Scan on t", "Limit\n  ->  Index Scan using i on t", False),
        ("Result\nSeq Scan on t", "Result\nIndex Scan using i on t", False),
    ],
    ids=["disabled", "subplan", "below", "second statement"],
)
def test_plans_are_compared_by_their_nodes_not_by_how_releases_spell_conditions(
    before: str, after: str, *, is_same: bool
) -> None:
    info = info_of()
    for arm in info["plans"]:
        info["plans"][arm]["select"] = before
    info["plans"]["heap, candidate"]["select"] = after
    assert result(made_up(well().samples, info)).plans.is_empty() == is_same


def test_a_case_is_judged_alone() -> None:
    effects = compared_effects([well()], case="insert")
    assert effects["step"].to_list() == ["insert"]
    with pytest.raises(StudyError, match="No step or case is called 'update'"):
        compared_effects([well()], case="update")


def test_the_text_for_the_mailing_list_is_the_golden_one() -> None:
    info = info_of()
    info["plans"]["heap, candidate"]["insert"] = "Insert on t by the patch"
    steps = {"insert": logs(1.1), "select": logs(1.0), "vacuum": [8 * n + 0.012 for n in NOISE]}
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
    assert f"\n           {place}/install\n" in as_text(replace(found, comparison=named))


def test_the_text_is_of_what_moved_and_says_how_little_the_rest_did() -> None:
    steps = {f"step {n}": logs(1.0) for n in range(40)}
    steps |= {f"slow {n}": logs(1.1 + n / 100) for n in range(20)}
    text = as_text(result(made_up(samples_of(steps))))
    assert len(text.splitlines()) < 40
    assert "slow 19" in text
    assert "slow 0" not in text
    told = " ".join(text.split())
    assert "8 more are in the report. Nothing else that is decided moved by more than 0.3 %" in told
    assert "step 1" not in text
    well_text = as_text(result(well()))
    assert well_text.startswith("No regression: 0 of 2 steps slower, 0 faster")
    assert "Nothing moved by more than 0.3 %." in well_text


def test_times_are_told_in_the_unit_that_fits() -> None:
    assert seconds(1.504e-05, 1.6e-05) == ("15", "16 µs")
    assert seconds(0.0, 0.0123) == ("0", "12.3 ms")
    assert seconds(2.0, 1.5) == ("2", "1.5 s")
    assert seconds(0.0, 0.0) == ("0", "0 ns")


def test_the_report_holds_what_it_takes_to_measure_again(tmp_path: Path) -> None:
    request = Request(
        Side("embedded"),
        Side("17", {"jit": "on <!--<script></script>"}),
        ("made_up",),
        blocks=7,
        case="insert",
    )
    path = write_report(result(well()), request, "a text", tmp_path / "r.html")
    assert request_in(path) == request
    body = path.read_text(encoding="utf-8").split("<body>")[1]
    assert "<!--<script>" not in body
    body = body.split("<script>")[0]
    assert re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', body) == []


def test_a_file_that_is_no_report_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.html").write_text("<html></html>")
    with pytest.raises(StudyError, match=r"is not a report of `pgstudies compare`"):
        request_in(tmp_path / "other.html")
    with pytest.raises(StudyError, match="cannot be read"):
        request_in(tmp_path / "missing.html")


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [((), ["a: heap", "b: tree, hash"]), (("all",), ["a: heap, sorted", "b: tree, hash"]),
     (("sorted",), ["a: sorted", "b: not compared, has no such arm"]),
     (("hash", "heap"), ["a: heap", "b: hash"])],
)  # fmt: skip
def test_what_is_measured_and_until_when_is_told(
    asked: tuple[str, ...], chosen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arms = {"a": [Arm("heap"), Arm("sorted"), Arm("other", server="9.6")]}
    arms["b"] = [Arm("tree"), Arm("hash")]
    rooms = {name: Mock(kind="study", about={}) for name in arms}
    rooms["a"].about["compare"] = ["heap", "of another size"]
    monkeypatch.setattr(run, "find_room", rooms.__getitem__)
    monkeypatch.setattr(run, "plan", lambda name, **_: name)
    monkeypatch.setattr(run, "measurement_of", lambda name: Mock(arms=arms[name]))
    request = Request(Side("embedded"), Side("17"), ("a", "b"), arms=asked)
    studies = [run._planned(name, request, 600) for name in arms]
    run._require_arms(request, studies)
    told = [line.strip().partition(" (")[0] for line in run._intention(request, studies, 600)]
    assert told[:2] == ["Baseline:  embedded", "Candidate: 17"]
    assert re.fullmatch(r"A block of each study in turn, until \d\d:\d\d:\d\d:", told[2])
    assert told[3:] == chosen
    wrong = Request(Side("embedded"), Side("17"), ("a", "b"), arms=("heap", "haep"))
    with pytest.raises(StudyError, match="There is no arm 'haep' to compare; there is a: heap"):
        run._require_arms(wrong, studies)


@pytest.mark.parametrize("study", [*rooms("study")])
def test_the_arms_of_a_default_comparison_are_among_those_of_the_study(study: str) -> None:
    chosen = run._planned(study, Request(Side("embedded"), Side("17"), (study,)), 600)
    assert set(chosen.arms) == set(rooms()[study].about["compare"])
    assert chosen.what.parameters["server"] == ""


def compared(comparison: Comparison, arms: Sequence[Arm]) -> Design:
    return designed("made_up", arms, comparison)


def test_every_arm_of_the_own_server_runs_on_both_sides() -> None:
    arms = [
        Arm("heap", settings={"jit": "off"}),
        Arm("patched", state="patched", options={"a": 1}),
    ]
    design = compared(COMPARISON, arms)
    assert [(a.name, a.server, dict(a.settings)) for a in design.arms] == [
        ("heap, baseline", None, {"jit": "off"}),
        ("heap, baseline (again)", None, {"jit": "off"}),
        ("heap, candidate", "/home/me/patched", {"jit": "off", "work_mem": "64MB"}),
        ("patched, baseline", None, {}),
        ("patched, baseline (again)", None, {}),
        ("patched, candidate", "/home/me/patched", {"work_mem": "64MB"}),
    ]
    assert [design.own(arm) for arm in design.arms] == [arms[0]] * 3 + [arms[1]] * 3


def test_settings_alone_need_one_server() -> None:
    comparison = Comparison(Side("embedded"), Side("embedded", {"jit": "on"}))
    assert [arm.server for arm in compared(comparison, [Arm("heap")]).arms] == [None] * 3


def test_a_file_of_settings_is_read_as_postgresql_conf(tmp_path: Path) -> None:
    file = tmp_path / "my.conf"
    file.write_text("# mine\nwork_mem = 64MB  # more\n\nJIT on\nsearch_path = '\"$user\", it''s'\n")
    assert read_settings(file) == {"work_mem": "64MB", "jit": "on", "search_path": '"$user", it\'s'}
    for text in ("work_mem\n", "datestyle = iso, mdy\n", "log_line_prefix = 'open\n"):
        file.write_text(text)
        with pytest.raises(StudyError, match=r"my\.conf, line 1: write settings"):
            read_settings(file)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("x = 4MB# 4 would do", "4MB"),
        ("x=1.1\t\t\t# (change requires restart)", "1.1"),
        ("x '%m [%p] %q%u@%d '   # special values:", "%m [%p] %q%u@%d "),
        ("x = 'it\\'s'", "it's"),
        ("x = 'it''s # no comment'", "it's # no comment"),
        ("x = 'a\\\\b\\101\\8'", "a\\bA8"),
        ("x = ''", ""),
    ],
)
def test_a_value_is_read_as_the_server_reads_it(tmp_path: Path, line: str, value: str) -> None:
    file = tmp_path / "my.conf"
    file.write_text(f"{line}\n")
    assert read_settings(file) == {"x": value}


def test_a_side_is_a_server_a_file_or_both(tmp_path: Path) -> None:
    file = tmp_path / "my.conf"
    file.write_text("jit = on\n")
    assert side("17", otherwise="embedded") == Side("17")
    assert side(str(file), otherwise="17") == Side("17", {"jit": "on"})
    assert side(f"16+{file}", otherwise="17") == Side("16", {"jit": "on"})
    assert side(str(tmp_path), otherwise="17") == Side(str(tmp_path))
    with pytest.raises(StudyError, match=r"There is no settings file other\.conf"):
        side("16+other.conf", otherwise="17")
    with pytest.raises(StudyError, match="there must be no password"):
        side("postgresql://me:secret@host/db", otherwise="17")


def test_a_comparison_survives_its_way_to_a_record() -> None:
    assert Comparison.from_dict(COMPARISON.as_dict()) == COMPARISON


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
    third = measured.samples.filter(
        pl.col("block") == 3, pl.col("side") == "baseline", pl.col("metric") == "duration_s"
    )
    assert third["value"].to_list() == [1.5]
    assert read_measured("made_up", places[1:]).blocks == 2
