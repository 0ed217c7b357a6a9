"""What is recorded of the machine while a trial runs, and what is said where it does not tell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pgstudies.measuring import _steadiness as steadiness
from pgstudies.measuring._steadiness import frequency_mhz, watched
from pgstudies.servers import Capabilities

if TYPE_CHECKING:
    from pathlib import Path


class Stranger:
    """A trial on a server that is not ours, as far as it is needed here."""

    def __init__(self) -> None:
        self.server = SimpleNamespace(
            capabilities=Capabilities({"processes": "an external server"}, frozenset(), None)
        )
        self.connection = SimpleNamespace(info=SimpleNamespace(backend_pid=-1))
        self.recorded: dict[str, list[float]] = {}
        self.left_out: dict[str, str] = {}

    def record(self, step: str, metric: str, value: float, unit: str, **_: Any) -> None:
        assert (step, bool(unit)) == ("machine", True)
        self.recorded.setdefault(metric, []).append(value)

    def leave_out(self, step: str, case: str, reason: str) -> None:
        self.left_out[step + case] = reason


@pytest.fixture
def trial() -> Any:
    return Stranger()


def test_a_loop_is_timed_once_in_every_turn(trial: Any) -> None:
    with watched(trial) as time_loop:
        assert trial.recorded == {}
        for turn in range(1, 4):
            time_loop()
            assert len(trial.recorded["spin_s"]) == turn
    assert len(trial.recorded["spin_s"]) == 3
    assert all(0 <= share < 1 for share in trial.recorded["waited"])
    assert len(trial.recorded["waited"]) == 3


def test_switches_of_our_own_process_are_counted_where_the_server_is_not_ours(trial: Any) -> None:
    with watched(trial):
        pass
    assert trial.recorded["switches_per_s"][0] >= 0
    assert trial.recorded["involuntary_per_s"][0] >= 0


def test_what_the_machine_does_not_tell_is_left_out_and_never_zero(
    trial: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steadiness, "stolen_share", lambda *_: None)
    monkeypatch.setattr(steadiness, "frequency_mhz", lambda: None)
    with watched(trial):
        pass
    assert trial.recorded.keys().isdisjoint({"stolen", "frequency_mhz"})
    assert trial.left_out == {
        "stolen": "this system does not tell how much time its host took",
        "frequency_mhz": "this system does not tell the clock of its cores",
    }


def test_what_it_tells_is_recorded(trial: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steadiness, "stolen_share", lambda *_: 0.25)
    monkeypatch.setattr(steadiness, "frequency_mhz", lambda: 3000.0)
    with watched(trial):
        pass
    assert trial.recorded["stolen"] == [0.25]
    assert trial.recorded["frequency_mhz"] == [3000.0]
    assert trial.left_out == {}


def test_a_clock_that_the_kernel_does_not_measure_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(current=2600.0)
    monkeypatch.setattr("pgstudies.measuring._steadiness.psutil.cpu_freq", lambda: clock)
    assert frequency_mhz(tmp_path) is None
    measured = tmp_path / "cpu0" / "cpufreq" / "scaling_cur_freq"
    measured.parent.mkdir(parents=True)
    measured.write_text("2600000\n")
    assert frequency_mhz(tmp_path) == 2600.0
