"""Measuring a study as its notebook asks: all its blocks, or a record that is read instead.

Here, where a notebook enters, the environment is read; everything below takes arguments.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pgservers.errors import Interrupted
from pgservers.files import sweep_temporary
from pgservers.host.exclusive import only_one_here
from pgservers.host.gate import gate
from pgservers.paths import run_dir
from pgservers.servers.leftovers import sweep
from pgservers.terminal import notice

from ..records.reading import find_record, read_record
from ..records.writing import mark_read, unread
from ..run_options import RunOptions
from .design import Design
from .session import session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgservers.host.gate import Finding

    from ..records.reading import Record
    from .session import Measurement


def measure(what: Measurement) -> Record:
    """Run every arm in every block and return the record; a run cut short is continued.

    In every block all arms are started anew, each on an instance of its own, and take turns in
    random order, with a second copy of the baseline (the A/A pair).  If the environment says so
    (see ``run_options``), a record is read instead.  Waits for others who measure on this host.

    Raises as ``session`` does; StudyError if the baseline cannot run; ServerDied; Interrupted.
    """
    options = RunOptions.given()
    if options.replay:
        record = read_record(find_record(what.study, options.replay))
    else:
        numbers = range(1, what.parameters["blocks"] + 1)
        design = Design(study=what.study, arms=tuple(what.arms), fresh=options.fresh)
        with (
            measuring_here(f"the study {what.study}") as findings,
            session(what, design, options, findings=findings) as measured,
        ):
            whole = None if design.fresh else unread(what.study, measured.mark, numbers)
            if whole is not None:
                notice(f"Continuing {whole}: all of its blocks are done.")
            else:
                measured.begin(len(numbers))
                for number in numbers:
                    if number not in measured.finished:
                        measured.block(number)
                measured.finish(to_be_read=bool(options.replies))
        record = read_record(whole or measured.records[-1])
        if not options.replies:
            mark_read(record.path)
    if (replies := options.reply()) is not None:
        replies.tell_record(record.path)
    return record


@contextmanager
def measuring_here(what: str) -> Iterator[list[Finding]]:
    """Lock this host for measuring and remove leftovers of dead runs; returns the gate's findings.

    ``what`` is shown to processes that wait.  KeyboardInterrupt becomes Interrupted.
    """
    try:
        with only_one_here(what):
            sweep_temporary()
            if run_dir().is_dir():
                for path in sweep(run_dir()):
                    notice(f"Removed what a run that died had left: {path}.")
            findings = gate(run_dir())
            for finding in findings:
                notice(f"Before measuring: {finding.sentence}")
            yield findings
    except KeyboardInterrupt:
        raise Interrupted from None
