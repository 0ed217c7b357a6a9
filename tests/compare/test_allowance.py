"""What links move, and what two programs that were not relinked may be said to differ by."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest

from pgapps.compare.counted import Counted
from pgapps.compare.design import BASELINE, CANDIDATE, COPY, SIDES
from pgapps.compare.judging import layout
from pgapps.compare.judging.layout import LINKS, allowance, doubted
from pgapps.compare.judging.measured import CPU, PLACE, TIME, Measured, effects_by_names
from pgapps.compare.text import COLUMNS, as_text
from pgservers.paths import LAYOUT_RECORDS
from book.bench.links import likeliest, links, rounded_up
from tests.compare.test_compare import first_line, info_of, logs, made_up, result, samples_of, well

if TYPE_CHECKING:
    from collections.abc import Mapping


def fixed(steps: Mapping[str, float], **about: Any) -> Measured:
    """Two builds that were not relinked, with the candidate's time of each step."""
    told = info_of(links=[], **about)
    return made_up(samples_of({step: logs(effect) for step, effect in steps.items()}), told)


def test_the_constants_are_what_the_records_of_links_give() -> None:
    assert {m: rounded_up(d) for m, d in links(LAYOUT_RECORDS).items()} == pytest.approx(LINKS)


def test_what_the_rounds_of_a_block_show_as_noise_is_no_matter_of_links() -> None:
    rng = np.random.default_rng(3)
    noise = rng.uniform(0.01, 0.04, 400) ** 2
    means = rng.normal(0, 0.02, 400) + rng.normal(0, np.sqrt(noise))
    assert likeliest(means, noise) == pytest.approx(0.02, abs=0.003)
    assert likeliest(means, 0 * noise + 1e-9) > 0.03


def test_the_more_steps_the_further_must_one_of_them_be() -> None:
    assert allowance(CPU, 1) == pytest.approx(math.expm1(1.96 * LINKS[CPU]), rel=1e-3)
    assert allowance(TIME, 12) == pytest.approx(math.expm1(2.865 * LINKS[TIME]), rel=1e-3)
    rng = np.random.default_rng(4)
    moved = np.abs(rng.normal(0, LINKS[CPU], (4000, 12))).max(axis=1)
    assert np.mean(moved > math.log1p(allowance(CPU, 12))) == pytest.approx(0.05, abs=0.01)
    assert np.mean(moved > math.log1p(allowance(CPU, 1))) > 0.4, "each step by itself"


@pytest.mark.parametrize(("ratio", "code"), [(1.1, 1), (1.045, 2), (1 / 1.1, 0), (1 / 1.045, 2)])
def test_a_step_is_called_slower_or_faster_only_beyond_what_links_move(
    ratio: float, code: int
) -> None:
    found = result(fixed({"insert": ratio, "select": 1.0}))
    row = found.effects.row(by_predicate=pl.col("step") == "insert", named=True)
    assert row["allowance"] == pytest.approx(allowance(TIME, 2))
    assert found.code == code
    is_open = code == 2
    beyond = "slower" if ratio > 1 else "faster"
    assert row["verdict"] == ("inconclusive" if is_open else beyond)
    assert row["doubt"] == ("layout not excluded" if is_open else None)
    assert row["blocks_needed"] is None
    text = as_text(found)
    assert max(map(len, text.splitlines())) <= COLUMNS
    told = " ".join(text.split())
    assert (
        "Layout not excluded: these programs cannot be relinked here. Links alone move one of 2 "
        "steps by up to 5.8 % in wall time; what is called slower or faster is beyond that." in told
    )
    assert ("open, layout" in told) == is_open
    if is_open:
        assert first_line(found) == (
            "Not decided, because layout is not excluded for 1 step: "
            "0 of 2 steps slower, 0 faster, 1 not decided."
        )


