"""What the project keeps: comparisons that can be judged, and the figures that pages quote."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
import pytest

from pgapps.compare.design import CANDIDATE, COPY
from pgapps.compare.judging.kept import MARGIN, kept_effects
from pgservers import paths
from pgservers.paths import BOOK, ROOT

ANSWERS = pl.read_csv(ROOT / "data" / "peers.csv")

EQUALS = pl.read_csv(ROOT / "data" / "equals.csv")


def page(name: str) -> str:
    return (BOOK / name).read_text(encoding="utf-8")


def mean_log(ratios: pl.DataFrame) -> float:
    return float(np.mean(ratios["ratio"].log().to_numpy()))


def half_width(intervals: pl.DataFrame) -> str:
    """The median of the intervals' half-widths."""
    return f"{100 * float(np.median((intervals['high'] / intervals['low']).sqrt() - 1)):.1f} %"


@pytest.fixture(scope="module")
def found() -> pl.DataFrame:
    return kept_effects()


def test_what_a_kept_comparison_found_lies_on_one_side(found: pl.DataFrame) -> None:
    assert found.height
    assert found.filter(pl.col("low") <= 1, pl.col("high") >= 1).is_empty()
    assert found.filter(pl.col("ratio").log().abs() <= MARGIN).is_empty()
    assert found["blocks"].min() >= 6  # type: ignore[operator]


def test_19_sets_all_visible_bits_where_it_reads(found: pl.DataFrame) -> None:
    """Reading all rows pays for it, and VACUUM has less to do: by counts, and so by time."""
    found = found.filter(study="cluster_order", arm="heap")
    (samples,) = (paths.COMPARISONS / "compare_cluster_order").glob("*/samples.parquet")
    read = pl.read_parquet(samples).filter(step="select_all")
    for metric, least in (("wal_bytes", 0.0), ("buffers_dirtied", 1000.0)):
        counts = read.filter(metric=metric).group_by("arm").agg(pl.col("value").median())
        of = dict(counts.rows())
        assert of["heap, candidate"] > of["heap, baseline"] + least, metric
    ratios = dict(found.select("step", "ratio").rows())
    assert ratios["select_all"] > 1 > ratios["vacuum"]


@pytest.mark.parametrize("tool", ANSWERS["tool"].unique(maintain_order=True))
def test_the_page_counts_the_kept_answers(tool: str) -> None:
    lines = page("compare.md").splitlines()
    _, _, *cells = next(line for line in lines if line.startswith(f"| {tool} |")).split("|")
    answers = ANSWERS.filter(tool=tool)
    told = []
    for truth in ("same", "slower"):
        asked = answers.filter(truth=truth)
        told.append(f"{asked.filter(~pl.col('right')).height} of {asked.height}")
    spread = 100 * float(np.std(answers.filter(truth="same")["ratio"].log().to_numpy(), ddof=1))
    told += [half_width(answers), f"{spread:.1f} %"]
    assert [cell.strip() for cell in cells[:4]] == told


@pytest.mark.parametrize("copied", ["the second copy alone", "every side"])
def test_the_page_counts_the_kept_intervals_of_equal_programs(copied: str) -> None:
    kept = EQUALS.filter(directory=copied.replace(" ", "-"))
    for step in ("lookups", "scans", "updates"):
        found = kept.filter(step=step)
        told = [copied, step]
        for side in (COPY, CANDIDATE):
            of = found.filter(side=side)
            misses = of.filter((pl.col("low") > 1) | (pl.col("high") < 1)).height
            told.append(f"{math.exp(mean_log(of)):.3f}, {misses} of {of.height}")
        assert f"| {' | '.join([*told, half_width(found)])} |\n" in page("simulations.md")


def test_the_pages_say_what_the_kept_figures_come_to() -> None:
    longer = mean_log(ANSWERS.filter(tool="compare", truth="slower"))
    said = f"takes {100 * math.expm1(longer):.1f} % longer (`compare`, mean)"
    assert said in page("compare.md")
    updates = EQUALS.filter(directory="every-side", step="updates")
    second, candidate = (mean_log(updates.filter(side=side)) for side in (COPY, CANDIDATE))
    taken = f"takes {math.exp(candidate - second / 2):.3f} times as long"
    assert taken in page("simulations.md")


PATCHES = pl.read_csv(ROOT / "data/patches/answers.csv")


@pytest.mark.parametrize("row", PATCHES.filter(pl.col("script") != "all rows").to_dicts())
def test_the_page_has_the_kept_answers_on_patches(row: dict[str, Any]) -> None:
    directory = ROOT / "data" / "patches" / row["workload"]
    scripts = "".join(file.read_text(encoding="utf-8") for file in directory.glob("*.sql"))
    assert f"-- name: {row['script']}\n" in scripts
    ratio, low, high = (f"{row[name]:.3f}" for name in ("ratio", "low", "high"))
    is_open = row["low"] < 1 < row["high"]  # an open control has its ratio alone
    assert (ratio if is_open else f"{ratio} ({low}–{high})") in page("compare.md")
