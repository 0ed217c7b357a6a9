"""Guards: each passes where both sides are alike, and can fail."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest

from book.bench.machines import GOOD, after_others
from tests.compare.test_compare import (
    NOISE,
    info_of,
    logs,
    made_up,
    of_inserts,
    of_work,
    result,
    samples_of,
    well,
    words,
)
from tests.made_up import samples

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pgapps.compare.judging.measured import Measured

OTHER_PLAN = "Index Scan using t_i on t"


def guards_of(measured: Measured, **how: Any) -> dict[str, tuple[bool | None, str]]:
    found = result(measured, **how).guards
    return {row["guard"]: (row["passed"], row["sentence"]) for row in found.iter_rows(named=True)}


def with_facts(
    candidate: Mapping[str, Any], baseline: Mapping[str, Any] = {}, *, insert: float = 1.0
) -> Measured:
    """Two sides with other facts of their servers, the candidate's step insert so much slower."""
    info = info_of()
    for side, facts in (("baseline", baseline), ("candidate", candidate)):
        info["facts"][f"heap, {side}"] = info["facts"][f"heap, {side}"] | facts
    return made_up(of_inserts(insert).samples, info)


def setting(name: str, *values: str, source: str = "default") -> Measured:
    """A setting's values on the baseline and on the candidate."""
    baseline, candidate = ({"settings": {name: [value, source]}} for value in values)
    return with_facts(candidate, baseline)


BLOCKS = range(1, len(NOISE) + 1)


def answering_otherwise(*steps: str, blocks: Sequence[int] = BLOCKS) -> Measured:
    """Insert is slower, and these steps give another result on the candidate in these blocks."""
    is_other = (
        (pl.col("metric") == "result")
        & (pl.col("side") == "candidate")
        & pl.col("step").is_in(steps)
        & pl.col("block").is_in(list(blocks))
    )
    other = pl.when(is_other).then(43.0).otherwise("value")
    return made_up(of_inserts(1.1).samples.with_columns(value=other))


def with_plan(candidate: str, both: str = "Seq Scan on t") -> Measured:
    """The plan of the step select on both sides, and the candidate's."""
    info = info_of()
    for arm in info["plans"]:
        info["plans"][arm]["select"] = both
    info["plans"]["heap, candidate"]["select"] = candidate
    return made_up(well().samples, info)


def of_sixteen(insert: Sequence[float]) -> Measured:
    steps = {"insert": insert, "select": [*NOISE, *NOISE]}
    return made_up(samples_of(steps, again=[*NOISE[1:], *NOISE, NOISE[0]]))


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


def carrying_over(cost: float) -> Measured:
    """A candidate whose turns are e^``cost`` times as long after any other side's turn."""
    costs = {"baseline": 0.0, "baseline (again)": 0.0, "candidate": cost}
    values = after_others(np.random.default_rng(1), GOOD, costs)
    turn = pl.col("round").str.extract(r"(\d+)$").cast(pl.Int32)
    rows = values.with_columns(turn=turn, side="arm", group=1, step=pl.lit("insert"))
    same = {"case": "", "metric": "duration_s", "of": "heap", "study": "made_up"}
    told = rows.with_columns(pl.lit(value).alias(name) for name, value in same.items())
    return made_up(told.drop("round").with_columns(iteration=pl.lit(0, pl.Int32)))


def noticing(name: str, sentence: str) -> Measured:
    """A machine on which something was noticed before measuring."""
    gate = [{"name": name, "level": "warn", "sentence": sentence}]
    return made_up(well().samples, info_of(gate=gate))


def without_candidate_of(step: str) -> Measured:
    is_left_out = (pl.col("step") == step) & (pl.col("side") == "candidate")
    return made_up(well().samples.filter(~is_left_out))


