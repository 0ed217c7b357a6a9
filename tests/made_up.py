"""Made-up measurements: samples of known truth, and records that hold them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from pgapps.scorecard.scorecard import SCHEMA
from pgstudies.charts.outcomes import OUTCOMES
from pgstudies.records.samples import AMONG_OTHERS, SAMPLES_SCHEMA
from pgstudies.records.writing import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pgstudies.measuring.trial import Trial

ROOMS = Path(__file__).parent / "rooms"
"""Studies of the tests' own."""


def copied_rooms(place: Path, *names: str) -> Path:
    """The directory of copies of some of ``ROOMS``, below ``place``."""
    for name in names:
        shutil.copytree(ROOMS / name, place / "notebooks" / name)
    return place / "notebooks"


SWEPT_CLAIM = """
anchor = "claims"

[[claim]]
id = "twice"
name = "twice in short"
text = "Two are <twice> as many as one."
source = "arithmetic"
kind = "count"
direction = "more"
published_ratio = 2.0
judged_by = "rows"
comparison = { candidate = "two" }
"""
"""A file of claims with one claim of the study ``swept``."""

SWEPT = {"server": "embedded", "pause_s": 0.0, "twice": True, "sizes": [1, 2], "seed": 1}
"""The parameters of the study ``swept``, but for its blocks."""


def samples(
    arms: Mapping[str, Sequence[float | None]],
    unit: str = "s",
    *,
    turns: bool = False,
    copy_of: Mapping[str, str] | None = None,
    **same: Any,
) -> pl.DataFrame:
    """One value of every arm in every block, from block 1 on, as a record holds them.

    Where a value is None, the block lacks it.  Arms run in the order given, with ``turns`` in the
    other one in every second block.  ``copy_of`` has the arms that are second copies, and of which.
    ``same`` is what all rows share: step, metric, iteration.
    """
    rows = [
        (block, len(arms) + 1 - place if turns and block % 2 == 0 else place, arm, value)
        for place, (arm, values) in enumerate(arms.items(), start=1)
        for block, value in enumerate(values, start=1)
        if value is not None
    ]
    schema = {name: SAMPLES_SCHEMA[name] for name in ("block", "position", "arm", "value")}
    told = {"group": 1, "turn": 1, "part": AMONG_OTHERS, "case": "", "step": "", "iteration": None}
    told |= {"metric": "duration_s", "unit": unit} | same
    frame = pl.DataFrame(rows, schema=schema, orient="row").with_columns(
        pl.lit(value, SAMPLES_SCHEMA.get(name)).alias(name)
        for name, value in (told | {"started_at": None}).items()
    )
    copied = pl.col("arm").replace_strict(copy_of or {}, default=None, return_dtype=pl.String())
    frame = frame.with_columns(copy_of=copied)
    return frame.select(*SAMPLES_SCHEMA, "copy_of", *(n for n in told if n not in SAMPLES_SCHEMA))


def rows_of(trial: Trial) -> list[dict[str, Any]]:
    """The samples of a trial so far, by the names of their columns."""
    return [dict(zip(SAMPLES_SCHEMA, row, strict=True)) for row in trial.rows]


def info(study: str, **told: Any) -> Any:
    """What stands in record.json, of a complete run; ``told`` changes or adds to it.

    It has no type, since tests also make records that cannot be.
    """
    known = {
        "study": study,
        "status": "complete",
        "started_at": "2026-11-21T12:00:00+00:00",
        "profile": "quick",
        "parameters": {},
        "arms": [],
        "blocks": 6,
        "gate": [],
        "not_compared": [],
        "left_out": [],
        "timeline": [],
        "server": {"version_text": "18.6"},
        "host": {"hostname": "db1"},
    }
    return known | told


def timeline(*blocks: int) -> list[dict[str, Any]]:
    """The timeline of a record in which one arm ran once in each of these blocks."""
    at = "2026-11-21T04:31:00+00:00"
    times = {"position": 1, "arm": "one", "started_at": at, "finished_at": at}
    return [{"block": block} | times for block in blocks]


def arms_of(*names: str, **each: Any) -> list[dict[str, Any]]:
    """Arms as record.json lists them; the first is the baseline."""
    common = {"description": "", "copy_of": None, "server": None, "not_run": None}
    return [{"name": name, "baseline": name == names[0]} | common | each for name in names]


def swept_info(host: str, blocks: int = 6) -> Any:
    """What record.json of a record of the study ``swept`` has, without its checksums."""
    return info(
        "swept",
        parameters=SWEPT | {"blocks": blocks},
        arms=arms_of("one", "two"),
        blocks=blocks,
        host={"hostname": host},
    )


def swept_record(
    base: Path,
    host: str,
    *,
    two: float | Sequence[float] = 2.0,
    blocks: int = 6,
    name: str = "",
    cores: int | None = None,
    part: str = AMONG_OTHERS,
    **told: Any,
) -> Path:
    """Write a record of the study ``swept``, in which arm one counts 1 and arm two ``two``.

    ``two`` is one number for all blocks or one for each; ``name`` is the directory below ``base``.
    ``cores`` is how many the run was allowed; None: it does not say.  ``part`` is that of all
    samples.
    """
    counts = [float(two)] * blocks if isinstance(two, float | int) else list(two)
    same: dict[str, Any] = {"step": "count", "metric": "rows", "part": part}
    counted = samples({"one": [1.0] * len(counts), "two": counts}, unit="rows", **same)
    path = base / (name or host)
    info = swept_info(host, len(counts))
    if cores is not None:
        info["host"] |= {"allowed_cores": list(range(cores))}
    write_whole(path, info | told, counted)
    return path


def cards(study: str) -> pl.DataFrame:
    """A scorecard of every outcome, with long words and letters that HTML needs escaped."""
    verdicts = [*list(OUTCOMES)[:6], "inconclusive: 12 more blocks"]
    verdicts += ["not judged: the plan is another", "not tested: <no> compiler"]
    rows: list[dict[str, Any]] = [
        {
            **{"study": study, "claim": f"claim {n}", "name": f"claim {n} of <many>"},
            "text": "A claim of <many> words & more, as long as claims are said to become. " * 2,
            **{"source": "", "kind": "direction", "holds_when": 'It "holds".', "metric": "cpu_s"},
            **{"published_ratio": 12345.678, "ratio": 0.00123456, "low": 0.0009, "high": 0.0021},
            **{"beside": 0.002, "blocks": 6 + n, "verdict": verdict},
            **{"server": "9.6.24" if n else "18.6", "release": "9.6" if n else "18"},
            **{"host": "a-host-with-a-long-name.example.org", "date": "2026-11-21 12:00"},
            **{"profile": "standard", "record": "r", "machine": "m", "link": "swept.html#claims"},
            **{"current": True, "reference": False},
        }
        for n, verdict in enumerate(verdicts)
    ]
    rows[0] |= {"runs": 3}
    rows[-1] |= dict.fromkeys(["ratio", "low", "high", "blocks"])
    return pl.DataFrame(rows, schema=SCHEMA)
