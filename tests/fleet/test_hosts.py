"""Several hosts judge a study: which records count, and the verdicts of all together."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from pgapps.fleet.hosts import (
    by_all_hosts,
    by_host,
    host_records,
    judged_by_host,
    lines_of_hosts,
)
from pgapps.markup import save
from pgservers import paths
from pgservers.errors import SpaceError, StudyError
from pgstudies import effect_chart
from pgstudies.analysis.agreement import judge
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
    busy = {"name": "busy", "level": "warn", "sentence": "It is busy."}
    newest = records("b", name="b-2026-02", gate=[busy] * 2)
    older = records("b", name="b-2026-01")
    three = read_record(records("c", name="three", blocks=3, parameters=SWEPT | {"blocks": 6}))
    short = tmp_path / "a-short"
    changed: Any = three.info | {"blocks": 6}
    write_whole(short, changed, three.samples)
    future = records("d", name="a-future")
    (future / "record.json").write_text('{"format_version": 99}')
    other = records("e", name="a-other", parameters=SWEPT | {"pause_s": 1.0})
    damaged = records("f", name="a-damaged")
    (damaged / "samples.parquet").write_bytes(b"PAR1, as it were")
    table = host_records([newest, older, short, future, other, damaged, tmp_path / "a-nothing"])
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
    together = by_all_hosts("swept", judged)
    assert together.select("hosts", "holds", "ratio").rows() == [(3, 2, None)]
    lines = "\n".join(lines_of_hosts(found, judged, together))
    assert "twice: Two are twice as many as one." in lines
    assert "holds on 2 of 3 hosts; 3 hosts: too few" in lines
    assert lines.count("6 blocks, one run") == 3
    rows = by_host(judged, together)
    assert rows["candidate"].to_list() == ["c", "b", "a"]
    chart = effect_chart(rows, description="Ratio for every claim, by host.")
    assert save(chart, tmp_path / "hosts.svg").stat().st_size > 1000
    assert not list(tmp_path.rglob("*.ipynb"))


def judged_frame(*ratios: float, verdict: str = "holds") -> pl.DataFrame:
    """Hosts that found these ratios."""
    same: dict[str, Any] = {"claim": "c", "text": "A claim.", "kind": "direction"}
    same |= {"published_ratio": 2.0, "metric": "cpu_s", "blocks": 10, "margin": 0.02}
    rows = [
        {"ratio": ratio, "low": ratio / 1.01, "high": ratio * 1.01, "verdict": verdict} | same
        for ratio in ratios
    ]
    hosts = pl.Series("host", [f"h{n}" for n in range(len(ratios))])
    return pl.DataFrame(rows, schema=judge([], pl.DataFrame()).schema).insert_column(0, hosts)


def test_six_hosts_judge_as_six_runs_do() -> None:
    judged = judged_frame(2.0, 2.2, 1.9, 2.1, 2.3, 1.8)
    together = by_all_hosts("hash_index", judged)
    row = together.row(0, named=True)
    assert (row["hosts"], row["holds"], row["verdict"]) == (6, 6, "holds")
    assert (row["low"], row["high"]) == pytest.approx((1.8, 2.3))
    assert by_host(judged, together)["candidate"].to_list()[-1] == "all hosts"
    _, words, *_ = lines_of_hosts(pl.DataFrame(), judged, together)
    assert words == f"  holds on 6 of 6 hosts; together {row['ratio']:.3f} (1.800 to 2.300): holds"


@pytest.mark.parametrize("verdict", ["not tested: no compiler", "not judged: the plan is another"])
def test_fewer_hosts_are_not_judged_together_and_one_that_did_not_judge_does_not_count(
    verdict: str,
) -> None:
    five = by_all_hosts("hash_index", judged_frame(*[2.0] * 5))
    assert five.select("hosts", "ratio").rows() == [(5, None)]
    assert five["verdict"][0].startswith("5 hosts: too few")
    nothing = by_all_hosts("hash_index", judged_frame(*[2.0] * 6, verdict=verdict))
    assert nothing.select("hosts", "holds", "ratio").rows() == [(0, 0, None)]


def test_a_record_is_written_whole_or_not_at_all(records: Callable[..., Path]) -> None:
    path = records("a")
    before = (path / "record.json").read_bytes()
    with pytest.raises(SpaceError, match=r"not empty|exists"):
        records("a", study="another")
    assert [p.name for p in path.parent.iterdir()] == ["a"]
    assert (path / "record.json").read_bytes() == before
