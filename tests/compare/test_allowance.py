"""What links move, and what two programs that were not relinked may be said to differ by."""

from __future__ import annotations

import math
import shutil
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest
from scipy.stats import t

from pgapps.compare.counted import Counted
from pgapps.compare.design import BASELINE, CANDIDATE, COPY, SIDES
from pgapps.compare.judging.layout import allowed, doubted
from pgapps.compare.judging.measured import PLACE, Measured, as_family
from pgapps.compare.text import COLUMNS, as_text
from pgservers import paths
from pgstudies.analysis.effects import paired_effects
from pgstudies.records.reading import SAMPLES_SCHEMA
from pgstudies.records.writing import write_whole
from tests.compare.test_compare import (
    AT,
    NOISE,
    first_line,
    info_of,
    logs,
    made_up,
    result,
    samples_of,
    well,
)
from tests.made_up import swept_info

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

STUDY = "compare_made_up"

T_OF_NINE = 2.262
"""The 97.5 % quantile of Student's t with 9 degrees of freedom."""

CLOSE = 0.02
"""How closely an allowance is computed, relative to itself."""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the project's records on layout; the user's own are private, too."""
    place = tmp_path / "layout"
    monkeypatch.setenv("PGSTUDIES_RECORDS", str(tmp_path / "records"))
    monkeypatch.setattr(paths, "LAYOUT_RECORDS", place)
    return place


def fixed(steps: Mapping[str, float], **about: Any) -> Measured:
    """Two builds that were not relinked, with the candidate's time of each step."""
    told = info_of(links=[], **about)
    return made_up(samples_of({step: logs(effect) for step, effect in steps.items()}), told)


def record(base: Path, again: Mapping[str, Sequence[float]], **about: Any) -> Path:
    """A comparison relinked in every block, by step with ln(second copy / first) of each."""
    blocks = range(1, len(NOISE) + 1)
    frames = [samples_of({step: NOISE}, again=d) for step, d in again.items()]
    rows = pl.concat(frames, how="diagonal_relaxed").drop("study", "of", "side")
    empty = pl.DataFrame(schema=SAMPLES_SCHEMA)
    rows = pl.concat([empty, rows], how="diagonal_relaxed").select(list(SAMPLES_SCHEMA))
    rows = rows.cast(pl.Schema(SAMPLES_SCHEMA))
    ran = [{"block": block, "arm": f"heap, {side}"} for block in blocks for side in SIDES]
    times = {"position": 1, "started_at": AT, "finished_at": AT}
    told = {"timeline": [entry | times for entry in ran]}
    of_study = {"study": about.pop("study", STUDY)}
    told |= {"links": [entry | {"seed": 1, "sha256": "0"} for entry in ran], "not_compared": []}
    place = base / "compare_made_up" / f"20261121T200000Z-{len(list(base.glob('*/*')))}-abcdef"
    write_whole(place, swept_info("bench1") | info_of(**(told | about)) | of_study, rows)
    return place


def spread(factor: float) -> list[float]:
    return [factor * noise for noise in NOISE]


def expected(factor: float) -> float:
    """The allowance of ``spread``, by hand."""
    return math.expm1(T_OF_NINE * factor * math.sqrt(fmean(d * d for d in NOISE)))


def test_an_allowance_is_the_prediction_interval_of_one_more_pair_of_links() -> None:
    (row,) = allowed(pairs([[d] for d in NOISE])).iter_rows(named=True)
    assert row["allowance"] == pytest.approx(expected(1), rel=CLOSE)
    assert not row["is_repeated"]
    assert allowed(pairs([[0.0]])).is_empty(), "one pair tells nothing"


def pairs(blocks: Sequence[Sequence[float]]) -> pl.DataFrame:
    """Of one step: ln(second copy / first) of each round of each block."""
    place = dict.fromkeys([*PLACE, "metric"], "x") | {"judges": True}
    every = [(f"{number}", d) for number, rounds in enumerate(blocks) for d in rounds]
    return pl.DataFrame([place | {"block": block, "log_ratio": d} for block, d in every])


def test_what_rounds_of_a_block_differ_by_is_no_matter_of_links() -> None:
    """Blocks without luck of their own: the allowance goes down with the rounds' own noise."""
    rng = np.random.default_rng(3)
    noise = rng.normal(0, 0.05, (12, 10))
    (alone,) = allowed(pairs(noise.tolist()))["allowance"]
    (with_noise,) = allowed(pairs([[float(d.mean())] for d in noise]))["allowance"]
    assert alone < 0.7 * with_noise
    moved = noise + rng.normal(0, 0.03, (12, 1))
    (row,) = allowed(pairs(moved.tolist())).iter_rows(named=True)
    assert row["is_repeated"]
    assert 0.03 < row["allowance"] < 0.15


