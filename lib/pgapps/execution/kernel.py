"""The kernel that executes a study's notebook: its start, its interruption and its death."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import warnings
from contextlib import ExitStack, contextmanager
from typing import IO, TYPE_CHECKING, Any

import nbformat
import papermill
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import ensure_event_loop
from nbclient.exceptions import DeadKernelError
from papermill.engines import NBClientEngine, papermill_engines

from pgservers.files import SHORT, temporary_directory
from pgservers.terminal import JUPYTER_SESSION, Progress, Relay

from . import replaying

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path
    from types import FrameType
    from typing import TextIO

    from pgservers.terminal import LinesOnly
    from pgstudies.run_options import RunOptions


GRACE_S = 60
"""How long an interrupted notebook may take to stop its server."""

START_S = 120
"""How long a kernel may take to start, on a machine that is busy."""

# A socket's path may have 103 bytes on some systems, and this much of it is ours.
_LONGEST_TEMPORARY_PATH = 103 - len("/pgstudies-01234567/kernel-ipc-5")


def execute(
    notebook: Path,
    executed: Path,
    parameters: Mapping[str, Any],
    options: RunOptions,
    terminal: TextIO | LinesOnly,
) -> papermill.PapermillExecutionError | str | None:
    """Execute ``notebook`` into ``executed``, up to the first cell that fails.

    The kernel gets ``options``.  What it writes to stderr goes to ``terminal`` at once, followed by
    a bar over the cells that read the record.  Returns the error of the failed cell, or how the
    kernel died, in words; None if neither happened.  Raises KeyboardInterrupt if a signal ended the
    run.
    """
    relay = Relay(terminal)
    with (
        tempfile.TemporaryFile() as log,
        _place_for_sockets() as place,
        _bar_over_cells(notebook, relay) as reached,
    ):
        kernel = _Kernel(options, log, place, terminal, reached)
        try:
            with quiet(), kernel.interruptible():
                done = papermill.execute_notebook(
                    _unformatted(notebook),
                    _unformatted(executed),
                    dict(parameters),
                    kernel_name="python3",
                    language="python",
                    progress_bar=False,
                    engine_name=_ENGINE,
                    executed=executed,
                    request_save_on_cell_execute=False,  # megabytes, for each of dozens of cells
                    stderr_file=relay,
                    **kernel.options(),
                )
        except papermill.PapermillExecutionError as error:
            return error
        except (DeadKernelError, RuntimeError, TimeoutError) as error:
            return kernel.death(error)
        finally:
            _close_loop_of_thread()
        if kernel.interrupted:
            raise KeyboardInterrupt
        if done.metadata.papermill.exception:  # papermill takes sys.exit() for a success
            return "was told to exit, by sys.exit()"
    return None


def _close_loop_of_thread() -> None:
    """Close the event loop that Jupyter made for this thread."""
    if threading.current_thread() is not threading.main_thread():
        loop = ensure_event_loop()
        if not loop.is_running():
            loop.close()


def _place_for_sockets() -> AbstractContextManager[Path]:
    """A directory that only we can enter, with a path that is short enough for sockets in it."""
    temporary = tempfile.gettempdir()
    short = len(os.fsencode(temporary)) <= _LONGEST_TEMPORARY_PATH
    return temporary_directory(temporary if short else SHORT)


def _unformatted(path: Path) -> str:
    """The path as papermill takes it, which fills in braces as ``str.format`` does."""
    return str(path).replace("{", "{{").replace("}", "}}")


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the logs and warnings of papermill and Jupyter.

    This acts on the whole process: a caller with several threads enters it around all of them.
    """
    loggers = [logging.getLogger(name) for name in ("papermill", "traitlets", "asyncio")]
    before = [(logger, logger.disabled) for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        for logger, disabled in before:
            logger.disabled = disabled


class _Engine(NBClientEngine):  # type: ignore[misc]
    """Papermill's engine, which also writes the notebook when it ends with an error."""

    @classmethod
    def execute_managed_notebook(
        cls, nb_man: Any, kernel_name: str, *, executed: Path, **options: Any
    ) -> None:
        try:
            super().execute_managed_notebook(nb_man, kernel_name, **options)
        finally:
            text = nbformat.writes(nb_man.nb)
            executed.write_text(text, encoding="utf-8")


_ENGINE = "pgstudies"
papermill_engines.register(_ENGINE, _Engine)


@contextmanager
def _bar_over_cells(notebook: Path, stream: Relay) -> Iterator[Callable[[int], None]]:
    """Yields a function that moves a bar to the cell of an index; its first call opens the bar."""
    bar: Progress | None = None
    at = 0
    with ExitStack() as opened:

        def reached(index: int) -> None:
            nonlocal bar, at
            if bar is None:
                cells = len(json.loads(notebook.read_text(encoding="utf-8"))["cells"])
                name, at = f"{notebook.stem}, reading the record", index
                bar = opened.enter_context(Progress(name, cells, index, stream, delay_s=2))
            bar.advance(index - at)
            at = index

        yield reached


class _Kernel:
    """One kernel and its interruption.

    Ctrl-C, SIGTERM and SIGHUP reach this process and not the kernel, which has its own process
    group.  The first signal is passed on to the running cell, so that the study stops its server
    and closes its record.  The second, or the end of ``GRACE_S``, ends the kernel.
    """

    def __init__(
        self,
        options: RunOptions,
        log: IO[bytes],
        place: Path,
        terminal: TextIO | LinesOnly,
        reached: Callable[[int], None],
    ) -> None:
        self.interrupted = False
        self._options = options
        self._replies = options.reply()
        self._log = log
        self._place = place
        self._terminal = terminal
        self._reached = reached  # called before each cell that reads the record
        self._process: subprocess.Popen[bytes] | None = None
        self._shut_down_at: int | None = None  # the size of its log when we ended it
        self._loop: asyncio.AbstractEventLoop | None = None  # while a cell is executed

    def options(self) -> dict[str, Any]:
        """The arguments that papermill passes to its notebook client."""
        return {
            "kernel_manager_class": self._manager(),
            "on_cell_start": self._before_cell,
            "on_cell_execute": self._begin_cell,
            "on_cell_executed": self._end_cell,
            "coalesce_streams": True,  # of a progress bar, keep the last state only
            "iopub_timeout": 120,  # a kernel that shares a core with a busy server answers late
            "start_timeout": START_S,
        }

    def death(self, error: Exception) -> str:
        """How the kernel ended, in words; ``error`` is the notebook client's."""
        self._log.seek(0)
        written = self._log.read(-1 if self._shut_down_at is None else self._shut_down_at)
        words = (written.decode(errors="replace").strip().splitlines() or [str(error)])[-1]
        status = self._process.poll() if self._process and self._shut_down_at is None else None
        if status is None:
            return f"did not answer: {words}"
        if status >= 0:
            return f"ended with status {status}: {words}"
        name = signal.Signals(-status).name
        why = ", as Linux does when memory runs out" if name == "SIGKILL" else ""
        return f"was killed by {name}{why}"

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Pass signals on to the kernel, in the main thread, which alone gets them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        wanted = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup sets it
            wanted.append(signal.SIGHUP)
        before = {number: signal.signal(number, self._interrupt) for number in wanted}
        before[signal.SIGALRM] = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            yield
        finally:
            signal.alarm(0)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _manager(self) -> type[AsyncKernelManager]:
        kernel = self

        class Manager(AsyncKernelManager):
            """Starts the kernel of this interpreter, whatever kernels the user has installed.

            It is reached by sockets: a port may be taken between its choice and its use by the
            kernel, which then hangs.
            """

            def __init__(self, **traits: Any) -> None:
                own = {"transport": "ipc", "connection_file": str(kernel._place / "kernel.json")}
                super().__init__(**(traits | own))

            @property
            def kernel_spec(self) -> KernelSpec:
                # Without -P, modules in the working directory, which may be a record, would be
                # imported instead of installed ones; IPython before 9.7 needs the option as well.
                module = replaying.__name__ if kernel._options.replay else "ipykernel_launcher"
                own = [sys.executable, "-P", "-m", module, "--InteractiveShellApp.ignore_cwd=True"]
                return KernelSpec(
                    argv=[*own, "-f", "{connection_file}"],
                    display_name="Python 3",
                    language="python",
                    env={"PYDEVD_DISABLE_FILE_VALIDATION": "1"},  # no debugger comes here
                )

            async def _async_launch_kernel(self, kernel_cmd: list[str], **kw: Any) -> None:
                given = kw.get("env", os.environ) | kernel._options.environment()
                # Its progress goes to the terminal, also if that is a cell of JupyterLab.
                kw["env"] = {k: given[k] for k in given if k != JUPYTER_SESSION}
                await super()._async_launch_kernel(kernel_cmd, stderr=kernel._log, **kw)
                kernel._process = getattr(self.provisioner, "process", None)

            async def shutdown_kernel(  # type: ignore[override]
                self, now: bool = False, restart: bool = False
            ) -> None:
                kernel._shut_down_at = os.fstat(kernel._log.fileno()).st_size
                await super().shutdown_kernel(now, restart)

        return Manager

    def _before_cell(self, cell_index: int, **_: object) -> None:
        if self.interrupted:  # the kernel ignores a signal that comes between two cells
            raise KeyboardInterrupt
        if self._replies and self._replies.record:
            self._reached(cell_index)

    def _begin_cell(self, **_: object) -> None:
        self._loop = asyncio.get_running_loop()

    def _end_cell(self, **_: object) -> None:
        self._loop = None

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self.interrupted or self._loop is None or self._process is None:
            self.interrupted = True
            raise KeyboardInterrupt
        self.interrupted = True
        # Not at once: this may interrupt a write to the terminal.
        self._loop.call_soon_threadsafe(self._pass_on, self._process)

    def _pass_on(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGINT)
        signal.alarm(GRACE_S)
        self._terminal.write(
            "\nStopping the server and closing the record; Ctrl-C again stops at once.\n"
        )
        self._terminal.flush()
