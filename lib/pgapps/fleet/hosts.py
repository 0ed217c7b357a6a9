"""The claims of one study, judged on several hosts: on each, and by all together."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from pgservers.errors import StudyError
from pgstudies.analysis.agreement import HOLDS, NOT_JUDGED, NOT_TESTED, RUNS
from pgstudies.charts.effects import effect_chart
from pgstudies.charts.outcomes import runs_text
from pgstudies.records.reading import read_info, read_record

from ..markup import save
from ..scorecard.judging import judged
from ..scorecard.runs import judged_together

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pgstudies.records.reading import Record


_HOST_RECORDS: dict[str, pl.DataType] = {
    **dict.fromkeys(["host", "server"], pl.String()),
    "blocks": pl.Int64(),
    **dict.fromkeys(["findings", "left_out", "path"], pl.String()),
}

_TOGETHER: dict[str, pl.DataType] = {
    **dict.fromkeys(["claim", "text"], pl.String()),
    **dict.fromkeys(["hosts", "holds"], pl.Int64()),
    **dict.fromkeys(["published_ratio", "ratio", "low", "high"], pl.Float64()),
    "verdict": pl.String(),
}


def host_lines(paths: Sequence[Path], *, chart: Path | None = None) -> Iterator[str]:
    """What the records of several hosts say about a study, as lines for a terminal.

    ``chart`` is the file for the forest plot.  Raises as ``host_records`` does, and StudyError if
    there is nothing to draw.
    """
    records = host_records(paths)
    judged = judged_by_host(records)
    counted = records.filter(pl.col("left_out").is_null())["path"][0]
    together = by_all_hosts(read_info(Path(counted))["study"], judged)
    yield from lines_of_hosts(records, judged, together)
    if chart is not None:
        rows = by_host(judged, together)
        if rows.is_empty():
            raise StudyError("There is no claim with a ratio to draw.")
        about = "Ratio for every claim, by host and over all hosts."
        drawn = effect_chart(rows, description=about, tallest=math.inf)
        yield f"chart: {save(drawn, chart)}"


def host_records(paths: Sequence[str | Path]) -> pl.DataFrame:
    """The records that several hosts have of one study, and whether each counts.

    Columns: host, server, blocks, findings (of the gate, in words), left_out (why it does not
    count, or null), path.  A record does not count if it has another format, is incomplete or
    damaged, was made with other parameters than the first, or is an older one of the same host.
    Raises StudyError if none counts, or if they are of different studies.
    """
    rows: list[dict[str, object]] = []
    counted: dict[str, Record] = {}
    studies: set[str] = set()
    for path in sorted(map(str, paths), reverse=True):
        row: dict[str, object] = {**dict.fromkeys(_HOST_RECORDS), "path": path}
        rows.append(row)
        try:
            record = read_record(path)
        except (StudyError, pl.exceptions.PolarsError, OSError) as error:
            row["left_out"] = str(error)
            continue
        host = str(record.info["host"].get("hostname") or "unknown")
        row |= {
            "host": host,
            "server": record.info["server"].get("version_text"),
            "blocks": record.blocks,
            "findings": " ".join(record.gate.unique("name", maintain_order=True)["sentence"]),
        }
        studies.add(record.info["study"])
        first = next(iter(counted.values()), record)
        if record.info["status"] != "complete" or record.blocks < record.info["blocks"]:
            row["left_out"] = f"{record.blocks} of {record.info['blocks']} blocks are done"
        elif _inputs(record) != _inputs(first):
            row["left_out"] = f"its parameters are not those of {first.path}"
        elif host in counted:
            row["left_out"] = f"{counted[host].path} is of the same host"
        else:
            counted[host] = record
    if len(studies) > 1:
        names = ", ".join(sorted(studies))
        raise StudyError(f"The records are of {names}: give those of one study.")
    if not counted:
        reasons = "; ".join(f"{row['path']}: {row['left_out']}" for row in rows)
        raise StudyError(f"No record can be used: {reasons.rstrip('.') or 'there is none'}.")
    return pl.DataFrame(rows, schema=_HOST_RECORDS)


def judged_by_host(records: pl.DataFrame) -> pl.DataFrame:
    """The claims of a study as its notebook judges them, from the record of each host.

    ``records`` comes from ``host_records``.  Columns: host, then those of ``judge``.
    """
    counted = records.filter(pl.col("left_out").is_null()).select("host", "path")
    frames = [
        judged(path).insert_column(0, pl.lit(host).alias("host")) for host, path in counted.rows()
    ]
    return pl.concat(frames)


def by_all_hosts(study: str, judged: pl.DataFrame) -> pl.DataFrame:
    """Every claim over the hosts, one row per claim, a host counting as one number.

    ``judged`` comes from ``judged_by_host``.  Columns: claim, text, hosts (how many judged it),
    holds (on how many it holds), published_ratio, and ratio, low, high, verdict by all hosts, as
    ``judged_together`` judges runs.  With fewer than ``RUNS`` hosts there is no ratio, and verdict
    says so.
    """
    rows = []
    for row in judged_together(study, judged.partition_by("host", maintain_order=True)):
        part = judged.filter(pl.col("claim") == row["claim"])
        tested = part.filter(~pl.col("verdict").str.contains(f"^({NOT_TESTED}|{NOT_JUDGED})"))
        hosts = {"hosts": tested.height, "holds": tested["verdict"].is_in(HOLDS).sum()}
        count = row["runs"] or 0
        if count < RUNS:
            few = f"{count} {_hosts(count)}: too few to be judged together, six are needed"
            row.update(ratio=None, low=None, high=None, verdict=few)
        rows.append(row | hosts)
    return pl.DataFrame([{name: row[name] for name in _TOGETHER} for row in rows], _TOGETHER)


def by_host(judged: pl.DataFrame, together: pl.DataFrame) -> pl.DataFrame:
    """The rows of a forest plot, as ``effect_chart`` takes them: a group for each claim.

    Columns: step (the claim), candidate (a host, or all hosts), ratio, low, high, margin (of all
    hosts the widest), verdict, blocks (null for all hosts), published_ratio.
    """
    columns = ["ratio", "low", "high", "margin", "verdict", "blocks", "published_ratio"]
    hosts = judged.drop_nulls("ratio").select(*columns, step="claim", candidate="host")
    widest = hosts.group_by("step").agg(pl.col("margin").max())
    whole = (
        together.drop_nulls("ratio")
        .with_columns(step="claim", candidate=pl.lit("all hosts"), blocks=pl.lit(None, pl.Int64()))
        .join(widest, on="step")
    )
    return pl.concat([hosts, whole.select(hosts.columns)]).sort("step", maintain_order=True)


def _inputs(record: Record) -> dict[str, object]:
    return {k: v for k, v in record.parameters.items() if k not in {"blocks", "server"}}


def lines_of_hosts(
    records: pl.DataFrame, judged: pl.DataFrame, together: pl.DataFrame
) -> Iterator[str]:
    """A line for every record, with the reason if it does not count, and lines for every claim."""
    for row in records.iter_rows(named=True):
        measured = f"{row['blocks']} blocks, {runs_text(1)}"
        state = f"left out: {row['left_out']}" if row["left_out"] else measured
        yield f"{row['host'] or row['path']}: {row['server'] or ''} {state}".replace(":  ", ": ")
        if row["findings"]:
            yield f"  found there before measuring: {row['findings']}"
    for row in together.iter_rows(named=True):
        yield f"{row['claim']}: {row['text']}"
        words = row["verdict"]
        if row["ratio"] is not None:
            figures = f"{row['ratio']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
            words = f"together {figures}: {words}"
        count = f"{row['holds']} of {row['hosts']} {_hosts(row['hosts'])}"
        yield f"  holds on {count}; {words}" if row["hosts"] else "  judged on no host"
        own = judged.filter(pl.col("claim") == row["claim"])
        for host, verdict in own.select("host", "verdict").rows():
            yield f"    {host}: {verdict}"


def _hosts(count: int) -> str:
    return "host" if count == 1 else "hosts"
