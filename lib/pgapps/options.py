"""Options, exit codes and checks that several commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pgservers.errors import SpaceError, StudyError

if TYPE_CHECKING:
    from collections.abc import Mapping


Server = Annotated[
    str | None,
    typer.Option(
        metavar="SERVER",
        help="Where to measure: embedded, a release such as 16 (`pgstudies servers` lists them), a "
        "directory of PostgreSQL programs, or a postgresql:// address.  "
        "[default: $PGSTUDIES_SERVER, else embedded]",
    ),
]

Profile = Annotated[
    str, typer.Option(metavar="NAME", help="Size of the run: quick, standard, published.")
]

Parameters = Annotated[
    list[str] | None,
    typer.Option("-p", metavar="NAME=VALUE", help="Set a parameter; may be repeated."),
]

Configure = Annotated[
    list[str] | None,
    typer.Option(metavar="ARGUMENT", help="One more argument for configure; may be repeated."),
]

Workload = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="In place of units: the statements of this workload, see `pgstudies compare`.",
        show_default=False,
    ),
]

Pgbench = Annotated[
    str | None,
    typer.Option(
        metavar="OPTIONS",
        help="A pgbench command line, in quotes: scripts by -f and -b, mixed by weight, and "
        "-c, -D, -M, -s.",
        show_default=False,
    ),
]

BisectRun = Annotated[
    bool,
    typer.Option(
        "--bisect-run",
        help="Exit with 125 if nothing is decided, so that `git bisect run` skips the commit.",
    ),
]


def for_git(code: int, *, bisect_run: bool) -> int:
    """The exit code; with ``--bisect-run``, 125 replaces those from 2 to 127: git skips the commit.

    From 128 on git ends the bisection, and so does a full disk, which is no commit's fault.
    """
    if bisect_run and code == SpaceError.exit_code:
        return 128 + code
    return 125 if bisect_run and 1 < code < 128 else code


def assignments(texts: list[str]) -> Mapping[str, str]:
    """The values of ``-p name=value``, by name; raises StudyError for another form."""
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise StudyError(
                f'A parameter is set by -p name=value, and "{text}" is not of that form.'
            )
        values[name.strip()] = value
    return values


def showable(value: object) -> bool:
    """Whether every text in it is printable, and every whole number fits into 64 bits."""
    if isinstance(value, dict):
        return all(map(showable, [*value, *value.values()]))
    if isinstance(value, list):
        return all(map(showable, value))
    if isinstance(value, str):
        return value.isprintable()
    return not isinstance(value, int) or -(2**63) <= value < 2**63
