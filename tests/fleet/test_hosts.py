"""What several hosts say of a study: which records count, and what they come to together."""

from __future__ import annotations

import math
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest

from pgapps.fleet.hosts import by_host, host_records, judged_by_host, lines_of_hosts, pooled
from pgapps.markup import save
from pgservers import paths
from pgservers.errors import SpaceError, StudyError
from pgstudies import effect_chart
from pgstudies.records.reading import read_record
from pgstudies.records.writing import write_whole
from tests.made_up import ROOMS, SWEPT, swept_record

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def records(tmp_path: Path) -> Callable[..., Path]:
    """Write a record of a host; see ``swept_record``."""
    return partial(swept_record, tmp_path)


def test_which_records_count(records: Callable[..., Path], tmp_path: Path) -> None:
    newest = records("b", name="b-2026-02", gate=[gate("busy")] * 2)
    older = records("b", name="b-2026-01")
    short = records("c", name="a-short", blocks=3, parameters=SWEPT | {"blocks": 6})
    edit(short, blocks=6)
    future = records("d", name="a-future")
    (future / "record.json").write_text('{"format_version": 99}')
    other = records("e", name="a-other", parameters=SWEPT | {"pause_s": 1.0})
    damaged = records("f", name="a-damaged")
    (damaged / "samples.parquet").write_bytes(b"PAR1, as it were")
    given = [newest, older, short, future, other, damaged, tmp_path / "a-nothing"]
    table = host_records(given)
    why = {Path(path).name: reason for path, reason in table.select("path", "left_out").rows()}
    assert why["b-2026-02"] is None
    assert why["b-2026-01"] == f"{newest} is of the same host"
    assert why["a-short"] == "3 of 6 blocks are done"
    assert "record format 99" in why["a-future"]
    assert why["a-other"] == f"its parameters are not those of {newest}"
    assert why["a-damaged"]
    assert "cannot be read" in why["a-nothing"]
    assert table.filter(pl.col("host") == "b")["findings"].to_list() == ["It is busy.", ""]


def test_records_of_two_studies_and_none_at_all(records: Callable[..., Path]) -> None:
    with pytest.raises(StudyError, match="are of other, swept: give those of one study"):
        host_records([records("a"), records("b", study="other")])
    with pytest.raises(StudyError, match="No record can be used: there is none"):
        host_records([])


@pytest.mark.thorough
@pytest.mark.usefixtures("private")
def test_each_host_is_judged_by_the_notebook(
    records: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "NOTEBOOKS", (ROOMS,))
    monkeypatch.setenv("PGSTUDIES_NOTEBOOKS", str(ROOMS))
    found = host_records([records("a"), records("b", two=1.0), records("c", two=8.0)])
    judged = judged_by_host(found)
    assert dict(judged.select("host", "verdict").rows()) == {
        "a": "holds",
        "b": "gone",
        "c": "holds, much stronger",
    }
    together = pooled(judged)
    assert together.select("hosts", "holds").rows() == [(3, 2)]
    lines = "\n".join(lines_of_hosts(found, judged, together))
    assert "twice: Two are twice as many as one." in lines
    assert "holds on 2 of 3 hosts; together 2.5" in lines
    rows = by_host(judged, together)
    assert rows["candidate"].to_list() == ["c", "b", "a", "all hosts"]
    chart = effect_chart(rows, description="Ratio for every claim, by host.")
    assert save(chart, tmp_path / "hosts.svg").stat().st_size > 1000
    assert not list(tmp_path.rglob("*.ipynb"))


def judged_frame(*hosts: tuple[float, float], verdict: str = "holds") -> pl.DataFrame:
    """Hosts whose log ratio and its standard error are these."""
    return pl.DataFrame(
        [
            {
                "host": f"h{n}",
                "claim": "c",
                "text": "A claim.",
                "published_ratio": 2.0,
                "ratio": math.exp(centre),
                "low": math.exp(centre - 1.959964 * error),
                "high": math.exp(centre + 1.959964 * error),
                "blocks": 10,
                "margin": 0.02,
                "verdict": verdict,
            }
            for n, (centre, error) in enumerate(hosts)
        ]
    )


def test_hosts_that_agree_are_averaged_by_their_precision() -> None:
    row = pooled(judged_frame((0.5, 0.1), (0.5, 0.2), (0.5, 0.1))).row(0, named=True)
    assert row["ratio"] == pytest.approx(math.exp(0.5))
    assert (row["tau"], row["i2"]) == (0.0, 0.0)
    # 1 / sqrt(100 + 25 + 100), and Student's t with two degrees of freedom
    assert math.log(row["high"] / row["ratio"]) == pytest.approx(4.302653 / 15, rel=1e-5)


def test_hosts_that_differ_are_heterogeneous() -> None:
    row = pooled(judged_frame((0.0, 0.01), (1.0, 0.01), (2.0, 0.01))).row(0, named=True)
    assert row["ratio"] == pytest.approx(math.exp(1.0), rel=1e-3)
    assert row["tau"] == pytest.approx(1.0, rel=1e-3)  # the standard deviation of 0, 1, 2
    assert row["i2"] > 0.99
    assert row["low"] < 1 < row["high"]


@pytest.mark.parametrize("verdict", ["not tested: no compiler", "not judged: the plan is another"])
def test_one_host_is_not_pooled_and_one_that_did_not_judge_does_not_count(verdict: str) -> None:
    assert pooled(judged_frame((0.5, 0.1))).select("hosts", "ratio").rows() == [(1, None)]
    nothing = judged_frame((0.5, 0.1), verdict=verdict)
    assert pooled(nothing).select("hosts", "holds").rows() == [(0, 0)]


def test_the_pooled_interval_covers_what_it_says() -> None:
    """Of 400 sets of five hosts around a known mean, about 95 % of the intervals hold it."""
    draw = np.random.default_rng(7)
    covered = 0
    for _ in range(400):
        centres = draw.normal(0.3, 0.2, 5) + draw.normal(0, 0.05, 5)
        row = pooled(judged_frame(*((c, 0.05) for c in centres))).row(0, named=True)
        covered += row["low"] <= math.exp(0.3) <= row["high"]
    assert 0.92 <= covered / 400 <= 0.98


def gate(word: str) -> dict[str, str]:
    return {"name": word, "level": "warn", "sentence": f"It is {word}."}


def edit(path: Path, **changes: Any) -> None:
    """Write the record anew with other contents of record.json, as a run could have made it."""
    record = read_record(path)
    shutil.rmtree(path)
    changed: Any = record.info | changes
    write_whole(path, changed, record.samples)


def test_a_record_is_written_whole_or_not_at_all(records: Callable[..., Path]) -> None:
    path = records("a")
    before = (path / "record.json").read_bytes()
    with pytest.raises(SpaceError, match=r"not empty|exists"):
        records("a", study="another")
    assert [p.name for p in path.parent.iterdir()] == ["a"]
    assert (path / "record.json").read_bytes() == before
