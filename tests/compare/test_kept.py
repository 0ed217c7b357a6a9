"""The comparisons that the project keeps can be judged, and what they found is beyond layout."""

from __future__ import annotations

import polars as pl

from pgapps.compare.judging.kept import MARGIN, kept_effects
from pgservers import paths


def test_what_a_kept_comparison_found_lies_on_one_side() -> None:
    found = kept_effects()
    assert found.height
    assert found.filter(pl.col("low") <= 1, pl.col("high") >= 1).is_empty()
    assert found.filter(pl.col("ratio").log().abs() <= MARGIN).is_empty()
    assert found["blocks"].min() >= 6  # type: ignore[operator]


def test_19_sets_all_visible_bits_where_it_reads() -> None:
    """Reading all rows pays for it, and VACUUM has less to do: by counts, and so by time."""
    found = kept_effects().filter(study="cluster_order", arm="heap")
    (samples,) = (paths.COMPARISONS / "compare_cluster_order").glob("*/samples.parquet")
    read = pl.read_parquet(samples).filter(step="select_all")
    for metric, least in (("wal_bytes", 0.0), ("buffers_dirtied", 1000.0)):
        counts = read.filter(metric=metric).group_by("arm").agg(pl.col("value").median())
        of = dict(counts.rows())
        assert of["heap, candidate"] > of["heap, baseline"] + least, metric
    ratios = dict(found.select("step", "ratio").rows())
    assert ratios["select_all"] > 1 > ratios["vacuum"]
