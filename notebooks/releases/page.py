"""What ``releases.ipynb`` shows of a record: what its cells call, in their order."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import polars as pl
from IPython.display import Markdown

import pgstudies as pg
from pgapps.counting.by_function import functions_counted
from pgapps.scorecard.advice import counted_ahead, counted_between, counted_builds
from pgservers.shown import markdown
from pgstudies.records.counts import counted_since, units_counted

from . import reading


class Page:
    """The chart and tables of one record; a new record has a new page.

    Lists are of what is there to be shown, and may be empty.
    """

    def __init__(self, study: pg.Study) -> None:
        self.record = study.record
        arms = self.record.info["arms"]
        self.names = [arm["name"] for arm in arms if not arm["copy_of"]]
        told = {arm["name"]: arm["options"].get("built") for arm in arms}
        self.built = self.record.built_with | {n: b for n, b in told.items() if b}
        self.counts = units_counted(self.record)
        self.functions = functions_counted(self.record)
        self.shown = reading.by_transactions(self.counts, self.names)

    @cached_property
    def differing(self) -> pl.DataFrame:
        return reading.differing(self.counts, self.names[0], self.record.repeat)

    def exactness(self) -> pl.DataFrame:
        """How much two counts of a unit differ."""
        return self.differing.group_by("pairs", maintain_order=True).agg(
            counts=pl.len(),
            median_percent=100 * pl.col("off").median(),
            most_percent=100 * pl.col("off").max(),
            inexact=(pl.col("off") > 0.001).sum(),
        )

    def by_release(self) -> list[object]:
        if self.shown.is_empty():
            return []
        chart = pg.series_chart(
            self.shown.rename({"arm": "release"}),
            x="release",
            y="thousands",
            y_title="thousands of instructions",
            color="transactions",
            step="unit",
            description="Instructions of one unit of work, release by release, "
            "by open transactions and subtransactions in each.",
        )
        return [chart]

    def table(self) -> list[pl.DataFrame]:
        """The same as a table, and how each release was built."""
        rounded = self.shown.with_columns(pl.col("thousands").round(2))
        built = [self.built[name] for name in self.names]
        return [
            *self._of_arms(rounded, "thousands"),
            pl.DataFrame({"release": self.names, "built with": built}),
        ]

    @cached_property
    def growth(self) -> pl.DataFrame:
        return reading.growth_of(self.shown)

    def growth_table(self) -> list[pl.DataFrame]:
        return self._of_arms(self.growth, "growth")

    def _of_arms(self, shown: pl.DataFrame, value: str) -> list[pl.DataFrame]:
        return [reading.of_arms(shown, self.names, value)] if shown.height else []

    def counted_later(self) -> pl.DataFrame:
        return reading.counted_later(self.counts, counted_since(self.record))

    def ahead(self) -> list[object]:
        """The units that change with a release after these, and how both were built."""
        releases = [name for name in self.names if name[:1].isdigit()]
        pair = counted_ahead(releases[-1]) if releases else None
        if pair is None:
            return []
        before, after = pair
        changed = counted_between(before, after).select(
            "unit",
            transactions=reading.held(),
            **{
                before: pl.col("before").round(0),
                after: pl.col("after").round(0),
                "ratio": pl.col("ratio").round(3),
            },
        )
        return [changed, Markdown(markdown(counted_builds(before, after)))]  # type: ignore[no-untyped-call]

    @cached_property
    def steps(self) -> list[dict[str, Any]]:
        return reading.steps(self.counts, self.functions, self.names, self.built)

    def step_tables(self) -> list[pl.DataFrame]:
        return [pl.DataFrame(self.steps), reading.largest(self.steps)]

    def largest_in_words(self) -> object:
        return reading.largest_in_words(self.steps)

    def heaviest(self) -> pl.DataFrame:
        return reading.heaviest(self.counts, self.functions, self.names)

    def answers(self) -> dict[str, bool | None]:
        """Answers that rest on counts; None where nothing was counted."""
        off, growth = self.differing["off"], self.growth["growth"]
        some = self.counts["instructions"] > 0
        return {
            "no two counts differ by 0.5 %": _all(off < 0.005),
            "every unit that was counted executes something": _all(some),
            "open transactions never make a unit cheaper, within 0.1 %": _all(
                growth > 0.999
            ),
        }


def _all(answers: pl.Series) -> bool | None:
    return answers.all() if answers.len() else None