def test_nine_of_ten_further_pairs_of_links_lie_within_the_allowance() -> None:
    rng = np.random.default_rng(4)
    within = []
    for _ in range(100):
        links = rng.normal(0, 0.01, (10, 1)) + rng.normal(0, 0.02, (10, 9))
        (allowance,) = allowed(pairs(links.tolist()))["allowance"]
        within.append(abs(rng.normal(0, 0.01)) < math.log1p(allowance))
    assert np.mean(within) >= 0.9


@pytest.mark.parametrize(("factor", "code"), [(1, 1), (20, 2)])
def test_a_step_is_called_slower_only_beyond_what_links_move_it_by(
    factor: int, code: int, tmp_path: Path
) -> None:
    record(tmp_path / "records", {"insert": spread(factor)})
    found = result(fixed({"insert": 1.1, "select": 1.0}))
    row = found.effects.row(by_predicate=pl.col("step") == "insert", named=True)
    assert row["allowance"] == pytest.approx(expected(factor), rel=CLOSE)
    assert found.code == code
    assert row["verdict"] == ("slower" if code == 1 else "inconclusive")
    assert row["doubt"] == (None if code == 1 else "layout not excluded")
    assert row["blocks_needed"] is None
    text = as_text(found)
    assert max(map(len, text.splitlines())) <= COLUMNS
    told = " ".join(text.split())
    assert (
        f"Layout not excluded: these programs cannot be relinked here. Two links of one program "
        f"differ by up to {100 * row['allowance']:.1f} % (this machine); what is called slower or "
        f"faster is beyond that of its step." in told
    )
    assert ("open, layout" in told) == (code == 2)
    if code == 2:
        assert first_line(found) == (
            "Not decided, because layout is not excluded for 1 step: "
            "0 of 2 steps slower, 0 faster, 1 not decided."
        )


def test_a_faster_step_needs_as_much(tmp_path: Path) -> None:
    record(tmp_path / "records", {"insert": spread(4)})
    verdicts = [result(fixed({"insert": 1 / x})).effects["verdict"][0] for x in (1.06, 1.022)]
    assert verdicts == ["faster", "inconclusive"]


def test_without_any_record_no_time_alone_makes_a_step_slower() -> None:
    found = result(fixed({"insert": 2.0, "select": 1.0}))
    assert found.code == 2
    assert "No record says how far two links of one program differ" in " ".join(
        as_text(found).split()
    )
    assert result(fixed({"insert": 1.0, "select": 1.0})).code == 0


def test_this_machine_goes_before_the_projects_and_another_machine_does_not_count(
    tmp_path: Path, project: Path
) -> None:
    record(project, {"insert": spread(3)})
    record(tmp_path / "records", {"insert": spread(9)}, host={"hostname": "bench2"})
    other = {"hostname": "bench1", "cpu_model": "Another processor"}
    record(tmp_path / "records", {"insert": spread(9)}, host=other)
    compared = fixed({"insert": 1.1})
    (theirs,) = result(compared).effects.select("allowance", "machine").rows()
    assert theirs == (pytest.approx(expected(3), rel=CLOSE), "the reference machine")
    record(tmp_path / "records", {"insert": spread(2)})
    (own,) = result(compared).effects.select("allowance", "machine").rows()
    assert own == (pytest.approx(expected(2), rel=CLOSE), "this machine")


def test_a_step_that_no_record_has_is_one_of_any_of_its_metric(
    tmp_path: Path, project: Path
) -> None:
    record(tmp_path / "records", {"insert": spread(1), "vacuum": spread(5)})
    record(project, {"fetch": spread(3)})
    found = result(fixed({"insert": 1.1, "fetch": 1.1, "mine": 1.1})).effects
    allowances = dict(found.select("step", "allowance").rows())
    mine = allowances.pop("mine")
    assert allowances == pytest.approx({"insert": expected(1), "fetch": expected(3)}, rel=CLOSE)
    of_one = math.log1p(mine) / math.sqrt(fmean(d * d for d in NOISE))
    beyond = fmean(2 * t.sf(of_one / factor, len(NOISE)) for factor in (1, 3, 5))
    assert beyond == pytest.approx(0.05, abs=0.003)
    assert set(found["verdict"]) == {"slower"}


def test_a_new_step_of_a_study_is_one_of_any_of_that_study(tmp_path: Path, project: Path) -> None:
    record(project, {"insert": spread(2)})
    other = record(tmp_path / "records", {"vacuum": spread(5)}, study="compare_another")
    assert result(fixed({"mine": 1.1})).effects["allowance"].to_list() == pytest.approx(
        [expected(2)], rel=CLOSE
    )
    shutil.rmtree(project)
    assert result(fixed({"mine": 1.1})).effects["allowance"].to_list() == pytest.approx(
        [expected(5)], rel=CLOSE
    )
    shutil.rmtree(other)
    assert result(fixed({"mine": 1.1})).effects["allowance"].to_list() == [None]


