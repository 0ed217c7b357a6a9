"""The samples of a record: their columns, and how those of older formats are read."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import polars as pl

from .format import damaged, sha256

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

AMONG_OTHERS, UNDISTURBED = "among others", "undisturbed"
"""The parts of a turn: what is done while caches still hold what other arms' turns left there, and
what is done after that, as if the arm ran alone.  A turn without parts is all among others."""

SAMPLES_SCHEMA: dict[str, pl.DataType] = {
    "block": pl.Int32(),  # from 1; 0 is the preparation of a state, done once
    "group": pl.Int32(),  # of arms that were up together, from 1
    "turn": pl.Int32(),  # of the arm in its block, from 1
    "position": pl.Int32(),  # place among the arms that took this turn, from 1
    "part": pl.String(),  # of the turn: AMONG_OTHERS or UNDISTURBED
    "arm": pl.String(),
    "case": pl.String(),
    "step": pl.String(),
    "iteration": pl.Int32(),
    "metric": pl.String(),
    "value": pl.Float64(),
    "unit": pl.String(),
    "started_at": pl.Datetime("us", "UTC"),
}
"""The columns of samples, one row per measured value."""

_UNITS_OF_OLD = {"blocks": "pages", "block number": "page number"}
"""Units of formats 1 and 2 by their present names."""


def samples_in(content: bytes, checksum: str | None, name: Path | str) -> pl.DataFrame:
    """The samples in the contents of a Parquet file, with the columns of ``SAMPLES_SCHEMA``.

    ``checksum`` is its SHA-256 in record.json, None for a record of format 1.  Raises StudyError,
    which calls the file ``name``, if it was changed or is damaged.
    """
    if checksum is not None and sha256(content) != checksum:
        raise damaged(name, "its SHA-256 is not the one in record.json")
    try:
        samples = pl.read_parquet(io.BytesIO(content))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise damaged(name, (str(error).splitlines() or ["it is not Parquet"])[0]) from None
    samples = _with_places(samples)
    if samples.schema != SAMPLES_SCHEMA:
        raise damaged(name, "its columns are not those of samples")
    return samples


def _with_places(samples: pl.DataFrame) -> pl.DataFrame:
    """The samples, with the columns that records lack from before turns, or before their parts."""
    place: dict[str, Any] = dict.fromkeys(["group", "turn"], pl.lit(1, pl.Int32()))
    place["part"] = pl.lit(AMONG_OTHERS)
    for lacking in (place, {"part": place["part"]}):
        if samples.columns == [name for name in SAMPLES_SCHEMA if name not in lacking]:
            return samples.with_columns(**lacking).select(list(SAMPLES_SCHEMA))
    return samples


def completed(samples: pl.DataFrame, copies: Mapping[str, str | None]) -> pl.DataFrame:
    """The samples of a record as ``Record`` has them, with copy_of, by ``copies``, and after."""
    copy_of = pl.col("arm").replace_strict(copies, default=None, return_dtype=pl.String())
    samples = samples.with_columns(pl.col("unit").replace(_UNITS_OF_OLD), copy_of=copy_of)
    at = ["block", "group", "turn", "position"]
    turns = samples.filter(pl.col("block") > 0).select(*at, "arm").unique().sort(at)
    last = pl.col("position").max().over("block", "group", "turn")
    before = (
        pl.col("turn", "position", "arm").shift(1).over("block", "group").name.prefix("before_")
    )
    turn, position = pl.col("before_turn"), pl.col("before_position")
    in_round = (turn == pl.col("turn")) & (position == pl.col("position") - 1)
    # An arm that ended, or left no sample, may have had the last turn of the round before.
    in_last = (pl.col("position") == 1) & (turn == pl.col("turn") - 1) & (position >= last)
    after = turns.with_columns(before).select(
        *at, "arm", after=pl.when(in_round | in_last).then("before_arm")
    )
    return samples.join(after, on=[*at, "arm"], how="left", maintain_order="left")
