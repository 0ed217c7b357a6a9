"""The commands for several hosts: ``sweep``, ``worker``, ``scheduler`` and ``hosts``."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgservers.errors import StudyError
from pgservers.paths import records_dir
from pgservers.terminal import say, tell

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl
    from distributed import Client

    from .ledger import SweepBlock
    from .plan import Sweep

commands = typer.Typer()

Certificates = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        envvar="PGSTUDIES_CERTIFICATES",
        help="The directory made by --make-certificates.  [default: Dask's own configuration]",
    ),
]

_SWEEP = """\
Measure studies × parameters × servers on several hosts, block by block.

SWEEP.toml lists what to measure; the ledger that it names stores every finished
block.  After an interruption the same command continues with the missing ones.
Ctrl-C waits for the blocks that are being measured; a second one, or SIGTERM,
aborts them.

\b
Example of a sweep.toml:
  ledger = "/nfs/sweep"             # or s3://bucket/sweep; read by all hosts
  hosts = ["bench1", "bench2"]      # names of workers
  [[run]]
  study = "..."
  profile = "standard"
  servers = ["16", "embedded"]
  parameters = { rows = [100_000, 1_000_000] }
\b
Examples:
  pgstudies sweep sweep.toml --status
  pgstudies sweep sweep.toml --local 1                (this machine only)
  pgstudies sweep --make-certificates certificates    (once, for all hosts)
  export PGSTUDIES_CERTIFICATES=certificates          (for --certificates)
  pgstudies scheduler                                 (on one host)
  pgstudies worker tls://head:8786 --name bench1      (on each host)
  pgstudies sweep sweep.toml --scheduler tls://head:8786
"""


def _make_certificates(directory: Path | None) -> None:
    if directory is None:
        return
    with _extra():
        from .certificates import make_certificates
    make_certificates(directory)
    tell(
        f"Whoever has {directory} can connect: copy it to your account on every host with "
        f"`scp -rp`, and pass --certificates {directory} to scheduler, worker and sweep."
    )
    raise typer.Exit


@commands.command(help=_SWEEP, short_help="Measure on several hosts, or a grid of parameters.")
def sweep(
    file: Annotated[Path, typer.Argument(metavar="SWEEP.toml", show_default=False)],
    *,
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Where `pgstudies scheduler` listens."),
    ] = None,
    local: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Start workers here, for the first N hosts."),
    ] = None,
    status: Annotated[
        bool, typer.Option("--status", help="Print the progress and exit; needs no scheduler.")
    ] = False,
    certificates: Certificates = None,
    make_certificates: Annotated[  # noqa: ARG001  (its callback does it)
        Path | None,
        typer.Option(
            metavar="DIR",
            callback=_make_certificates,
            is_eager=True,
            help="Make a certificate and its key in a new directory, and exit.",
        ),
    ] = None,
) -> None:
    """Measure a sweep, or print its progress."""
    with _extra():
        from .ledger import Ledger
        from .plan import overview, read_sweep

        plan = read_sweep(file)
        done = Ledger(plan.ledger).done()
    tell("\n".join(_what_is_done(plan, overview(plan, done))))
    if status:
        return
    if (scheduler is None) == (local is None):
        raise StudyError("Pass --scheduler ADDRESS for the hosts, or --local 1 for this machine.")
    missing = [block for block in plan.blocks() if block not in done]
    if missing:
        here = plan.hosts[:local]  # all of them with --scheduler
        with _extra():
            from .cluster import connected, local_cluster
        joined = local_cluster(here) if scheduler is None else connected(scheduler, certificates)
        with joined as client:
            _measure(replace(plan, hosts=here), [u for u in missing if u.host in here], client)
    from .join import join

    records, lacking = join(plan, records_dir())
    for record in records:
        tell(f"record: {record}")
    for sentence in lacking:
        tell(f"incomplete: {sentence}")


def _measure(plan: Sweep, lacking: list[SweepBlock], client: Client) -> None:
    from pgservers.terminal import Progress

    from .sweep import measure_missing, missing

    total = sum(1 for _ in plan.blocks())
    done = total - len(lacking)
    try:
        with Progress("sweep", total, done) as bar:
            failures = measure_missing(plan, client, bar, blocks=lacking)
    except KeyboardInterrupt:
        say("interrupted; finished blocks are kept: run it again to continue.")
        raise typer.Exit(130) from None
    if failures:
        say(f"{len(missing(plan))} of {total} blocks are not done:")
        for block, reason in failures.items():
            say(f"{block}: {reason}")
        raise typer.Exit(StudyError.exit_code)


def _what_is_done(plan: Sweep, rows: pl.DataFrame) -> Iterator[str]:
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
            f"The others take {time} or more, by the newest records of these studies here; "
            f"preparing tables takes extra time."
        )


@commands.command(short_help="Run this host's sweep worker.")
def worker(
    scheduler: Annotated[str, typer.Argument(metavar="ADDRESS", show_default=False)],
    *,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="This host's name in sweep.toml.  [default: hostname]"),
    ] = None,
    certificates: Certificates = None,
) -> None:
    """Measure blocks of a sweep on this host, one at a time, until the scheduler ends.

    \b
    Examples:
      pgstudies worker tls://head:8786 --certificates certificates
      pgstudies worker tls://head:8786 --certificates certificates --name bench1
    """  # noqa: D301
    import socket

    _quiet_dask()
    with _extra():
        from .cluster import serve_as_worker
    serve_as_worker(scheduler, name or socket.gethostname(), certificates)


@commands.command(short_help="Run the scheduler of a sweep and its workers.")
def scheduler(
    *,
    host: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Address to listen on.  [default: all]"),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free one.")
    ] = 8786,
    certificates: Certificates = None,
) -> None:
    """Run the scheduler that connects sweeps and workers, until Ctrl-C; one for all hosts.

    \b
    Examples:
      pgstudies scheduler --certificates certificates
      pgstudies sweep --make-certificates certificates    (once, for all hosts)
    """  # noqa: D301
    _quiet_dask()
    with _extra():
        from .cluster import serve_as_scheduler
    try:
        serve_as_scheduler(host or "", port, certificates)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _quiet_dask() -> None:
    # Dask's child processes inherit it; the sweep reports what matters.
    os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "critical")


@commands.command(short_help="Print on how many hosts a study's claims hold.")
def hosts(
    records: Annotated[list[Path], typer.Argument(metavar="RECORD...", show_default=False)],
    *,
    chart: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the forest plot: .svg, .png or .json."),
    ] = None,
) -> None:
    """Print on how many hosts a study's claims hold, given a record from each host.

    The records may be other people's: their format, whether they are complete, and
    the state of the machine when it measured are checked first.  Six hosts or more
    also judge each claim together, a host counting as one number.

    \b
    Examples:
      pgstudies hosts records/bench1 records/bench2
      pgstudies hosts records/* --chart hosts.svg
    """  # noqa: D301
    from .hosts import host_lines

    for line in host_lines(records, chart=chart):
        tell(line)


@contextmanager
def _extra() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise StudyError(
            f"Sweeps need {error.name}, which is not installed: run `make install`, "
            f"or `pip install -e '.[cluster]'`."
        ) from None


def clean() -> None:
    """Remove what this user's killed sweeps left."""
    for base in (records_dir() / ".dask", records_dir() / ".sweep"):
        if any(base.glob("s-*")):
            from pgservers.servers.leftovers import sweep as remove

            remove(base)
