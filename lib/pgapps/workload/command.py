"""The command ``new-workload``."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer

from pgservers.errors import StudyError
from pgservers.terminal import say, tell

commands = typer.Typer()


@commands.command(short_help="Write an example of a workload of your own.")
def new_workload(
    directory: Annotated[Path, typer.Argument(metavar="DIR", show_default=False)],
    *,
    from_server: Annotated[
        str | None,
        typer.Option(
            metavar="DSN",
            help="Write scripts of the queries that took most time on this server, according to "
            "pg_stat_statements.",
        ),
    ] = None,
    from_log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write scripts of the queries that took most time by this log of a server.",
        ),
    ] = None,
    top: Annotated[
        int,
        typer.Option(
            min=1, max=1000, metavar="N", help="With --from-server or --from-log: N queries."
        ),
    ] = 40,
    role: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="With --from-server, or --from-log of a csvlog or jsonlog: only queries that this "
            "role ran; may be repeated.",
        ),
    ] = None,
) -> None:
    """Write a directory with a schema and scripts, for `pgstudies compare --workload DIR`.

    The example can be run as it is; replace it by your own schema, or a dump, and your own queries.

    With --from-server the scripts are a server's own queries; dump the schema yourself.  The values
    of parameters are not known, so they are drawn from the column statistics (pg_stats).  The
    command only reads from the server, in sessions with an empty search_path; no query is planned
    or run there.  It needs a role that may read the tables and has pg_read_all_stats.

    With --from-log they are those of a log, by log_min_duration_statement or auto_explain (its
    formats text and json), in PostgreSQL's formats stderr, csvlog or jsonlog with English messages.
    A script is one real call, that of the middle time, with the values it had.

    \b
    Examples:
      pgstudies new-workload shop
      pgstudies new-workload shop --from-server postgresql://me@db/shop --top 40
      pgstudies new-workload shop --from-log postgresql-Mon.log
    """  # noqa: D301
    from pgservers.paths import for_display

    from .logs.scripts import write_scripts_of_log
    from .writing import new_workload as write

    if from_server is not None and from_log is not None:
        raise StudyError("Give --from-server or --from-log, not both.")
    home, how = directory.expanduser(), (top, role or [], lambda what: say(f"{what} ..."))
    if from_log is not None:
        told = write_scripts_of_log(home, from_log.expanduser(), *how)
    elif from_server is not None:
        # The application plans is above this one, and may be missing.
        writers = [*entry_points(group="pgstudies.from_servers")]
        if not writers:
            raise StudyError("--from-server needs the application plans, which is not installed.")
        told = writers[0].load()(home, from_server, *how)
    else:
        told = [for_display(file) for file in write(home)]
        told += [
            f"Compare two servers by it with `pgstudies compare --baseline 17 --candidate 18 "
            f"--workload {directory}`."
        ]
    for sentence in told:
        tell(sentence)
