"""One block, measured in a process of its own, and put into the ledger; what a worker starts.

The process reads what to do from its standard input, one line of JSON, and takes the end of that
input for the death of its worker: then it stops its server and ends.
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
from pgservers.files import space_error
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
"""How long a ledger that does not answer is tried again (s), or ``$PGSTUDIES_PATIENCE_S``."""

DEATH_S = 90.0
"""How long this process may take to end itself after its worker's death."""


def carry_out(request: dict[str, Any]) -> None:
    """Measure a block, unless the ledger has it, and put it into the ledger.

    ``request`` has block (study, cell, host, number), profile, server, parameters, ledger, and
    states: the directory where blocks leave each other prepared states, or nothing.  A block that
    cannot be put is kept below ``records_dir()`` and put the next time.  Raises StudyError as
    ``session`` does, SpaceError when the ledger has no room for the block.
    """
    block = SweepBlock(**request["block"])
    ledger = Ledger(request["ledger"])
    mark = hashlib.sha256(ledger.url.encode()).hexdigest()[:12]  # another ledger wants its own
    kept = records_dir() / ".sweep" / "unsent" / mark / block.path
    if not kept.exists():
        if _patiently(lambda: block in ledger, ledger):
            return
        with scratch(records_dir() / ".sweep") as place:
            content = _measured(block, request, place)
            kept.parent.mkdir(parents=True, exist_ok=True)
            aside = kept.with_suffix(".tmp")
            aside.write_bytes(content)
            aside.replace(kept)
    content = kept.read_bytes()
    _patiently(lambda: ledger.put(block, content), ledger)
    kept.unlink()


def _measured(block: SweepBlock, request: dict[str, Any], place: Path) -> bytes:
    os.environ["PGSTUDIES_RECORDS"] = str(place)
    planned = plan(
        block.study,
        profile=request["profile"],
        server=request["server"] or None,
        parameters=request["parameters"],
        usual_server=RunOptions.given().server,  # this is where a worker's process begins
    )
    options = RunOptions(
        server=planned.server.text,
        profile=request["profile"],
        states=request["states"],
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
    """The ledger's answer; retries if it does not answer, and raises its other errors at once."""
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
    for _ in range(2):  # the second does not wait for the server to stop
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(DEATH_S)
    os._exit(1)


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Carry out a request from stdin; returns the exit code, with an error's sentence on stdout."""
    line = bytearray()
    source = sys.stdin.fileno()
    while not line.endswith(b"\n"):
        line += os.read(source, 1) or b"\n"
    signal.signal(signal.SIGTERM, _stop)
    threading.Thread(target=_end_with_worker, args=[source], daemon=True).start()
    try:
        carry_out(json.loads(line))
    except StudyError as error:
        tell(str(error))
        return error.exit_code
    except OSError as error:
        found = space_error(error, records_dir())
        if not isinstance(found, StudyError):
            raise
        tell(str(found))
        return found.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
