"""What state of the cache a statement met, by the bytes its device read."""

from __future__ import annotations

import polars as pl

from pgstudies.measuring.cold import cache_state


def test_a_cache_is_as_cold_as_the_bytes_read_and_unknown_where_none_were_counted() -> None:
    counted = {"warm": (10, 0), "lukewarm": (10, 73_000), "cold": (10, 74_000), "unknown": (10,)}
    metrics = ("buffers_read", "read_bytes")
    rows = [
        (1, arm, "", "scan", 0, metric, float(value))
        for arm, values in counted.items()
        for metric, value in zip(metrics, values, strict=False)
    ]
    columns = ["block", "arm", "case", "step", "iteration", "metric", "value"]
    found = cache_state(pl.DataFrame(rows, schema=columns, orient="row"))
    assert dict(found.select("arm", "state").rows()) == {
        state: state for state in ("warm", "lukewarm", "cold")
    }
