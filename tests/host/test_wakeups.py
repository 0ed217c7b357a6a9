"""What waking a process takes: it is measured, leaves no trace, and is told where it is not."""

from __future__ import annotations

import os

import psutil
import pytest

from pgservers.errors import CannotRun
from pgservers.host.wakeups import wake_up_seconds


@pytest.mark.parametrize("same_core", [True, False])
def test_a_wake_up_takes_time_and_leaves_nothing(*, same_core: bool) -> None:
    cores, children = os.sched_getaffinity(0), psutil.Process().children()
    if not same_core and len(cores) < 2:
        pytest.skip("there is one core")
    assert 0 < wake_up_seconds(same_core=same_core, trips=20) < 1
    assert os.sched_getaffinity(0) == cores
    assert psutil.Process().children() == children


def test_a_system_with_one_core_or_that_binds_no_process_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    with pytest.raises(CannotRun, match="one core"):
        wake_up_seconds(same_core=False)
    monkeypatch.delattr(os, "sched_setaffinity")
    with pytest.raises(CannotRun, match="cannot be bound"):
        wake_up_seconds(same_core=True)


def test_an_echo_that_dies_is_an_error_and_not_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgservers.host.wakeups._ECHO", "raise SystemExit(1)")
    cores = os.sched_getaffinity(0)
    with pytest.raises(CannotRun, match="ended"):
        wake_up_seconds(same_core=True, trips=5)
    assert os.sched_getaffinity(0) == cores
