"""Values per place: what every effect and every table of metrics is made of."""

from __future__ import annotations

import polars as pl

from pgstudies.analysis.pairing import wide

SAMPLES = pl.DataFrame(
    [
        ("hash", "cold", "reads", 3.0),
        ("btree", "cold", "reads", 4.0),
        ("hash", "cold", "reads", 8.0),
        ("hash", "cold", "reads", 4.0),
        ("hash", "cold", "hits", 1.0),
        ("btree", "warm", "hits", 0.0),
        ("hash", "warm", "seconds", 7.0),
    ],
    schema=["arm", "step", "metric", "value"],
    orient="row",
)


def test_each_place_has_a_row_in_the_order_of_the_samples_and_each_metric_a_column() -> None:
    found = wide(SAMPLES, ["hits", "reads"], ["arm", "step"])
    assert found.columns == ["arm", "step", "hits", "reads"]
    assert found.rows() == [
        ("hash", "cold", 1.0, 4.0),
        ("btree", "cold", None, 4.0),
        ("btree", "warm", 0.0, None),
    ]


def test_the_statistic_is_that_of_a_places_values_and_none_of_no_values() -> None:
    assert wide(SAMPLES, ["reads"], ["step"], statistic="mean").rows() == [("cold", 4.75)]
    assert wide(SAMPLES, ["reads"], ["step"], statistic="min").rows() == [("cold", 3.0)]
    sums = wide(SAMPLES, ["hits", "reads"], ["arm"], statistic="sum")
    assert sums.rows() == [("hash", 1.0, 15.0), ("btree", 0.0, 4.0)]
    sums = wide(SAMPLES, ["seconds", "hits"], ["step"], statistic="sum")
    assert sums["seconds"].to_list() == [None, 7.0]


def test_a_metric_that_was_not_measured_has_a_column_of_nulls() -> None:
    assert wide(SAMPLES, ["hits", "wal_bytes"], ["arm"])["wal_bytes"].to_list() == [None, None]
    assert wide(SAMPLES.clear(), ["hits"], ["arm"]).columns == ["arm", "hits"]