def test_settings_alone_and_links_in_every_block_need_no_allowance() -> None:
    sides = {side: {"server": "embedded", "settings": {"work_mem": "64MB"}} for side in SIDES}
    alone = fixed({"insert": 1.1}, comparison=sides)
    drawn = made_up(samples_of({"insert": logs(1.1)}))
    for measured in (alone, drawn):
        found = result(measured)
        assert found.code == 1
        assert found.effects["allowance"].to_list() == [None]


def test_the_text_of_two_releases_says_that_their_compilers_differ() -> None:
    sides = {side: {"server": name, "settings": {}} for side, name in
             ((BASELINE, "16"), (CANDIDATE, "17"))}  # fmt: skip
    of_releases = as_text(result(fixed({"insert": 1.1}, comparison=sides)))
    sentence = "The difference of two releases is one of builds, compilers included."
    assert " ".join(of_releases.split()).count(sentence) == 1
    assert "compilers included" not in as_text(result(fixed({"insert": 1.1})))


def counts(baseline: float, candidate: float | None, **of: Any) -> Counted:
    """One unit, of the step insert."""
    ratio = None if candidate is None else candidate / baseline
    about = {"study": "made_up", "unit": "one row inserted", "reason": None}
    numbers = {"baseline": baseline, "candidate": candidate, "ratio": ratio}
    row = about | numbers | {"arm": "", "steps": ["insert"]} | of
    moved = dict.fromkeys(["unit", "function"], pl.String()) | {"change": pl.Float64()}
    return Counted(pl.DataFrame([row]), pl.DataFrame(schema=moved))


@pytest.mark.parametrize(
    ("counted", "code"),
    [
        (counts(1000.0, 1060.0), 1),
        (counts(1000.0, 1060.0, arm="heap"), 1),
        (counts(1000.0, 1015.0), 2),
        (counts(1000.0, 940.0), 2),
        (counts(1000.0, 1000.5), 2),
        (counts(1000.0, None), 2),
        (counts(1000.0, 1060.0, arm="tree"), 2),
        (counts(1000.0, 1060.0, steps=["insert, many"]), 2),
        (counts(1000.0, 1060.0, study="another"), 2),
    ],
    ids=["more", "its arm", "too few", "fewer", "equal", "not counted", "arm", "case", "study"],
)
def test_a_step_whose_instructions_grew_with_its_time_is_slower(
    counted: Counted, code: int
) -> None:
    assert result(fixed({"insert": 1.045, "select": 1.0}), counted=counted).code == code


def test_counts_alone_make_no_step_slower() -> None:
    found = result(fixed({"insert": 1.0}), counted=counts(1000.0, 1100.0))
    assert (found.code, found.effects["verdict"].to_list()) == (0, ["equivalent"])


def test_the_units_of_a_step_are_taken_together() -> None:
    one, two = counts(1000.0, 1010.0).units, counts(3000.0, 2990.0).units
    both = Counted(pl.concat([one, two]), counts(1.0, 1.0).moved)
    assert result(fixed({"insert": 1.1}), counted=both).effects["instructions"].to_list() == [1.0]
    lacking = pl.concat([one, two.with_columns(ratio=None)], how="vertical_relaxed")
    found = result(fixed({"insert": 1.1}), counted=Counted(lacking, both.moved))
    assert found.effects["instructions"].to_list() == [None]


def test_instructions_explain_a_step_by_its_estimate_and_not_by_the_end_of_its_interval() -> None:
    row = {"ratio": 1.04, "low": 1.002, "high": 1.08, "instructions": 1.003, "verdict": "slower"}
    effects = pl.DataFrame([row | {"allowance": 0.05, "blocks_needed": None}])
    assert doubted(effects, is_fixed=True)["doubt"].to_list() == ["layout not excluded"]
    by_the_end = effects.with_columns(ratio="low")
    assert doubted(by_the_end, is_fixed=True)["doubt"].to_list() == [None]
    less = effects.with_columns(instructions=pl.lit(0.9))
    assert doubted(less, is_fixed=True)["doubt"].to_list() == ["layout not excluded"]


