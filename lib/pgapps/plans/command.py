"""The command ``plans``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgservers.errors import StudyError
from pgservers.terminal import say, tell
from pgstudies.run_options import RunOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .source import Source

commands = typer.Typer()


@commands.command(short_help="Predict which queries get another plan.")
def plans(
    *,
    server: Annotated[
        str | None,
        typer.Option(
            metavar="DSN",
            help="The server that runs the queries now.  [default: $PGSTUDIES_SERVER]",
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="SERVER",
            help="What to predict the plans of: a release from 18 on, embedded (the PostgreSQL 18 "
            "that comes with pgstudies), a directory of programs, or the address of a server, "
            "whose release and planner settings are used.  [default: embedded]",
            show_default=False,
        ),
    ] = None,
    setting: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Settings to try, as in postgresql.conf: plans without and with them are "
            "compared.  --to is then by default the server's own release, from 18 on.",
        ),
    ] = None,
    script: Annotated[
        Path | None,
        typer.Option(
            "--with",
            metavar="FILE",
            help="SQL to try, such as CREATE INDEX or DROP INDEX: plans without and with it are "
            "compared.  It is executed on the copy alone.  --to is as for --setting.",
        ),
    ] = None,
    queries: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A directory with queries in files *.sql."),
    ] = None,
    top: Annotated[
        int,
        typer.Option(
            min=1,
            max=5000,
            metavar="N",
            help="Without --queries: the N queries that took most time, according to "
            "pg_stat_statements.",
        ),
    ] = 50,
    role: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Only queries that this role ran; may be repeated.  With --queries: the role "
            "that runs them.",
        ),
    ] = None,
    not_role: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="No queries that this role ran; may be repeated."),
    ] = None,
    min_calls: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Only queries with at least N calls."),
    ] = 0,
    min_time: Annotated[
        float,
        typer.Option(min=0, metavar="MS", help="Only queries that took at least MS ms in all."),
    ] = 0,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the plans side by side into this HTML file."),
    ] = None,
) -> None:
    """Predict which queries get another plan on another release, with settings or an index.

    Schema and optimizer statistics, but no rows, are read from the server and restored on a
    temporary server on this machine, the copy, whose empty files are extended to the size of the
    originals.  Then both servers are asked for the plans of the same queries.  No query is executed
    and nothing is changed on the server; the copy is deleted at the end.

    Planning evaluates immutable functions: on the server with the privileges of the role in the
    address, in a read-only transaction; on the copy without privileges.  Use a role that may read
    the tables and write nothing: instead of a write, the query that finds its rows is planned, on
    both sides.

    A query is planned with the search_path and the planner settings of the role that ran it, as set
    by ALTER ROLE and ALTER DATABASE; a query from a file as the role in the address, or --role.

    Without --queries, statements that use only system catalogs are left out, such as those of
    monitoring tools and pg_dump.

    A file of --queries has queries or pgbench scripts, named by lines -- name: ...; parameters are
    $1, :name or :'name'.  A file schema.sql, the tables of a workload, is ignored.

    \b
    Examples:
      pgstudies plans --server postgresql://me@db/shop --to 18
      pgstudies plans --server postgresql://me@db/shop --to 18 --queries shop/
      pgstudies plans --server postgresql://me@db/shop --setting my.conf --top 20
      pgstudies plans --server postgresql://me@db/shop --with index.sql

    \b
    Exit codes:
      0    every query keeps its plan
      1    a query gets another plan
      2    some query could not be judged, or the request is wrong
      3    the server cannot be reached or read, or the copy cannot be made
      5    no space left on a disk
    """  # noqa: D301
    from pgservers.addresses import EMBEDDED
    from pgservers.servers.settings import read_settings

    from ..workload.schema import sql_lines
    from ..workload.statements import statements_in
    from .foresee import foresee
    from .queries import queries_in, top_queries
    from .source import opened
    from .text import as_text, write_report

    if report is not None and (report.suffix != ".html" or not report.absolute().parent.is_dir()):
        raise StudyError(f"The report must be a file named *.html in a directory, not {report}.")
    address = server or RunOptions.given().server
    if not address:
        raise StudyError("Name the server: --server postgresql://me@db/shop.")
    if queries and (len(role or ()) > 1 or not_role or min_calls or min_time):
        raise StudyError(
            "With --queries give one --role at most, and none of --not-role and --min."
        )
    settings = read_settings(setting) if setting else {}
    statements = statements_in(sql_lines(script), script) if script else []
    wanted = queries_in(queries) if queries else []
    left_out: Mapping[str, int] = {}
    with opened(address) as source:
        if (setting or script) and to is None:
            to = _own_release(source)
        if wanted and role:
            source.require_role(role[0])
            wanted = [replace(query, role=role[0]) for query in wanted]
        elif not wanted:
            wanted, left_out = top_queries(
                source.connection,
                roles=role or (),
                not_roles=not_role or (),
                min_calls=min_calls,
                min_time_ms=min_time,
            )
        found = foresee(
            source,
            wanted,
            top=None if queries else top,
            left_out=left_out,
            to=to or EMBEDDED,
            settings=settings,
            script=statements,
            show=lambda what: say(f"{what} ..."),
        )
    tell(as_text(found))
    if report is not None:
        tell(f"\nReport: {write_report(found, report)}")
    verdicts = {query.verdict for query in found.queries}
    raise typer.Exit(1 if "another plan" in verdicts else 2 if "not judged" in verdicts else 0)


def _own_release(source: Source) -> str:
    """The default of --to for changes; raises StudyError if the server is older than 18."""
    from pgservers.addresses import EMBEDDED
    from pgservers.programs.installations import find_binaries

    from .empty_copy import RESTORES_STATISTICS
    from .source import programs_of

    if source.version < RESTORES_STATISTICS:
        raise StudyError(
            f"Changes are tried on a copy, and a copy on {source.major} cannot be given the "
            f"statistics of another server, as from 18 on: give --to 18, or embedded."
        )
    is_embedded = find_binaries().version // 10000 == source.major
    return EMBEDDED if is_embedded else programs_of(source.version, source.connection)
