"""What ``workload.ipynb`` shows of a record: what its cells call, in their order."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

import pgstudies as pg
from pgapps.workload.scripts import Workload, read_workload

from .arms import EXAMPLE, OWN

if TYPE_CHECKING:
    from collections.abc import Sequence

COMPARED = ["duration_s", "cpu_s", "buffers_hit", "buffers_read", "wal_bytes"]
WALL = pl.col("metric") == "duration_s"


def workload_of(study: pg.Study, directory: str, mix: Sequence[str]) -> Workload:
    """The reader's workload, or the example; in a replay an empty one, as no record holds it."""
    if study.replays:
        return Workload(None, [], {}, [])
    return read_workload(directory or EXAMPLE, mix)


def scripts(workload: Workload) -> pl.DataFrame:
    """Each script with its file and the line on which it begins."""
    of = workload.scripts
    return pl.DataFrame(
        {
            "script": [script.name for script in of],
            "file": [script.file.name for script in of],
            "line": [script.line for script in of],
        }
    )


class Page:
    """The charts and tables of one record; a new record has a new page."""

    def __init__(self, study: pg.Study) -> None:
        self.record = study.record
        self.samples = study.samples.filter(pl.col("step") != "first turn")
        statement = pl.format("{}, {}", "step", "case")
        step = pl.when(pl.col("case") == "").then("step").otherwise(statement)
        self.compared = self.samples.with_columns(step=step)

    def loaded(self) -> pl.DataFrame:
        """What was loaded; how often a script runs in a turn stands there as well."""
        is_turn = pl.col("metric") == "transactions"
        loads = self.record.samples.filter(pl.col("step") == "load", ~is_turn)
        return loads.select("arm", "metric", "value", "unit")

    @cached_property
    def effects(self) -> pl.DataFrame:
        wanted = self.compared.filter(pl.col("metric").is_in(COMPARED))
        return pg.paired_effects(pg.round_values(wanted), baseline=OWN)

    def effect_chart(self) -> object:
        return pg.effect_chart(
            self.effects.filter(WALL),
            arms=self.record.arms,
            description="Time of a transaction of each script, relative to the first server's.",
        )

    def effect_table(self) -> pl.DataFrame:
        return pg.effect_table(self.effects, "step", "metric")

    def in_words(self) -> str:
        others = self.effects.filter(WALL, pl.col("candidate") != self.record.repeat)
        return pg.sentences(others, "{step}, {candidate}")

    def times(self) -> pl.DataFrame:
        """Of a transaction, by server."""
        in_order = self.compared.filter(WALL).group_by(
            "step", "arm", maintain_order=True
        )
        return in_order.agg(pg.spread("ms", 1000 * pl.col("value"))).sort("step", "arm")

    def answers(self) -> dict[str, bool]:
        """Answers that rest on counts."""
        turns = self.record.samples.filter(pl.col("metric") == "transactions")
        numbers = turns.group_by("case").agg(pl.col("value").n_unique())["value"]
        ran = self.samples.filter(WALL, pl.col("case") == "")
        runs = turns["case"].n_unique() * ran["arm"].n_unique()
        return {
            "every server runs each script as often in a turn": numbers.max() == 1,
            "every script ran on every server": (
                ran.select("arm", "step").n_unique() == runs
            ),
        }
