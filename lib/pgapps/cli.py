"""The command ``pgstudies``, whose commands applications register by an entry point."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from pgservers import paths
from pgservers.errors import SpaceError, StudyError
from pgservers.files import cannot_write, space_error, sweep_temporary
from pgservers.paths import cache_dir
from pgservers.terminal import say, tell

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType, ModuleType
    from typing import TextIO


COMMANDS = "pgstudies.commands"
"""The entry points: modules with ``commands``, a Typer; some have ``clean``, which removes what
killed runs left."""

_HELP = """\
Rerun published PostgreSQL performance studies on a server of your choice.

\b
The usual course:
  pgstudies doctor     what this machine and the server can do
  pgstudies run all    measure every study at quick size
  pgstudies book       build the report, _build/html/index.html
  pgstudies scorecard  which of the old claims still hold
"""

_EXIT_CODES = """\
\b
Exit codes:
  0    done
  1    an error in pgstudies itself; please report it
  2    the request is wrong or cannot be carried out
  3    the server cannot be found, started, reached or used
  4    a notebook stopped with an error
  5    no space left on a disk, or no permission to write
  130  interrupted; run the same command to continue
"""

app = typer.Typer(
    name="pgstudies",
    help=_HELP,
    epilog=_EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        tell(f"pgstudies {version('pgstudies')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None: ...


@cache
def _applications() -> list[ModuleType]:
    """The modules of the entry points; registers their commands, groups of one name as one."""
    points = sorted(entry_points(group=COMMANDS), key=lambda point: point.name)
    applications = [import_module(point.module) for point in points]
    for application in applications:
        app.registered_commands += application.commands.registered_commands
        app.registered_groups += application.commands.registered_groups
    # Of a name's groups, the one with a help keeps the name, and the others add to it.
    groups = sorted(app.registered_groups, key=lambda group: not group.short_help)
    firsts = {group.name: group for group in reversed(groups)}
    for group in groups:
        first = firsts[group.name]
        if group is not first and first.typer_instance and group.typer_instance:
            first.typer_instance.registered_commands += group.typer_instance.registered_commands
    app.registered_groups = list(firsts.values())
    return applications


def _stop(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _sweep(applications: Sequence[ModuleType]) -> None:
    """Remove what killed runs of this user left and no server removes (about 1 ms)."""
    sweep_temporary(cache_dir() / "extensions", cache_dir() / "locales", paths.STUDIES)
    with suppress(StudyError, OSError):
        for application in applications:
            if hasattr(application, "clean"):
                application.clean()
        if any(Path("/dev/shm").glob("sem.pgstudies-*")):  # noqa: S108
            from pgservers.host.shared_memory import free_semaphores

            free_semaphores()


def _ignore_signals() -> None:
    """Ignore signals while the interpreter ends, unless it still waits for threads.

    That takes half a second, in which a second Ctrl-C would kill it.
    """
    if all(thread.daemon for thread in threading.enumerate()[1:]):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


def _open_standard_streams() -> None:
    """Open standard streams that were closed, so that no file gets their numbers.

    Raises SpaceError if stdout was closed: the command's answer would be lost.
    """
    is_lost = sys.stdout is None
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    if is_lost:
        raise SpaceError("Standard output is closed: redirect it, to /dev/null perhaps.")


def _written(code: int) -> int:
    """Flush all output and return the exit code; a full disk may be noticed only now."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            _forget(stream)
            if not isinstance(error, BrokenPipeError):
                with suppress(OSError):
                    say(str(cannot_write(error, stream.name)))
                code = SpaceError.exit_code
    return code


def main() -> NoReturn:
    """Run the command line; every error ends in a sentence and an exit code of its own."""
    signal.signal(signal.SIGTERM, _stop)
    os.umask(os.umask(0o077) & 0o077)  # else we could not use what we make
    try:
        try:
            code = _written(_exit_code())
        finally:
            _ignore_signals()
    except KeyboardInterrupt:  # again, while the first one was dealt with
        _ignore_signals()
        code = 130
    except OSError:  # stderr cannot be written to
        _forget(sys.stderr)
        code = SpaceError.exit_code
    sys.exit(code)


def _forget(stream: TextIO) -> None:
    """Drop output that could not be written; Python would try again at exit, and end with 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


_OF_PATHS = ("Symlink loop from", "Could not determine home directory")
"""How messages of pathlib's RuntimeErrors begin; the first is raised until Python 3.13."""


def _sentence(error: Exception) -> StudyError | None:
    """A sentence for an unexpected error with a file; None without a file."""
    if isinstance(error, RuntimeError) and str(error).startswith(_OF_PATHS):
        return StudyError(f"A path cannot be used: {str(error)[:200]}.")
    if not isinstance(error, OSError):
        return None
    if known := space_error(error, error.filename or "the disk"):
        return known
    if error.filename is None or isinstance(error.filename, int):
        return None
    return StudyError(f"{str(error.filename)[:200]} cannot be used: {error.strerror}.")


def _exit_code() -> int:
    try:
        _open_standard_streams()
        _sweep(_applications())
        app()
    except SystemExit as ended:  # of every command
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except Exception as error:
        known = error if isinstance(error, StudyError) else _sentence(error)
        if known is None:
            traceback.print_exc()
            say("this is an error in pgstudies itself; please report it with the lines above.")
            return 1
        say(str(known))
        return known.exit_code
    return 0
