"""Records joined from the blocks of a ledger, one for every cell and host."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, cast

import polars as pl

from pgservers.errors import StudyError
from pgstudies.records.changes import what_changed
from pgstudies.records.writing import write_whole

from .ledger import Ledger, SweepBlock

if TYPE_CHECKING:
    from pathlib import Path

    from pgstudies.records.info import ArmFacts, Info

    from .plan import Cell, Sweep


def join(sweep: Sweep, into: Path) -> tuple[list[Path], list[str]]:
    """Write the missing records of all cells and hosts whose blocks are all done.

    Returns the records' directories below ``into``, and a sentence for every cell and host that
    still lacks blocks.  Raises StudyError if blocks of a record were measured by different code or
    on different servers, SpaceError if a record cannot be written.
    """
    ledger = Ledger(sweep.ledger)
    done = ledger.done()
    records, lacking = [], []
    for cell in sweep.cells:
        for host in sweep.hosts:
            blocks = [SweepBlock(cell.study, cell.id, host, n + 1) for n in range(cell.blocks)]
            count = sum(block in done for block in blocks)
            if count < cell.blocks:
                lacking.append(f"{cell.study} on {host}: {count} of {cell.blocks} blocks.")
                continue
            target = into / cell.study / _name(cell, host, ledger.read(blocks[0])[0])
            if not (target / "record.json").exists():
                info, samples = _joined(cell, host, [ledger.read(block) for block in blocks])
                write_whole(target, info, samples)
            records.append(target)
    return records, lacking


def _name(cell: Cell, host: str, first: Info) -> str:
    """The name of a record, which the same blocks of the same ledger always get."""
    started_at = datetime.fromisoformat(first["started_at"])
    return f"{started_at:%Y%m%dT%H%M%SZ}-{host}-{cell.id[:6]}-{cell.blocks}"


def _joined(
    cell: Cell, host: str, blocks: list[tuple[Info, pl.DataFrame]]
) -> tuple[Info, pl.DataFrame]:
    infos = [info for info, _ in blocks]
    first = infos[0]
    for number, info in enumerate(infos, start=1):
        if info["fingerprint"] != first["fingerprint"]:
            changed = what_changed(first, info, {})
            changed = changed or "the packages, the kernel, the server or the number of cores"
            raise StudyError(
                f"Block {number} of {cell.study} on {host} was not measured as block 1 was: "
                f"{changed} changed.  Remove the older ones from the ledger, below "
                f"{cell.study}/{cell.id}/{host}, and continue the sweep."
            )
    arms: list[ArmFacts] = [
        {**arm, "not_run": next(filter(None, (i["arms"][n]["not_run"] for i in infos)), None)}
        for n, arm in enumerate(first["arms"])
    ]
    joined = {
        **first,
        "blocks": len(blocks),
        "parameters": first["parameters"] | {"blocks": len(blocks)},
        "host": first["host"] | {"hostname": host},
        "started_at": min(i["started_at"] for i in infos),
        "finished_at": max(i["finished_at"] or "" for i in infos),
        "sweep": {"cell": cell.id, "host": host},
        "sessions": [session for i in infos for session in i["sessions"]],
        "timeline": [entry for i in infos for entry in i["timeline"]],
        # A finding of several blocks is listed once.
        "gate": list({str(found): found for i in infos for found in i["gate"]}.values()),
        "left_out": list({str(out): out for i in infos for out in i["left_out"]}.values()),
        "arms": arms,
    }
    # Samples of preparing have the session's number as their position.  Those that a block took
    # over from an earlier one are left out.
    prepared = pl.col("block") == 0
    together = pl.concat(
        samples.with_columns(
            position=pl.when(prepared).then(pl.lit(n, pl.Int32())).otherwise("position")
        )
        for n, (_, samples) in enumerate(blocks, start=1)
    )
    first_seen = pl.struct(pl.exclude("position")).is_first_distinct()
    return cast("Info", joined), together.filter(~prepared | first_seen)
