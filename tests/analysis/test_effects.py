"""Effects, verdicts and their sentences on small tables whose answer is known."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from scipy.stats import wilcoxon

from pgservers.errors import StudyError
from pgstudies.analysis.effects import estimate, gated_by, paired_effects
from pgstudies.analysis.pairing import block_values, log_ratios, trimmed_mean
from pgstudies.analysis.verdicts import describe
from tests import made_up

if TYPE_CHECKING:
    from collections.abc import Sequence

COPY = "the other heap"
BASELINE = [1.00, 1.02, 0.99, 1.01, 1.03, 0.98, 1.00, 1.01, 0.99, 1.02]
# Noise of about 0.5 % on each block's ratio, no two alike, none of them 1.
WOBBLE = [0.994, 1.006, 1.001, 0.997, 1.004, 0.999, 1.003, 0.995, 1.005, 0.998]


def slowed(factor: float, wobble: Sequence[float] = WOBBLE) -> list[float]:
    return [b * w * factor for b, w in zip(BASELINE, wobble, strict=False)]


def effect(candidate: Sequence[float | None], unit: str = "s", **options: Any) -> dict[str, Any]:
    table = made_up.samples({"heap": BASELINE, "tree": candidate}, unit)
    return paired_effects(table, baseline="heap", by=(), **options).row(0, named=True)


pairs = st.lists(
    st.tuples(st.floats(0.01, 100), st.floats(0.5, 2)).map(lambda p: (p[0], p[0] * p[1])),
    min_size=1,
    max_size=14,
)


def effect_of(drawn: list[tuple[float, float]], **options: Any) -> dict[str, Any]:
    table = made_up.samples({"a": [a for a, _ in drawn], "b": [b for _, b in drawn]})
    return paired_effects(table, baseline="a", by=(), **options).row(0, named=True)


# Nothing here may depend on how busy the machine is.
relaxed = settings(deadline=None, max_examples=50)

NUMBERS = ("ratio", "low", "high", "p_value", "detectable")


# ---- properties


@relaxed
@given(pairs)
def test_swapped_arms_give_the_reciprocal(drawn: list[tuple[float, float]]) -> None:
    here, there = effect_of(drawn), effect_of([(b, a) for a, b in drawn])
    assert here["ratio"] == pytest.approx(1 / there["ratio"])
    if here["low"] is not None:
        assert here["low"] == pytest.approx(1 / there["high"])
        assert here["high"] == pytest.approx(1 / there["low"])
        assert here["p_value"] == there["p_value"]
    opposite = {"faster": "slower", "slower": "faster"}
    assert here["verdict"] == opposite.get(there["verdict"], there["verdict"])


@relaxed
@given(pairs, st.sampled_from([1e-6, 1 / 3, 60.0, 1e3, 8192.0]))
def test_units_do_not_matter(drawn: list[tuple[float, float]], factor: float) -> None:
    here = effect_of(drawn)
    there = effect_of([(a * factor, b * factor) for a, b in drawn])
    for name in NUMBERS:
        assert here[name] == pytest.approx(there[name], abs=1e-9)
    assert here["verdict"] == there["verdict"]


@relaxed
@given(pairs, st.randoms(use_true_random=False))
def test_order_of_blocks_does_not_matter(drawn: list[tuple[float, float]], random: Any) -> None:
    other = list(drawn)
    random.shuffle(other)
    found = [effect_of(pairs) for pairs in (drawn, other)]
    assert sorted(found[0].pop("log_ratios")) == sorted(found[1].pop("log_ratios"))
    assert found[0] == found[1]


@settings(max_examples=30, deadline=None)
@given(pairs, st.integers(0, 1000))
def test_order_of_rows_does_not_matter(drawn: list[tuple[float, float]], seed: int) -> None:
    table = pl.concat(
        made_up.samples({"a": [a for a, _ in drawn], "b": [b for _, b in drawn]}, step=step)
        for step in ("insert", "vacuum")
    )
    shuffled = table.sample(fraction=1, shuffle=True, seed=seed)
    found = [paired_effects(t, baseline="a", by=("step",)) for t in (table, shuffled)]
    assert_frame_equal(*found, check_exact=True)


@relaxed
@given(pairs)
def test_the_interval_contains_the_estimate(drawn: list[tuple[float, float]]) -> None:
    found = effect_of(drawn)
    if len(drawn) < 6:
        assert [found[name] for name in ("low", "high", "p_value")] == [None] * 3
        assert found["verdict"] == "too few blocks"
    else:
        assert found["low"] <= found["ratio"] <= found["high"]


@relaxed
@given(pairs)
def test_every_row_has_a_sentence_without_holes(drawn: list[tuple[float, float]]) -> None:
    sentence = describe(effect_of(drawn))
    assert not [word for word in ("None", "nan", "inf") if word in sentence]


@pytest.mark.parametrize("blocks", [1, 2, 5, 6, 7, 60, 400])
def test_any_number_of_blocks_works(blocks: int) -> None:
    found = effect_of([(1, 1 + 0.001 * (i % 7)) for i in range(blocks)])
    assert found["blocks"] == blocks
    assert (found["low"] is None) == (blocks < 6)


# ---- the table


def test_ratio_interval_and_p_value_are_the_paired_ones() -> None:
    found = effect(slowed(1.10))
    assert found["ratio"] == pytest.approx(1.10, abs=0.003)
    assert 1.09 < found["low"] < found["ratio"] < found["high"] < 1.11
    d = [math.log(c / b) for b, c in zip(BASELINE, slowed(1.10), strict=True)]
    assert found["p_value"] == pytest.approx(wilcoxon(d, method="exact").pvalue)
    assert found["baseline_median"] == 1.005
    assert (found["blocks"], found["dropped"]) == (10, 0)


def test_an_effect_hidden_by_the_machine_is_seen_in_pairs() -> None:
    drift = [1.5**i for i in range(10)]
    slower = [d * f for d, f in zip(drift, slowed(1.05), strict=True)]
    found = effect_of(list(zip(drift, slower, strict=True)))
    assert found["verdict"] == "slower"
    assert found["high"] < 1.10


def test_block_zero_is_not_a_block() -> None:
    table = made_up.samples({"heap": BASELINE, "tree": slowed(1.1)})
    zero = {"block": pl.lit(0, pl.Int32), "value": pl.lit(99.0)}
    both = pl.concat([table.filter(block=1).with_columns(**zero), table])
    found = [paired_effects(values, baseline="heap", by=()) for values in (table, both)]
    assert_frame_equal(*found)


def test_blocks_that_lack_one_of_the_pair_are_dropped_and_counted() -> None:
    candidate: list[float | None] = [*slowed(1.1)]
    candidate[2] = candidate[5] = None
    found = effect([*candidate, 1.1])  # an eleventh block, without a baseline
    assert (found["blocks"], found["dropped"]) == (8, 3)
    assert describe(found).endswith("8 blocks, 3 incomplete)")


def test_a_step_of_one_arm_only_is_not_comparable() -> None:
    table = pl.concat(
        [
            made_up.samples({"heap": BASELINE, "tree": slowed(1.1)}, step="insert"),
            made_up.samples({"tree": BASELINE}, step="cluster"),
            made_up.samples({"heap": BASELINE}, step="reindex"),
        ]
    )
    found = paired_effects(table, baseline="heap", by=("step",))
    assert found["step"].to_list() == ["cluster", "insert"]
    alone = found.row(0, named=True)
    assert (alone["verdict"], alone["blocks"], alone["dropped"]) == ("not comparable", 0, 10)
    assert alone["ratio"] is None
    assert describe(alone) == "not comparable: no block holds both"


def test_zeros_in_both_are_alike_and_a_single_zero_is_not_comparable() -> None:
    none = [0.0] * 10
    arms = {
        "both": {"heap": none, "tree": none},
        "one": {"heap": [0, *BASELINE[1:]], "tree": BASELINE},
        "negative": {"heap": BASELINE, "tree": [*BASELINE[1:], -1]},
    }
    table = pl.concat(made_up.samples(a, "blocks", metric=name) for name, a in arms.items())
    rows = paired_effects(table, baseline="heap", by=("metric",)).to_dicts()
    found = {row["metric"]: row for row in rows}
    both = found["both"]
    assert (both["ratio"], both["low"], both["high"]) == (1, 1, 1)
    assert both["verdict"] == "equivalent"
    assert describe(both) == "equivalent within 2.0 %: 0.0 % (the same in all 10 blocks)"
    for metric in ("one", "negative"):
        row = found[metric]
        assert row["verdict"] == "not comparable"
        assert [row[c] for c in ("ratio", "low", "high", "p_value", "detectable")] == [None] * 5
        assert "above 0 (medians 1.005 against" in describe(row)


def test_counts_that_never_vary_have_an_interval_of_one_point() -> None:
    table = made_up.samples({"heap": [48.0] * 6, "tree": [67.0] * 6}, "pages")
    found = paired_effects(table, baseline="heap", by=()).row(0, named=True)
    assert found["low"] == found["high"] == pytest.approx(67 / 48)
    assert found["detectable"] == pytest.approx(0.02)  # less than the margin is never judged
    assert describe(found) == "39.6 % more (the same in all 6 blocks)"


def test_each_combination_is_compared_by_itself_also_where_a_column_is_null() -> None:
    table = pl.concat(
        [
            made_up.samples({"heap": BASELINE, "tree": slowed(1.1)}, case="wide"),
            made_up.samples({"heap": BASELINE, "tree": slowed(0.9)}, case=None),
        ]
    )
    found = paired_effects(table, baseline="heap", by=("case",))
    assert dict(found.select("case", "verdict").rows()) == {None: "faster", "wide": "slower"}


def test_another_column_than_the_arm_can_be_compared() -> None:
    arms = {2: {"heap": BASELINE, "tree": BASELINE}, 10: {"heap": slowed(1.5), "tree": slowed(1)}}
    later = pl.concat(made_up.samples(a, iteration=i) for i, a in arms.items())
    found = paired_effects(later, baseline=2, key="iteration", by=("arm",))
    assert found.select("arm", "baseline", "candidate", "verdict").rows() == [
        ("heap", 2, 10, "slower"),
        ("tree", 2, 10, "equivalent"),
    ]


def test_a_table_of_the_baseline_alone_has_no_effects() -> None:
    found = paired_effects(made_up.samples({"heap": BASELINE}), baseline="heap", by=())
    assert found.is_empty()
    assert found.schema["blocks_needed"] == pl.Int64


# ---- verdicts


@pytest.mark.parametrize(
    ("factor", "unit", "verdict"),
    [
        (1.10, "s", "slower"),
        (0.90, "s", "faster"),
        (1.10, "blocks", "more"),
        (0.90, "bytes", "fewer"),
        (1.00, "s", "equivalent"),
        (1.01, "s", "equivalent"),
        (1.021, "s", "slower"),
        (1.018, "s", "inconclusive"),
        (0.982, "s", "inconclusive"),
    ],
)
def test_verdict(factor: float, unit: str, verdict: str) -> None:
    assert effect(slowed(factor), unit)["verdict"] == verdict


def test_noise_larger_than_the_margin_is_inconclusive() -> None:
    noisy = slowed(1.0, [w**8 for w in WOBBLE])
    assert effect(noisy)["verdict"] == "inconclusive"
    assert effect(noisy, margin=0.2)["verdict"] == "equivalent"


def test_the_margin_reaches_as_far_down_as_up() -> None:
    up = effect([b * 1.02 for b in BASELINE])
    down = effect([b / 1.02 for b in BASELINE])
    assert up["verdict"] == down["verdict"] == "equivalent"
    assert effect([b * 1.0201 for b in BASELINE])["verdict"] == "slower"
    assert effect([b / 1.0201 for b in BASELINE])["verdict"] == "faster"


def test_the_margin_grows_with_the_noise_of_the_same_combination() -> None:
    copies = {"noisy": slowed(1, [w**6 for w in WOBBLE]), "quiet": slowed(1)}
    table = pl.concat(
        made_up.samples(
            {"heap": BASELINE, COPY: copy, "tree": slowed(1.05)}, step=step, copy_of={COPY: "heap"}
        )
        for step, copy in copies.items()
    )
    found = paired_effects(table, baseline="heap", by=("step",))
    rows = {(r["step"], r["candidate"]): r for r in found.to_dicts()}
    noisy, quiet = rows["noisy", "tree"], rows["quiet", "tree"]
    again = rows["noisy", COPY]
    half_width = (math.log(again["high"]) - math.log(again["low"])) / 2
    assert noisy["noise"] == pytest.approx(math.expm1(half_width))
    assert noisy["noise"] > quiet["noise"]
    # Its own interval holds the noise; the margin is the declared one, whatever the pair shows.
    assert noisy["margin"] == quiet["margin"] == pytest.approx(0.02)
    assert quiet["verdict"] == "slower"


def test_both_copies_are_the_baseline() -> None:
    first, second = slowed(1), slowed(1.02)
    arms = {"heap": first, COPY: second, "tree": slowed(1.1)}
    table = made_up.samples(arms, copy_of={COPY: "heap"})
    found = {r["candidate"]: r for r in paired_effects(table, baseline="heap", by=()).to_dicts()}
    assert found["tree"]["ratio"] == pytest.approx(1.1 / math.sqrt(1.02))
    assert found[COPY]["ratio"] == pytest.approx(1.02)


def test_a_step_is_not_judged_for_an_arm_whose_copies_differ() -> None:
    arms = {"heap": slowed(1), COPY: slowed(1.05), "tree": slowed(1.5), "hash": slowed(3)}
    table = pl.concat(
        [
            made_up.samples(arms, step="off", copy_of={COPY: "heap"}),
            made_up.samples(arms | {COPY: slowed(1.01)}, step="on", copy_of={COPY: "heap"}),
        ]
    )
    for baseline, candidate, off in (
        ("heap", "hash", "not valid"),
        ("tree", "heap", "not valid"),
        ("tree", "hash", "slower"),  # what the copies of neither say
    ):
        found = paired_effects(table, baseline=baseline, by=("step",)).filter(candidate=candidate)
        verdicts = dict(found.select("step", "verdict").rows())
        assert verdicts["off"] == off, (baseline, candidate)
    found = paired_effects(table, baseline="heap", by=("step",)).filter(step="off")
    sentence = describe(found.row(0, named=True))
    assert sentence == "not valid: two copies of one arm differ by +5.0 % in this step"


def test_a_step_without_copies_takes_the_gate_of_another() -> None:
    arms = {"heap": slowed(1), COPY: slowed(1.05)}
    pair = made_up.samples(arms, step="near", copy_of={COPY: "heap"})
    copies = paired_effects(pair, baseline="heap")
    bare = paired_effects(
        made_up.samples({"one": slowed(1), "two": slowed(1.5)}, step="far"), baseline="one"
    )
    (effect,) = gated_by(bare, copies).to_dicts()
    assert (effect["verdict"], effect["aa"]) == ("not valid", pytest.approx(1.05))
    assert gated_by(bare.with_columns(margin=0.1), copies)["verdict"].item() == "slower"
    assert gated_by(bare, copies.clear()).equals(bare)


@pytest.mark.parametrize(
    ("blocks", "found"),
    [
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.9], (6, 0.35, 0.1, 0.9)),
        ([0.1, None, 0.3], (2, 0.2, None, None)),
        ([], (0, None, None, None)),
    ],
)
def test_an_estimate_of_six_blocks_reaches_from_the_lowest_to_the_highest(
    blocks: list[float | None], found: tuple[int, *tuple[float | None, ...]]
) -> None:
    number, *logs = found
    ratios = [None if log is None else pytest.approx(math.exp(log)) for log in logs]
    assert estimate(pl.Series(blocks, dtype=pl.Float64())).row(0) == (number, *ratios)


def test_a_fifth_is_left_out_at_either_end() -> None:
    ratios = pl.DataFrame({"d": [9.0, 1, 2, 3, None, -50]})
    assert ratios.select(trimmed_mean(pl.col("d"))).item() == 2
    assert ratios.clear().select(trimmed_mean(pl.col("d"))).item() is None


# ---- sentences


@pytest.mark.parametrize(
    ("candidate", "unit", "sentence"),
    [
        (slowed(1.1), "s", "10.0 % slower (95 % interval 9.7 to 10.4 %, 10 blocks)"),
        (slowed(0.8), "blocks", "20.0 % fewer (95 % interval 19.7 to 20.2 %, 10 blocks)"),
        (slowed(4.6), "s", "slower: 4.6 times the baseline (95 % interval 4.59 to 4.62 times, 10"),
        (slowed(1.01), "s", "equivalent within 2.0 %, small but real: +1.0 % (95 % interval +0.7"),
        (slowed(1)[:4], "s", "too few blocks: 4 blocks, 6 incomplete, and an interval needs 6"),
    ],
)
def test_sentences(candidate: list[float], unit: str, sentence: str) -> None:
    assert describe(effect(candidate, unit)).startswith(sentence)


def test_the_open_sentence_says_what_could_be_seen_and_what_would_settle_it() -> None:
    found = effect(slowed(1.0, [w**8 for w in WOBBLE]))
    more = found["blocks_needed"] - 10
    assert more > 0
    assert describe(found).endswith(
        f"; this run could have seen {100 * found['detectable']:.1f} %, "
        f"and about {more} more blocks would settle it"
    )
    near = effect(slowed(1.0199))
    assert near["verdict"] == "inconclusive"
    assert describe(near).endswith("and this design cannot settle it")


def test_a_sentence_tells_of_turns_that_were_much_dearer() -> None:
    """Nine turns of ten take 1 % longer, and in the tenth the candidate stalls."""
    rounds = [
        (block, turn, arm, w * (1.0 if arm == "heap" else 2.01 if turn == 10 else 1.01))
        for block, w in enumerate(WOBBLE, start=1)
        for turn in range(1, 11)
        for arm in ("heap", "tree")
    ]
    values = pl.DataFrame(rounds, schema=["block", "round", "arm", "value"], orient="row")
    found = paired_effects(values.with_columns(unit=pl.lit("s")), baseline="heap", by=())
    (row,) = found.to_dicts()
    assert (row["ratio"], row["ratio_of_sums"]) == pytest.approx((1.01, 1.11))
    remark = "; by the sums over all turns +11.0 %: some turns were much dearer"
    assert describe(row).endswith(remark)
    assert "by the sums" not in describe(row | {"ratio_of_sums": 1.01 * 1.0199})


# ---- values from samples


def raw(rows: list[tuple[int, str, int, float]], unit: str = "s") -> pl.DataFrame:
    frame = pl.DataFrame(rows, schema=["block", "arm", "iteration", "value"], orient="row")
    same = {"case": "wide", "step": "insert", "metric": "duration_s", "unit": unit}
    return frame.with_columns(
        pl.lit(1).alias("position"),
        pl.lit(None, pl.String).alias("copy_of"),
        *(pl.lit(value).alias(name) for name, value in same.items()),
    )


@pytest.mark.parametrize(
    ("statistic", "value"), [("mean", 3.0), ("sum", 9.0), ("median", 2.0), ("min", 1.0)]
)
def test_block_values_are_one_per_block_and_arm(statistic: Any, value: float) -> None:
    of_a = [(1, "a", i, v) for i, v in enumerate([1.0, 6.0, 2.0])]
    measured = raw([(0, "a", 1, 99.0), *of_a, (1, "b", 1, 5.0)])
    found = block_values(measured, statistic=statistic)
    assert found.columns == [
        *("block", "arm", "case", "step", "metric"),
        *("unit", "position", "copy_of", "value"),
    ]
    assert found.select("block", "arm", "value").rows() == [(1, "a", value), (1, "b", 5.0)]


def test_block_values_keep_the_iterations_apart_when_asked() -> None:
    measured = raw([(1, "a", i, float(i)) for i in (1, 2, 3)])
    found = block_values(measured, by=("step", "iteration"))
    assert found["value"].to_list() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, None])
def test_a_sample_that_is_no_number_is_refused(bad: float | None) -> None:
    measured = raw([(1, "a", 1, 1.0), (1, "a", 2, bad)])  # type: ignore[list-item]
    with pytest.raises(StudyError, match=r"block 1, arm a, .* is not a finite number"):
        block_values(measured)
    with pytest.raises(StudyError, match="is not a finite number"):
        log_ratios(measured, baseline="a", by=("iteration",))


def test_mixed_units_are_refused() -> None:
    mixed = pl.concat([raw([(1, "a", 1, 1.0)]), raw([(1, "a", 1, 1.0)], "blocks")])
    with pytest.raises(StudyError, match="mixes units; add 'metric'"):
        block_values(mixed)
    across = pl.concat([raw([(1, "a", 1, 1.0)]), raw([(1, "b", 1, 1.0)], "blocks")])
    with pytest.raises(StudyError, match=r"block 1, candidate b, .* another unit"):
        paired_effects(block_values(across), baseline="a")


def test_two_values_in_a_block_and_unknown_names_are_refused() -> None:
    table = made_up.samples({"heap": BASELINE, "tree": BASELINE})
    with pytest.raises(StudyError, match="block 1, arm heap has more than one value"):
        paired_effects(pl.concat([table, table]), baseline="heap", by=())
    with pytest.raises(StudyError, match="No arm 'head' was measured; there is 'heap', 'tree'"):
        paired_effects(table, baseline="head", by=())
    with pytest.raises(StudyError, match="so it cannot be in by"):
        paired_effects(table, baseline="heap", by=("arm",))


def test_log_ratios_are_given_block_by_block() -> None:
    table = made_up.samples({"heap": [1.0, 2.0, 0.0], "tree": [1.0, 4.0]})
    found = log_ratios(table, baseline="heap", by=())
    assert found["block"].to_list() == [1, 2, 3]
    assert found["log_ratio"].to_list() == [0.0, pytest.approx(math.log(2)), None]
