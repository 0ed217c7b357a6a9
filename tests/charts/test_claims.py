from __future__ import annotations

import pytest

from pgstudies.charts.claims import distance


@pytest.mark.parametrize(
    ("published", "interval", "said"),
    [
        (3.0, (9.0, 8.0, 10.0), "3.0 times beyond"),
        (3.0, (5.0, 4.4, 6.0), None),  # a bound of the interval is near
        (100.0, (50.0, 48.0, 52.0), "2.0 times short"),
        (0.4, (0.1, 0.09, 0.11), "4.0 times beyond"),
        (0.1, (0.4, 0.38, 0.42), "4.0 times short"),
        (1.04, (1.22, 1.17, 1.3), "5.1 times the effect"),
        (0.96, (0.9, 0.88, 0.92), "2.6 times the effect"),
        (1.04, (1.22, 1.06, 1.4), None),
        (1.0, (4.0, 3.9, 4.1), None),
        (3.0, (0.3, 0.2, 0.4), None),  # reversed, which its verdict says
        (None, (4.0, 3.9, 4.1), None),
        (3.0, (4.0, None, None), None),
        (3.0, (None, None, None), None),
    ],
)
def test_a_verdict_says_how_far_its_ratio_is_from_the_published(
    published: float | None, interval: tuple[float | None, ...], said: str | None
) -> None:
    row = dict(zip(("ratio", "low", "high"), interval, strict=True))
    assert distance({"published_ratio": published, **row}) == said
