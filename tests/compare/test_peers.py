"""The page on comparisons says of other tools what the kept answers say."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from pgservers.paths import BOOK, ROOT

ANSWERS = pl.read_csv(ROOT / "data" / "peers.csv")


@pytest.mark.parametrize("tool", ANSWERS["tool"].unique(maintain_order=True))
def test_the_page_counts_the_kept_answers(tool: str) -> None:
    lines = (BOOK / "compare.md").read_text(encoding="utf-8").splitlines()
    _, _, *cells = next(line for line in lines if line.startswith(f"| {tool} |")).split("|")
    answers = ANSWERS.filter(tool=tool)
    wrong = [answers.filter(~pl.col("right"), truth=truth).height for truth in ("same", "slower")]
    asked = [answers.filter(truth=truth).height for truth in ("same", "slower")]
    half_width = 100 * float(np.median((answers["high"] / answers["low"]).sqrt() - 1))
    told = [f"{w} of {a}" for w, a in zip(wrong, asked, strict=True)]
    assert [cell.strip() for cell in cells[:3]] == [*told, f"{half_width:.1f} %"]
