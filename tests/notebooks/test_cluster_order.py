"""What cluster_order keeps beside its notebook: its arms, and how it reads a record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from pgstudies.rooms import study_module

if TYPE_CHECKING:
    import pgstudies as pg

ARMS = study_module("cluster_order", "arms")
READING = study_module("cluster_order", "reading")


def arms(*variants: str, **other: Any) -> dict[str, pg.Arm]:
    what = {"iterations": 3, "cluster_every": 2, "direct_io": False} | other
    return {arm.name: arm for arm in ARMS.arms(variants=variants, **what)}


def values(*rows: tuple[str, str, str, int, int, float]) -> pl.DataFrame:
    schema = ["arm", "step", "metric", "block", "iteration", "value"]
    return pl.DataFrame(rows, schema=schema, orient="row")


def test_four_arms_are_always_there_and_a_variant_adds_its_own() -> None:
    always = list(arms())
    both = ("heap", "patched (access method)")
    assert always == [f"{name}{when}" for name in both for when in ("", ", after 2 iterations")]
    assert list(arms("cold")) == always
    assert list(arms("reserve", "fillfactor"))[4:] == ["heap, fillfactor 90", ARMS.RESERVE]
    assert list(arms("CLUSTER", cluster_every=5))[4:] == ["heap, CLUSTER every 5th iteration"]
    assert list(arms("CLUSTER", cluster_every=1))[4:] == ["heap, CLUSTER every iteration"]
    assert len(arms(direct_io=True)) == 6


def test_only_arms_that_need_the_extension_go_without_it() -> None:
    found = arms("checkpoint", "reserve", "trigger", direct_io=True)
    for name, arm in found.items():
        assert bool(arm.extension) == name.startswith("patched")


@pytest.mark.parametrize(("iterations", "half"), [(3, 2), (10, 5)])
def test_checkpoints_end_after_half_of_the_iterations_but_not_before_two(
    iterations: int, half: int
) -> None:
    arm = arms("checkpoint", iterations=iterations)["heap, after a checkpoint"]
    assert arm.options == {"checkpoint": True, "iterations": half}


def test_the_post_claims_what_its_log_says() -> None:
    log = [("head", 1, 9.0), ("head", 2, 3.0), ("head", 10, 6.0)]
    log += [("patched", 1, 9.0), ("patched", 2, 3.0), ("patched", 10, 4.5)]
    times = [("select_range", *row) for row in log]
    times += [("insert", "head", i, 10.0) for i in (2, 10)]
    times += [("insert", "patched", 2, 30.0), ("insert", "patched", 10, 10.0)]
    post = pl.DataFrame(times, schema=["step", "arm", "iteration", "seconds"], orient="row")
    ratios = READING.published_ratios(post, patched="p")
    assert set(ratios["candidate"]) == {"p"}
    told = {"decay": 2, "own decay": 1.5, "patched insert": 2}
    told |= dict.fromkeys(["slower decay", "patched decay"], 0.75)
    assert READING.of_the_post(post, ratios, last=10) == told


def test_times_are_relative_to_both_early_iterations() -> None:
    times = [("heap", "insert", "duration_s", 0, i, t) for i, t in ((1, 8.0), (2, 2.0), (3, 4.0))]
    where = {"arm": "head", "step": "insert"}
    post = pl.DataFrame({**where, "iteration": [1, 2, 9], "seconds": [6.0, 3.0, 1.0]})
    samples = values(*times).with_columns(case=pl.lit(""))
    found = READING.relative_times(samples, post, last=3)
    second, first = (f"insert, relative to iteration {number}" for number in (2, 1))
    assert found.select("arm", "what", "iteration", "ratio").rows() == [
        *(("post, head", second, 2, 1), ("heap", second, 2, 1), ("heap", second, 3, 2)),
        *(("post, head", first, 1, 1), ("heap", first, 1, 1), ("post, head", first, 2, 0.5)),
        *(("heap", first, 2, 0.25), ("heap", first, 3, 0.5)),
    ]


def test_a_preparation_without_the_patch_has_no_ratio_of_ours() -> None:
    post = {"iteration": 0, "arm": ["head", "patched"], "step": "insert", "seconds": [2.0, 3.0]}
    ours = [(arm, "fill", "duration_s", 0, 0, t) for arm, t in (("heap", 4.0), ("p", 5.0))]
    both = READING.preparation(pl.DataFrame(post), values(*ours), patched="p")
    assert both.select("step", "post, ratio", "here, ratio").row(0) == ("fill", 1.5, 1.25)
    alone = READING.preparation(pl.DataFrame(post), values(ours[0]), patched="p")
    assert "post, ratio" in alone.columns
    assert "here, ratio" not in alone.columns


def test_pages_are_counted_by_arm_and_compared_with_what_is_expected() -> None:
    counted = ((0, 1, 48.0), (0, 2, 50.0), (1, 1, 60.0), (2, 1, 80.0), (1, 2, 100.0))
    samples = values(*(("heap", "select_range", "pages_touched", *row) for row in counted))
    assert READING.fresh_pages(samples) == 49
    measured = samples.filter(pl.col("block") > 0)
    touched = READING.pages_per_range(measured)
    assert touched.rows() == [("heap", 1, 70, 60, 80), ("heap", 2, 100, 100, 100)]
    expected = pl.DataFrame({"iteration": [0, 1, 2], "pages": [49.0, 50.0, 80.0]})
    assert READING.farthest_off(touched, expected) == pytest.approx(0.4)


def test_copies_are_compared_in_the_same_block_and_iteration() -> None:
    counts = []
    for iteration, (rows, pages) in enumerate([(100, 50), (110, 40)], 1):
        for arm, more in (("heap", 0), ("heap (again)", 1)):
            counts += [
                (arm, "select_all", "rows", 1, iteration, rows),
                (arm, "select_range", "rows", 1, iteration, 7 + 50 * more),
                (arm, "select_range", "pages_touched", 1, iteration, pages + more),
            ]
    assert READING.copies_apart(values(*counts), "heap (again)") == (0, pytest.approx(1 / 40))


def test_neighbours_cost_pages_at_the_end_and_what_later_inserts_take() -> None:
    rows = [("heap", "select_range", "pages_touched", 1, i, p) for i, p in ((2, 50.0), (3, 61.04))]
    rows += [("heap", "select_all", "heap_pages", 1, i, p) for i, p in ((2, 10.0), (3, 12.0))]
    for metric, value in (("buffers_read", 5.0), ("wal_bytes", 6.0), ("duration_s", 0.00744)):
        rows += [("heap", "insert", metric, 1, 1, 99.0), ("heap", "insert", metric, 1, 2, value)]
        rows.append(("heap", "delete", metric, 1, 2, 77.0))
    assert READING.cost_of_neighbours(values(*rows), ["heap"], last=3).row(0, named=True) == {
        **{"arm": "heap", "pages per range": 61, "pages of the table": 12},
        **{"buffers_read, insert": 5, "wal_bytes, insert": 6, "wal_fpi, insert": None},
        "ms, insert": 7.4,
    }


def test_an_old_disk_stands_beside_the_posts_first_and_last_iteration() -> None:
    rows = [("heap", "old disk", "disk_s", 1, 0, 0.5), ("heap", "insert", "disk_s", 1, 2, 9.0)]
    rows.append(("heap", "old disk", "read_bytes", 1, 0, 81920.0))
    samples = values(*rows).with_columns(case=pl.lit("insert"))
    post = [("head", i, "insert", s) for i, s in ((1, 19.0), (2, 20.0), (4, 21.0))]
    columns = ["arm", "iteration", "step", "seconds"]
    published = pl.DataFrame(post, schema=columns, orient="row")
    assert READING.on_old_disk(samples, published, last=4).row(0, named=True) == {
        **{"step": "insert", "arm": "heap", "s, disk of 2007": 0.5, "pages read": 10},
        **{"s, post, iteration 1": 19.0, "s, post, iteration 4": 21.0},
    }
