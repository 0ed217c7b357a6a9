"""The check of carry-over on the simulated machines: planted ones found, and false alarms.

The table in book/simulations.md: ``python -m book.bench.carryover``, some minutes.

With ``--steady RECORD`` it prints how many passes of a turn's work it takes until the baseline is
steady.  Measure once with many passes, ``pgstudies run STUDY -p among_others=8``.  What is printed
is how dear each pass is, relative to the undisturbed one of the same turns; the study's parameter
is then the first pass that is not dearer.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
import polars as pl

from book.bench.machines import ALL_AT_ONCE, GOOD, TWO_SPEEDS, Machine, after_others
from pgstudies.analysis.diagnostics import CARRY_OVER, diagnose
from pgstudies.analysis.effects import paired_effects
from pgstudies.analysis.pairing import block_values
from pgstudies.analysis.tables import with_interval
from pgstudies.records.reading import read_record
from pgstudies.records.samples import AMONG_OTHERS, UNDISTURBED

RUNS = 200
FEWEST_RUNS = 60  # where something is planted
COPIES = ("baseline", "baseline (again)")
SUFFERS = math.log(1.15)

DESIGNS = {
    "two servers": ({"candidate": 0.0}, 20),
    "five arms": ({f"arm {number}": 0.0 for number in range(1, 4)}, 20),
}


def alarm(values: pl.DataFrame) -> bool:
    """Whether the run is said to have carry-over."""
    found = diagnose(values, baseline=COPIES[0], by=())
    return CARRY_OVER in found["check"]


def share(
    machine: Machine,
    others: dict[str, float],
    rounds: int,
    runs: int,
    left: dict[str, float],
    **suffer: float,
) -> float:
    """The share of the runs in which the check fails; ``suffer`` says of whom the cost is."""
    alarms = 0
    for run in range(runs):
        rng = np.random.default_rng([run, 7])
        arms = dict.fromkeys([*COPIES, *others], suffer.get("all_arms", 0.0))
        last = list(others)[-1]
        arms[last] = suffer.get("last", arms[last])
        alarms += alarm(after_others(rng, machine, arms, left=left, rounds=rounds))
    return alarms / runs


def passes(samples: pl.DataFrame, baseline: str) -> pl.DataFrame:
    """Each pass of the baseline's turns against the undisturbed: step, case, metric, pass, ratio.

    ``pass`` counts from 1; ``ratio`` is text, with its interval over blocks.
    """
    at = ["block", "group", "turn", "case", "step", "iteration", "metric"]
    own = samples.filter(
        (pl.col("part") == UNDISTURBED).any().over("case", "step", "metric"),
        pl.col("metric").is_in(["cpu_s", "duration_s"]),
        arm=baseline,
    )
    number = pl.int_range(1, pl.len() + 1).over(*at, "part")
    first = pl.when(part=AMONG_OTHERS).then(number).otherwise(0)
    by = ["step", "case", "metric"]
    values = block_values(
        own.with_columns(number=first).drop("part"), by=[*by, "number"], statistic="median"
    )
    found = paired_effects(values, baseline=0, key="number", by=by)
    return found.select(*by, pl.col("candidate").alias("pass"), ratio=with_interval(3))


def simulate() -> None:
    machines = {"good": GOOD, "two speeds": TWO_SPEEDS, "all at once": ALL_AT_ONCE}
    for design, (others, rounds) in DESIGNS.items():
        for name, machine in machines.items():
            none = share(machine, others, rounds, RUNS, {})
            alike = share(machine, others, rounds, RUNS, {}, all_arms=SUFFERS)
            bound = share(machine, others, rounds, FEWEST_RUNS, {}, last=SUFFERS)
            one = "-"
            if len(others) > 1:
                only = dict.fromkeys([*COPIES, *others], 0.0) | {"arm 1": 1.0}
                found = share(machine, others, rounds, FEWEST_RUNS, only, last=math.log(1.3))
                one = f"{found:.2f}"
            print(
                f"| {design} | {name} | {none:.3f} | {alike:.3f} | {bound:.2f} | {one} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steady", metavar="RECORD", help="when is this record's baseline steady?")
    chosen = parser.parse_args()
    if chosen.steady is None:
        simulate()
        return
    record = read_record(chosen.steady)
    baseline = next(arm["name"] for arm in record.info["arms"] if arm["baseline"])
    with pl.Config(tbl_rows=-1, fmt_str_lengths=40):
        print(passes(record.measured, baseline))


if __name__ == "__main__":
    main()
