from __future__ import annotations

import pytest

from pgstudies.analysis.agreement import agreement
from pgstudies.charts.claims import distance


@pytest.mark.parametrize(
    ("published", "interval", "said"),
    [
        (3.0, (9.0, 8.0, 10.0), "stronger"),
        (3.0, (11.0, 9.5, 12.0), None),  # much stronger, which its verdict says
        (3.0, (5.0, 4.4, 6.0), None),  # a bound of the interval is near
        (100.0, (50.0, 48.0, 52.0), "weaker"),
        (0.4, (0.1, 0.09, 0.11), None),
        (0.1, (0.4, 0.38, 0.42), None),  # so does this one
        (1.04, (1.22, 1.17, 1.3), None),
        (0.96, (0.9, 0.88, 0.92), None),
        (1.04, (1.22, 1.06, 1.4), None),
        (1.0, (4.0, 3.9, 4.1), None),
        (3.0, (0.3, 0.2, 0.4), None),  # reversed, which its verdict says
        (None, (4.0, 3.9, 4.1), None),
        (3.0, (4.0, None, None), None),
        (3.0, (None, None, None), None),
    ],
)
def test_a_verdict_says_how_far_its_ratio_is_from_the_published(
    published: float | None,
    interval: tuple[float | None, float | None, float | None],
    said: str | None,
) -> None:
    row = dict(zip(("ratio", "low", "high"), interval, strict=True))
    verdict = agreement(published or 1, *interval, 0.02)
    more = {"kind": "direction", "verdict": verdict, "metric": "cpu_s"}
    assert distance({"published_ratio": published, **row, **more}) == said


@pytest.mark.parametrize(
    ("verdict", "metric", "ratio", "said"),
    [
        ("gone", "cpu_s", 0.859, "no longer alike: 14 % faster now"),
        ("gone", "duration_s", 1.5, "no longer alike: 50 % slower now"),
        ("gone", "buffers_read", 0.5, "no longer alike: 50 % fewer now"),
        ("holds", "cpu_s", 1.01, None),
    ],
)
def test_what_is_no_longer_alike_is_told_with_its_direction(
    verdict: str, metric: str, ratio: float, said: str | None
) -> None:
    row = {"published_ratio": 0.997, "ratio": ratio, "low": ratio, "high": ratio}
    assert distance({**row, "kind": "alike", "verdict": verdict, "metric": metric}) == said