FAILING: dict[str, tuple[Callable[[], Measured], str]] = {
    "settings": (
        lambda: setting("jit", "off", "on", source="configuration file"),
        "declared: jit (off and on).",
    ),
    "builds": (lambda: with_facts({"assertions": "on"}), "the candidate is built with assertions"),
    "cores": (lambda: setting("io_method", "sync", "worker"), "I/O workers of the candidate"),
    "results": (
        lambda: answering_otherwise("insert", "select", blocks=[3]),
        "differently: made_up, heap, insert; made_up, heap, select.",
    ),
    "plans": (lambda: with_plan(OTHER_PLAN), "1 plan is not the same on both"),
    "both sides": (
        lambda: without_candidate_of("select"),
        "one side only: made_up, heap, select.",
    ),
    "clock": (
        lambda: of_work(logs(1.0), logs(1.1)),
        "made_up, heap, probe: wall time is 0.910 times what CPU time explains",
    ),
    "layout": (
        lambda: made_up(
            well().samples,
            info_of(links=[{"block": 1, "arm": f"heap, baseline{n}"} for n in ("", " (again)")]),
        ),
        "the candidate's programs cannot be relinked",
    ),
    "order": (
        lambda: of_sixteen([(-0.1, 0.1)[n % 2] + (NOISE * 2)[n] for n in range(16)]),
        "made_up, heap, insert: the arm that runs later in a block reads",
    ),
    "drift": (
        lambda: of_sixteen([0.02 * block for block in range(16)]),
        "made_up, heap, insert: the ratio ends the run",
    ),
    "independence": (
        lambda: made_up(
            samples_of(
                {key: [0.05 * (4 <= n < 12) for n in range(16)] for key in ("insert", "select")},
                again=[0.0] * 16,
            )
        ),
        "autocorrelation",
    ),
    "A/A": (
        lambda: made_up(samples_of({"insert": logs(1.0)}, again=[0.1] * len(NOISE))),
        "the second copy of the baseline reads 10.5 % higher",
    ),
    "settling": (lambda: settling(1.44), "insert"),
    "carry-over": (lambda: carrying_over(0.15), "another arm's turn before them"),
    "machine": (lambda: noticing("swap", "9 GB of swap are in use."), "9 GB of swap"),
}
"""A comparison that fails each guard, and what the guard says of it."""


@pytest.mark.usefixtures("private")
@pytest.mark.parametrize("name", guards_of(well()))
def test_every_guard_can_fail_and_says_why(name: str) -> None:
    measured, said = FAILING[name]
    passed, sentence = guards_of(measured())[name]
    assert passed is False
    assert said in sentence


def test_two_equal_servers_pass() -> None:
    assert result(well()).code == 0
    told = {name: passed for name, (passed, _) in guards_of(well()).items()}
    # Of eight blocks even the clearest order could be luck; of so few turns, the other two.
    unsaid = {name for name, passed in told.items() if passed is None}
    assert unsaid == {"order", "settling", "carry-over"}
    assert False not in told.values()
    told = {name: passed for name, (passed, _) in guards_of(of_sixteen([*NOISE, *NOISE])).items()}
    assert {name for name, passed in told.items() if not passed} == {"settling", "carry-over"}
    assert guards_of(settling(1.01))["settling"][0] is True
    assert guards_of(carrying_over(0.0))["carry-over"][0] is True


def test_without_an_interval_nothing_is_decided() -> None:
    measured = made_up(samples_of({"insert": logs(1.1)[:5]}))
    assert result(measured).code == 2
    found = guards_of(measured)
    for name in ("order", "drift", "A/A"):
        assert found[name] == (None, "Too few blocks to tell.")


def test_a_step_whose_guard_failed_is_not_decided_and_the_others_are() -> None:
    assert result(answering_otherwise("insert", "select")).code == 2
    assert result(answering_otherwise("insert")).code == 2
    other = result(answering_otherwise("select"))
    assert other.code == 1
    assert dict(other.effects.select("step", "failed").rows()) == {
        "insert": None,
        "select": "results",
    }
    assert "REGRESSION: 1 of 2 steps slower (1.100), 0 faster, 1 not decided." in words(other)


def test_another_default_is_a_part_of_the_candidate() -> None:
    passed, sentence = guards_of(setting("effective_io_concurrency", "1", "16"))["settings"]
    assert passed is True
    assert "Differing defaults: effective_io_concurrency (1 and 16)." in sentence