def test_a_time_that_differs_beside_equal_instructions_is_said_to_be_unexplained() -> None:
    equal = counts(1000.0, 1000.5)
    note = "\n    same instructions; placement, caches or waits\n"
    beyond = result(fixed({"insert": 1.1, "select": 1.0}), counted=equal)
    assert note in as_text(beyond)
    assert beyond.code == 1, "it is beyond what links move it by"
    found = result(fixed({"insert": 1.045, "select": 1.0}), counted=equal)
    assert note in as_text(found)
    assert found.code == 2
    assert "only the time differs, and not the instructions, of 1 step" in first_line(found)
    drawn = made_up(samples_of({"insert": logs(1.045), "select": logs(1.0)}))
    relinked = result(drawn, counted=equal)
    assert note in as_text(relinked)
    assert relinked.code == 1
    assert note not in as_text(result(drawn, counted=counts(1000.0, 1050.0)))
    assert note not in as_text(result(well(), counted=equal))


LUCK = 0.01
"""The standard deviation of what one link moves a step by, and of the noise of a block."""

COMPARISONS, STEPS, BLOCKS = 40, 12, 9


def simulated(seed: int, *, links: int, slower: float = 1.0) -> pl.DataFrame:
    """Effects of comparisons of a made-up server, each a study.

    Every program has ``links``, one for all blocks or one for each.  Nothing differs but them,
    except that the candidate's step 0 takes ``slower`` times as long.
    """
    rng = np.random.default_rng(seed)
    steps = (COMPARISONS, STEPS)
    shape = (len(SIDES), *steps, BLOCKS)
    layouts = rng.normal(0, LUCK, (len(SIDES), *steps, links))
    if links == 1:
        layouts[1] = layouts[0]  # a copy of one program
    log = np.broadcast_to(layouts, shape) + rng.normal(0, LUCK, shape)
    log[SIDES.index(CANDIDATE), :, 0] += math.log(slower)
    side, study, step, block = (axis.ravel() for axis in np.indices(shape))
    same = {"of": "heap", "case": "", "metric": "duration_s"}
    times = pl.DataFrame(
        {"study": study.astype(str), "step": step.astype(str), "block": block + 1}
        | {"arm": np.array(SIDES)[side], "value": np.exp(log).ravel(), "unit": "s", **same}
    ).with_columns(copy_of=pl.when(arm=COPY).then(pl.lit(BASELINE)))
    by = [*PLACE, "metric"]
    return pl.concat([effects_by_names(of, by=by) for of in times.partition_by("study")])


def share(effects: pl.DataFrame, step: str | None = None) -> float:
    """Of the comparisons, those that call a step, or this one, slower or faster."""
    differs = pl.col("verdict").is_in(["slower", "faster"])
    if step is not None:
        effects = effects.filter(step=step)
    calls = effects.group_by("study").agg(differs.any())
    return float(calls["verdict"].mean())  # type: ignore[arg-type]


def judged(effects: pl.DataFrame) -> pl.DataFrame:
    """As two programs are judged that were not relinked."""
    return doubted(
        effects.with_columns(
            instructions=pl.lit(None, pl.Float64), allowance=pl.lit(allowance(TIME, STEPS))
        ),
        is_fixed=True,
    )


@pytest.mark.timeout(900)
def test_where_layout_alone_differs_a_step_is_called_in_at_most_one_comparison_of_twenty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(layout.LINKS, TIME, math.sqrt(2) * LUCK)  # both links are of one kind
    alone = simulated(1, links=1)
    assert share(alone) > 0.5, "an interval over blocks does not hold what is fixed for a side"
    assert share(judged(alone)) <= 0.05
    drawn = simulated(2, links=BLOCKS)
    assert share(drawn) <= 0.05


@pytest.mark.timeout(900)
def test_a_tenth_more_is_found_whatever_the_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(layout.LINKS, TIME, math.sqrt(2) * LUCK)
    alone = simulated(3, links=1, slower=1.1)
    assert share(judged(alone), step="0") >= 0.9
    drawn = simulated(4, links=BLOCKS, slower=1.1)
    assert share(drawn, step="0") >= 0.95
