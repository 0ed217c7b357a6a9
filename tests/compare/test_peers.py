"""The pages say of other tools, and of equal programs, what the kept answers and intervals say."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest

from pgapps.compare.design import CANDIDATE, COPY
from pgservers.paths import BOOK, ROOT

ANSWERS = pl.read_csv(ROOT / "data" / "peers.csv")

EQUALS = pl.read_csv(ROOT / "data" / "equals.csv")


@pytest.mark.parametrize("tool", ANSWERS["tool"].unique(maintain_order=True))
def test_the_page_counts_the_kept_answers(tool: str) -> None:
    lines = (BOOK / "compare.md").read_text(encoding="utf-8").splitlines()
    _, _, *cells = next(line for line in lines if line.startswith(f"| {tool} |")).split("|")
    answers = ANSWERS.filter(tool=tool)
    wrong = [answers.filter(~pl.col("right"), truth=truth).height for truth in ("same", "slower")]
    asked = [answers.filter(truth=truth).height for truth in ("same", "slower")]
    half_width = 100 * float(np.median((answers["high"] / answers["low"]).sqrt() - 1))
    spread = 100 * float(np.std(answers.filter(truth="same")["ratio"].log().to_numpy(), ddof=1))
    told = [f"{w} of {a}" for w, a in zip(wrong, asked, strict=True)]
    told += [f"{half_width:.1f} %", f"{spread:.1f} %"]
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
            mean = math.exp(float(np.mean(of["ratio"].log().to_numpy())))
            told.append(f"{mean:.3f}, {misses} of {of.height}")
        half_width = 100 * float(np.median((found["high"] / found["low"]).sqrt() - 1))
        line = " | ".join([*told, f"{half_width:.1f} %"])
        assert f"| {line} |\n" in (BOOK / "simulations.md").read_text(encoding="utf-8")


def test_the_pages_say_what_the_kept_figures_come_to() -> None:
    compare = ANSWERS.filter(tool="compare", truth="slower")["ratio"].log().to_numpy()
    longer = f"takes {100 * math.expm1(np.mean(compare)):.1f} % longer (`compare`, mean)"
    assert longer in (BOOK / "compare.md").read_text(encoding="utf-8")
    updates = EQUALS.filter(directory="every-side", step="updates")
    second, candidate = (
        float(np.mean(updates.filter(side=side)["ratio"].log().to_numpy()))
        for side in (COPY, CANDIDATE)
    )
    taken = f"takes {math.exp(candidate - second / 2):.3f} times as long"
    assert taken in (BOOK / "simulations.md").read_text(encoding="utf-8")
