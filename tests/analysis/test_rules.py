"""Verdicts stay what they are as long as nobody raises the version of the rules."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import polars as pl

from pgservers.paths import REFERENCE_RECORDS
from pgstudies.analysis.agreement import RULES_VERSION, Claim, judge
from pgstudies.analysis.effects import gated_by, paired_effects
from pgstudies.analysis.pairing import block_values, round_values
from pgstudies.records.reading import read_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

RECORDS = (
    "sync_scans/20261123T013549Z-vm-4699ae",  # of format 2, six blocks
    "hash_index/20261124T131027Z-vm-067d44",  # of format 3, counts and times
    "cluster_order/20261125T184224Z-vm-e7f57e",  # of format 4, turns in parts
)
BY = ["case", "step", "metric"]
OF_COMMITS = ["commit", "stood_in", "stood_in_low", "stood_in_high", "stood_in_verdict"]
EVERY = 9
"""Of the steps, cases and metrics of a record, every ninth."""

DIGESTS = {1: "383d7360d6abc56e", 2: "750459f8e5f6740e", 3: "999be4f50a7dd46c"}
DIGESTS |= {4: "ed26693d67ccc18f"}  # without verdicts by a rule of before
"""What ``digest`` was under each version of the rules.  Never change an entry: raise the version,
add its digest, and run `make verdicts`."""


def claims_on(effects: pl.DataFrame) -> Iterator[Claim]:
    """A claim of every kind on each comparison: too little, the same, and too much."""
    for number, row in enumerate(effects.select(*BY, "candidate", "ratio").iter_rows(named=True)):
        place = {name: row[name] for name in (*BY, "candidate") if name != "metric"}
        ratio = row["ratio"] or 1.5
        for times, kind in ((0.25, "direction"), (1.0, "count"), (4.0, "threshold"), (1, "alike")):
            published = ratio**times if kind != "alike" else 1.0
            direction: Any = "alike" if kind == "alike" else "more" if published > 1 else "fewer"
            yield Claim(
                f"{number} {kind}",
                *("", ""),
                direction,
                published,
                row["metric"],
                place,
                kind=kind,  # type: ignore[arg-type]
                threshold=published if kind == "threshold" else None,
            )


def judged(name: str) -> pl.DataFrame:
    """The verdicts on claims about a committed record, a family of all that it compares."""
    record = read_record(REFERENCE_RECORDS / name)
    baseline = next(arm["name"] for arm in record.info["arms"] if not arm["not_run"])
    some = record.measured.select(BY).unique(maintain_order=True).gather_every(EVERY)
    samples = record.measured.join(some, on=BY, how="semi", maintain_order="left")
    parts = [
        paired_effects(values, baseline=baseline, by=BY)
        for is_time, of in ((True, round_values), (False, block_values))
        for values in [of(samples.filter((pl.col("unit") == "s") == is_time), by=BY)]
        if baseline in values["arm"]
    ]
    effects = pl.concat(parts)
    is_copy = pl.col("candidate").is_in(record.arms.drop_nulls("copy_of")["name"].implode())
    effects = gated_by(effects.filter(~is_copy), effects.filter(is_copy))
    return judge(list(claims_on(effects)), effects)


def digest() -> str:
    """A digest of the verdicts, and of their figures to six digits."""
    told = [
        [f"{value:.6g}" if isinstance(value, float) else value for value in row]
        for name in RECORDS
        for row in judged(name).drop(OF_COMMITS).iter_rows()
    ]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def test_verdicts_change_with_the_version_of_the_rules_alone() -> None:
    assert digest() == DIGESTS.get(RULES_VERSION), (
        "verdicts are not what they were: if that is meant, raise RULES_VERSION in "
        "analysis/agreement.py, add the digest here and run `make verdicts`"
    )


def test_a_changed_rule_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgstudies.analysis.agreement.FAMILY", ("direction",))
    assert digest() != DIGESTS[max(DIGESTS)]
