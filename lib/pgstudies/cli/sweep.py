"""The commands for several hosts: ``pgstudies sweep``, ``worker`` and ``hosts``."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path  # noqa: TC003  (typer looks)
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import StudyError
from ..terminal import Relay, printable, say

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from ..fleet.ledger import Unit
    from ..fleet.plan import Sweep


def sweep(
    file: Annotated[Path, typer.Argument(metavar="SWEEP.toml", show_default=False)],
    *,
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="The Dask scheduler of the hosts' workers."),
    ] = None,
    local: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Start workers here, for the first N hosts."),
    ] = None,
    status: Annotated[
        bool, typer.Option("--status", help="Only say what is done; needs no scheduler.")
    ] = False,
) -> None:
    """Measure studies × parameters × servers on several hosts, block by block.

    SWEEP.toml says what; the ledger that it names keeps every block that is done.
    Whatever was interrupted, the same command continues with what is missing.

    \b
    Example of a sweep.toml:
      ledger = "/nfs/sweep"             # or s3://bucket/sweep; read by all hosts
      hosts = ["bench1", "bench2"]      # names of workers
      [[run]]
      study = "cluster_order"
      profile = "standard"
      servers = ["16", "embedded"]
      parameters = { rows = [100_000, 1_000_000] }
    \b
    Examples:
      pgstudies sweep sweep.toml --status
      pgstudies worker tcp://head:8786 --name bench1      (on each host)
      pgstudies sweep sweep.toml --scheduler tcp://head:8786
      pgstudies sweep sweep.toml --local 1                (this machine only)
    """  # noqa: D301
    with _extra():
        from ..fleet.ledger import Ledger
        from ..fleet.plan import overview, read_sweep

        plan = read_sweep(file)
        done = Ledger(plan.ledger).done()
    typer.echo("\n".join(map(printable, _in_words(plan, overview(plan, done)))))
    if status:
        return
    if (scheduler is None) == (local is None):
        raise StudyError(
            "Say where the hosts are: --scheduler ADDRESS, or --local 1 for this machine."
        )
    missing = [unit for unit in plan.units() if unit not in done]
    if missing:
        _carry_out(plan, missing, scheduler, plan.hosts[:local])
    _join(plan)


def _carry_out(plan: Sweep, missing: list[Unit], scheduler: str | None, here: list[str]) -> None:
    with _extra():
        from distributed import Client

        from ..fleet import sweep as sweeping
        from ..fleet import workers
    from dataclasses import replace

    from ..terminal import Progress

    with ExitStack() as stack:
        if scheduler is None:
            scheduler = stack.enter_context(workers.local_cluster(here))
            plan = replace(plan, hosts=here)
            missing = [unit for unit in missing if unit.host in here]
        try:
            client = stack.enter_context(Client(scheduler, timeout=30, set_as_default=False))
        except (OSError, TimeoutError, ValueError) as error:
            raise workers.unreachable(scheduler, error) from None
        total = sum(1 for _ in plan.units())
        bar = stack.enter_context(
            Progress("sweep", total, done=total - len(missing), stream=Relay(sys.stderr))
        )
        try:
            failures = sweeping.carry_out(plan, client, bar, units=missing)
        except KeyboardInterrupt:
            say("interrupted; the blocks that are done are kept: run it again to continue.")
            raise typer.Exit(130) from None
    if failures:
        say(f"{len(sweeping.missing(plan))} of {total} blocks are not done:")
        for failure in failures:
            say(f"{failure.unit}: {failure.reason}")
        raise typer.Exit(StudyError.exit_code)


def _join(plan: Sweep) -> None:
    from ..fleet import join
    from ..paths import records_dir

    records, lacking = join(plan, records_dir())
    for record in records:
        typer.echo(printable(f"record: {record}"))
    for sentence in lacking:
        typer.echo(f"not yet whole: {sentence}")


def _in_words(plan: Sweep, rows: pl.DataFrame) -> Iterator[str]:
    yield f"ledger: {plan.ledger}"
    for row in rows.iter_rows(named=True):
        what = " ".join(filter(None, [row["study"], row["server"], row["differs"]]))
        yield f"  {row['done']:3d} of {row['blocks']} blocks  {row['host']}: {what}"
    done, blocks = sum(rows["done"]), sum(rows["blocks"])
    yield f"{done} of {blocks} blocks are done."
    left = [(b - d) * s for b, d, s in rows.select("blocks", "done", "block_s").rows() if s]
    if done < blocks and len(left) == rows.height:
        minutes = sum(left) / len(plan.hosts) / 60
        time = f"{minutes:.0f} minutes" if minutes < 120 else f"{minutes / 60:.1f} hours"
        yield (
            f"The others take {time} or more, as blocks took in the newest records of these "
            f"studies here; preparing tables comes on top."
        )


def worker(
    scheduler: Annotated[str, typer.Argument(metavar="ADDRESS", show_default=False)],
    *,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The host, as sweep.toml has it.  [default: hostname]"),
    ] = None,
) -> None:
    """Measure blocks of a sweep on this host, one at a time, until the scheduler ends.

    \b
    Examples:
      dask scheduler                                  (on one machine, once)
      pgstudies worker tcp://head:8786
      pgstudies worker tcp://head:8786 --name bench1
    """  # noqa: D301
    import socket

    # Its own workers are to inherit that; what matters, the sweep says.
    os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "critical")
    with _extra():
        from ..fleet.workers import serve_as_worker
    serve_as_worker(scheduler, name or socket.gethostname())


def hosts(
    records: Annotated[list[Path], typer.Argument(metavar="RECORD...", show_default=False)],
    *,
    chart: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the forest plot: .svg, .png or .json."),
    ] = None,
) -> None:
    """Say on how many hosts a study's claims hold, from a record of each host.

    The records may be other people's: their format, whether they are complete and
    what was found on the host before measuring are looked at before they count.

    \b
    Examples:
      pgstudies hosts records/bench1 records/bench2
      pgstudies hosts records/* --chart hosts.svg
    """  # noqa: D301
    from ..analysis.pooling import pooled
    from ..charts.effects import effect_chart
    from ..charts.series import save
    from ..fleet import hosts as several

    found = several.host_records(records)
    judged = several.judged_by_host(found)
    together = pooled(judged)
    typer.echo("\n".join(map(printable, several.in_words(found, judged, together))))
    if chart is not None:
        rows = several.by_host(judged, together)
        if rows.is_empty():
            raise StudyError("There is no claim with a ratio to draw.")
        drawn = effect_chart(rows, description="Ratio for every claim, by host and over all hosts.")
        typer.echo(f"chart: {save(drawn, chart)}")


@contextmanager
def _extra() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise StudyError(
            f"Sweeps need {error.name}, which is not installed: `make install` brings it, "
            f"or `pip install -e '.[cluster]'`."
        ) from None