def test_records_without_links_or_damaged_ones_do_not_count(tmp_path: Path, project: Path) -> None:
    record(project, {"insert": spread(1)}, links=[])
    record(project, {"insert": spread(1)}, links=[{"block": [], "arm": {}}])
    record(project, {"insert": spread(1)}, arms=[])
    (record(project, {"insert": spread(1)}) / "samples.parquet").write_bytes(b"nothing")
    assert result(fixed({"insert": 1.1})).effects["allowance"].to_list() == [None]
    record(tmp_path / "records", {"insert": spread(1)})
    assert result(fixed({"insert": 1.1})).code == 1


def test_a_block_counts_only_where_both_copies_were_linked_anew(tmp_path: Path) -> None:
    odd = [(block, f"heap, {side}") for block in range(1, 10) for side in SIDES]
    links = [
        {"block": block, "arm": arm} for block, arm in odd if block != 3 or arm != f"heap, {COPY}"
    ]
    d = [*NOISE]
    d[2] = 5.0
    record(tmp_path / "records", {"insert": d}, links=links)
    (allowance,) = result(fixed({"insert": 1.1})).effects["allowance"]
    assert 0 < allowance < 0.02


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
        (counts(1000.0, 1020.0), 2),
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
    assert result(fixed({"insert": 1.1, "select": 1.0}), counted=counted).code == code


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


def test_a_time_that_differs_beside_equal_instructions_is_said_to_be_unexplained(
    tmp_path: Path,
) -> None:
    known = record(tmp_path / "records", {"insert": spread(1)})
    equal = counts(1000.0, 1000.5)
    note = "\n    same instructions; placement, caches or waits\n"
    beyond = result(fixed({"insert": 1.1, "select": 1.0}), counted=equal)
    assert note in as_text(beyond)
    assert beyond.code == 1, "it is beyond what links move it by"
    shutil.rmtree(known)
    record(tmp_path / "records", {"insert": spread(20)})
    found = result(fixed({"insert": 1.1, "select": 1.0}), counted=equal)
    assert note in as_text(found)
    assert found.code == 2
    assert "only the time differs, and not the instructions, of 1 step" in first_line(found)
    drawn = made_up(samples_of({"insert": logs(1.1), "select": logs(1.0)}))
    relinked = result(drawn, counted=equal)
    assert note in as_text(relinked)
    assert relinked.code == 1
    assert note not in as_text(result(drawn, counted=counts(1000.0, 1050.0)))
    assert note not in as_text(result(well(), counted=equal))


LUCK = 0.01
"""The standard deviation of what one link moves a step by, and of the noise of a block."""

COMPARISONS, STEPS, BLOCKS = 80, 12, 9


def simulated(seed: int, *, links: int, slower: float = 1.0) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Effects of comparisons of a made-up server, each a study; and allowances from ten blocks.

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
    effects = paired_effects(times, baseline=BASELINE, by=[*PLACE, "metric"], gated=False, renamed=True)
    families = effects.filter(candidate=CANDIDATE).partition_by("study", maintain_order=True)
    blocks = 10
    linked = rng.normal(0, LUCK, (4, *steps, blocks)).sum(axis=0)  # two links, and twice the noise
    study, step, block = (axis.ravel() for axis in np.indices(linked.shape))
    known = {"study": study.astype(str), "step": step.astype(str), "log_ratio": linked.ravel()}
    known |= {"block": block.astype(str)}
    found = pl.concat([as_family(family) for family in families])
    return found, allowed(pl.DataFrame(known | same | {"judges": True}))


def share(effects: pl.DataFrame, step: str | None = None) -> float:
    """Of the comparisons, those that call a step, or this one, slower or faster."""
    differs = pl.col("verdict").is_in(["slower", "faster"])
    if step is not None:
        effects = effects.filter(step=step)
    calls = effects.group_by("study").agg(differs.any())
    return float(calls["verdict"].mean())  # type: ignore[arg-type]


def judged(effects: pl.DataFrame, allowances: pl.DataFrame) -> pl.DataFrame:
    """As two programs are judged that were not relinked."""
    known = effects.join(allowances.drop("judges"), on=[*PLACE, "metric"], maintain_order="left")
    return doubted(known.with_columns(instructions=pl.lit(None, pl.Float64)), is_fixed=True)


def test_where_layout_alone_differs_a_step_is_called_in_at_most_one_comparison_of_twenty() -> None:
    alone, allowances = simulated(1, links=1)
    assert share(alone) > 0.5, "an interval over blocks does not hold what is fixed for a side"
    assert share(judged(alone, allowances)) <= 0.05
    drawn, _ = simulated(2, links=BLOCKS)
    assert share(drawn) <= 0.05


def test_a_tenth_more_is_found_whatever_the_layout() -> None:
    alone, allowances = simulated(3, links=1, slower=1.1)
    assert share(judged(alone, allowances), step="0") >= 0.9
    drawn, _ = simulated(4, links=BLOCKS, slower=1.1)
    assert share(drawn, step="0") >= 0.95
