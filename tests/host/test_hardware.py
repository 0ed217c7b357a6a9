"""The processor's own count of instructions, where it is to be had."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from pgapps.counting.counter import instructions
from pgapps.counting.units import Unit
from pgapps.counting.valgrind import reason_no_valgrind
from pgservers.errors import CannotRun
from pgservers.host import hardware
from pgservers.host.hardware import InstructionCounter, reason_no_counter
from pgstudies.measuring import trial as _trial
from pgstudies.measuring.arms import Arm
from pgstudies.measuring.trial import Trial
from tests.made_up import rows_of

if TYPE_CHECKING:
    from pgservers.servers.managed import ManagedServer

LOOP = "DO $$BEGIN FOR i IN 1..{} LOOP PERFORM md5('x'); END LOOP; END$$"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (errno.ENOENT, "^the processor's counters are not available"),
        (errno.EACCES, r"^the kernel does not allow it \(kernel.perf_event_paranoid is \S+: "),
        (errno.ENOSYS, "^the kernel does not count them: Function not implemented$"),
    ],
)
def test_the_kernel_says_no_in_words(
    monkeypatch: pytest.MonkeyPatch, code: int, reason: str
) -> None:
    monkeypatch.setattr("ctypes.get_errno", lambda: code)
    monkeypatch.setattr(hardware, "_HARDWARE", 999)  # no such kind of event
    with pytest.raises(CannotRun, match=reason):
        InstructionCounter(os.getpid())


def test_on_another_system_it_says_where_it_would_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert "on Linux only" in str(reason_no_counter())


def test_an_event_of_the_kernel_is_read_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_HARDWARE", 1)  # of software, where 1 is the task's clock in ns
    reason = reason_no_counter()
    if reason:
        pytest.skip(reason)
    counter = InstructionCounter(os.getpid())
    first = counter.read()
    used = os.times().user
    while os.times().user < used + 0.05:
        pass
    assert counter.read() - first > 0.04e9
    counter.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        counter.read()


class _Counting:
    """One more thousand at every look; ``still_open`` are the backends it counts."""

    still_open: list[int]

    def __init__(self, pid: int) -> None:
        self.pid, self.count = pid, 0
        self.still_open.append(pid)

    def read(self) -> float:
        self.count += 1000
        return self.count

    def close(self) -> None:
        self.still_open.remove(self.pid)


def test_a_timed_statement_has_its_instructions_beside_its_cpu_time(
    managed: ManagedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Counting, "still_open", [], raising=False)
    monkeypatch.setattr(_trial, "InstructionCounter", _Counting)
    with Trial(managed, Arm("a", "an arm"), block=1) as trial:
        assert _Counting.still_open == [trial.connection.info.backend_pid]
        trial.timed("one", "SELECT 1")
        trial.repeated("ten", "SELECT 1", 10)
        trial.each("two", ["SELECT 1"] * 2)
        with trial.measuring("others", other_sessions=True):
            pass
    assert _Counting.still_open == []
    found = {
        row["step"]: (row["value"], row["unit"])
        for row in rows_of(trial)
        if row["metric"] == "instructions"
    }
    assert found == {
        "one": (1000, "instructions"),
        "ten": (100, "instructions"),
        "two": (500, "instructions"),
    }


def test_without_a_counter_everything_else_is_recorded(
    managed: ManagedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise CannotRun("no")

    monkeypatch.setattr(_trial, "InstructionCounter", refuse)
    with Trial(managed, Arm("a", "an arm"), block=1) as trial:
        trial.timed("one", "SELECT 1")
    metrics = {row["metric"] for row in rows_of(trial)}
    assert "instructions" not in metrics
    assert {"duration_s", "cpu_s", "buffers_hit"} <= metrics


@pytest.mark.skipif(bool(reason_no_counter()), reason=str(reason_no_counter()))
@pytest.mark.skipif(bool(reason_no_valgrind()), reason=str(reason_no_valgrind()))
def test_processor_and_valgrind_agree_within_a_hundredth(managed: ManagedServer) -> None:
    looped = Unit("looped", (LOOP.format("current_setting('pgstudies.n')::int"),), (2000, 4000))
    counted = instructions(looped, server="embedded", top=0)["inclusive"].item()
    with Trial(managed, Arm("a", "an arm"), block=1) as trial:
        for times in (2000, 4000, 2000, 4000):
            trial.timed(str(times), LOOP.format(times))
    executed = {
        row["step"]: row["value"] for row in rows_of(trial) if row["metric"] == "instructions"
    }
    assert (executed["4000"] - executed["2000"]) / 2000 == pytest.approx(counted, rel=0.01)
