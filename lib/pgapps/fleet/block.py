"""The process that a worker starts for each block: it measures the block and stores it.

It reads its request, one line of JSON, from standard input.  The end of that input means that the
worker died: the process then stops its server and exits.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from pgservers.errors import SpaceError, StudyError
from pgservers.files import space_error, write_file
from pgservers.paths import records_dir
from pgservers.servers.leftovers import scratch
from pgservers.terminal import tell
from pgstudies.measuring.design import Design
from pgstudies.measuring.measure import measuring_here
from pgstudies.measuring.session import session
from pgstudies.records.reading import read_record
from pgstudies.run_options import RunOptions

from ..execution.cells import measurement_of
from ..execution.plan import plan
from .ledger import Ledger, SweepBlock, packed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


PATIENCE_S = 600.0
"""How long to retry a ledger that does not answer (s), unless ``$PGSTUDIES_PATIENCE_S`` is set."""

DEATH_S = 90.0
"""How long this process may take to stop after its worker died (s)."""


def carry_out(request: dict[str, Any]) -> None:
    """Measure a block that the ledger lacks, and put it into the ledger.

    ``request`` has block (study, cell, host, number), profile, server, parameters, ledger, and
    states: the directory of prepared states that blocks share, or an empty text.  A block that
    cannot be put is kept below ``records_dir()`` and put the next time.  Raises StudyError as
    ``session`` does, SpaceError if there is no room for the block.
    """
    block = SweepBlock(**request["block"])
    ledger = Ledger(request["ledger"])
    mark = hashlib.sha256(ledger.url.encode()).hexdigest()[:12]  # a kept block has one ledger
    kept = records_dir() / ".sweep" / "unsent" / mark / block.path
    if not kept.exists():
        if _patiently(lambda: block in ledger, ledger):
            return
        with scratch(records_dir() / ".sweep") as place:
            write_file(kept, _measured(block, request, place))
    content = kept.read_bytes()
    _patiently(lambda: ledger.put(block, content), ledger)
    kept.unlink()


def _measured(block: SweepBlock, request: dict[str, Any], place: Path) -> bytes:
    os.environ["PGSTUDIES_RECORDS"] = str(place)
    planned = plan(
        block.study,
        profile=request["profile"],
        server=request["server"],
        parameters=request["parameters"],
        usual_server=RunOptions.given().server,  # this is where a worker's process begins
    )
    options = RunOptions(
        server=planned.server.text, profile=request["profile"], states=request["states"]
    )
    what = measurement_of(planned)
    design = Design(study=block.study, arms=tuple(what.arms))
    with (
        measuring_here(f"the study {block.study}") as findings,
        session(what, design, options, findings=findings) as measured,
    ):
        measured.begin(1)
        measured.block(block.number)
    record = read_record(measured.records[-1])
    return packed(record.info, record.samples)


def _patiently(ask: Callable[[], bool], ledger: Ledger) -> bool:
    """The ledger's answer, retried while it does not answer; a StudyError is raised at once."""
    until = time.monotonic() + float(os.environ.get("PGSTUDIES_PATIENCE_S", PATIENCE_S))
    pause = 0.5
    while True:
        try:
            return ask()
        except StudyError:
            raise
        except Exception as error:  # whatever the client of a store raises
            if time.monotonic() > until:
                raise SpaceError(
                    f"The ledger {ledger.url} does not answer ({type(error).__name__}: {error}); "
                    f"what was measured is kept on this host and stored there the next time."
                ) from error
            tell(f"Waiting: the ledger {ledger.url} does not answer.", err=True)
        time.sleep(pause)
        pause = min(2 * pause, 30.0)


def _end_with_worker(source: int) -> None:
    # Not through sys.stdin: a thread that waits in it keeps the interpreter from ending.
    while os.read(source, 4096):
        pass
    for _ in range(2):  # the second signal does not wait for the server to stop
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(DEATH_S)
    os._exit(1)


def main() -> int:
    """Carry out the request on stdin; returns the exit code, and prints an error on stdout."""
    line = bytearray()
    source = sys.stdin.fileno()
    while not line.endswith(b"\n"):
        line += os.read(source, 1) or b"\n"
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # which raises KeyboardInterrupt
    threading.Thread(target=_end_with_worker, args=[source], daemon=True).start()
    try:
        carry_out(json.loads(line))
    except (StudyError, OSError) as error:
        told = space_error(error, records_dir()) if isinstance(error, OSError) else error
        if told is None:
            raise
        tell(str(told))
        return told.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