@pytest.mark.parametrize("source", ["default", "command line"])
def test_of_many_defaults_those_that_move_times_are_told_first(source: str) -> None:
    names = [f"autovacuum_{n}" for n in range(9)] + ["work_mem_of_others", "jit_above_cost", "jit"]
    names += ["io_method", "default_toast_compression"]
    baseline, candidate = (
        {name: [f"{n} {'very ' * 9}long", "default"] for name in names} | {"port": [str(n), source]}
        for n in range(2)
    )
    measured = with_facts({"settings": candidate}, {"settings": baseline})
    passed, sentence = guards_of(measured)["settings"]
    assert passed is (source == "default")
    order = ["jit (", "jit_above_cost (", "default_toast_compression (", "io_method ("]
    places = [sentence.partition("Differing defaults: ")[2].index(name) for name in order]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("facts", "passed", "said"),
    [
        ({"assertions": "on"}, False, "the candidate is built with assertions"),
        ({"cflags": "-g -O0"}, False, "the candidate is built with -O0"),
        ({"cflags": "-g"}, False, "the candidate is built with no -O"),
        ({"cflags": "-O3"}, False, "the baseline with -O2 and the candidate with -O3"),
        ({"cflags": None}, None, "not known"),
        ({}, True, "with -O2."),
    ],
)
def test_a_build_that_is_not_to_be_measured_leaves_every_step_undecided(
    facts: dict[str, str | None], passed: bool | None, said: str
) -> None:
    measured = with_facts(facts, insert=1.1)
    found, sentence = guards_of(measured)["builds"]
    assert found is passed
    assert said in sentence
    assert result(measured).code == (2 if passed is False else 1)


def test_compilers_that_differ_are_named() -> None:
    candidate, baseline = (
        {"build": f"PostgreSQL 18.6 on x86_64, compiled by {compiler}, 64-bit"}
        for compiler in ("clang version 19.1", "gcc (GCC) 4.4.7")
    )
    passed, sentence = guards_of(with_facts(candidate, baseline))["builds"]
    assert passed is True
    assert "by gcc 4.4.7 and clang 19.1" in sentence


def test_workers_of_one_side_alone_do_no_harm_where_no_server_is_pinned() -> None:
    measured = setting("io_method", "sync", "worker")
    measured.infos[0]["pinned_to_core"] = None
    assert guards_of(measured)["cores"][0] is True


def test_results_that_the_copies_do_not_share_are_drawn_at_random() -> None:
    drawn = (pl.col("metric") == "result") & (pl.col("step") == "insert")
    samples = well().samples.with_columns(
        value=pl.when(drawn).then(pl.col("position") + pl.col("block")).otherwise("value")
    )
    passed, sentence = guards_of(made_up(samples))["results"]
    assert passed is True
    assert "Drawn at random, so not compared: made_up, heap, insert." in sentence


def test_another_plan_is_shown_and_decides_nothing() -> None:
    found = result(with_plan(OTHER_PLAN))
    assert found.plans.rows() == [("made_up", "heap", "select", "Seq Scan on t", OTHER_PLAN)]
    assert "Plans that differ: made_up, heap, select." in words(found)
    assert "FAILED" not in words(found)
    assert found.code == 0


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
    assert result(with_plan(after, before)).plans.is_empty() == is_same


@pytest.mark.parametrize(
    ("measured", "passed", "code"),
    [
        (of_work(logs(1.178), logs(1.192)), True, 1),
        # A client on the same core has its own time, which does not grow with the server's.
        (of_work(logs(1.18), logs(1.3), share=0.6, delay=0.39), True, 1),
        (of_work(logs(1.0), logs(1.1)), False, 2),
    ],
)
def test_cpu_time_judges_where_it_explains_as_many_seconds_of_wall_time(
    measured: Measured, passed: bool, code: int
) -> None:
    assert guards_of(measured)["clock"][0] is passed
    judged = result(measured)
    assert judged.effects.select("metric", "verdict").rows() == [("cpu_s", "slower")]
    assert judged.code == code


def test_what_is_slower_by_both_clocks_is_slower_whatever_they_explain() -> None:
    measured = of_work(logs(1.6), logs(1.8))
    passed, sentence = guards_of(measured)["clock"]
    assert passed is True
    assert "both agree: made_up, heap, probe: wall time is 0.893 times" in sentence
    assert result(measured).code == 1


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


def test_settling_is_judged_by_the_margin_of_the_comparison() -> None:
    measured = settling(1.06)
    strict, loose = (guards_of(measured, margin=margin)["settling"] for margin in (0.02, 0.1))
    assert strict[0] is False
    assert loose[0] is True


def test_what_affects_both_sides_alike_is_told_and_passes() -> None:
    measured = noticing("load", "The load average is 9.")
    passed, sentence = guards_of(measured)["machine"]
    assert passed is True
    assert sentence.startswith("The load average is 9.")
    assert result(measured).code == 0
