"""A slow disk and a small memory: no more than allowed, and nothing left behind."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pgstudies.errors import CannotRun
from pgstudies.host import cgroups, disks
from pgstudies.host.cgroups import limits_on, reason_no_limits
from pgstudies.measuring._design import Arm
from pgstudies.measuring._trial import Trial
from pgstudies.servers._serve import serve
from pgstudies.servers.limits import limited
from tests.servers_at_hand import BUILDER, dsn_of, make_table

if TYPE_CHECKING:
    from pgstudies.servers.owned import OwnedServer

ROWS = 4000  # one to a page


@pytest.fixture
def owned(owned_on_disk: OwnedServer) -> OwnedServer:
    return owned_on_disk


def groups(postmaster_pid: int) -> list[Path]:
    return [*Path("/sys/fs/cgroup").glob(f"**/pgstudies-{postmaster_pid}")]


@pytest.fixture
def able(owned: OwnedServer) -> None:
    reason = owned.capabilities.reason("limits")
    if reason:
        pytest.skip(reason)


@pytest.mark.root
@pytest.mark.usefixtures("able")
def test_reads_take_at_least_the_time_they_are_given(owned: OwnedServer) -> None:
    def build() -> None:
        with owned.connect() as connection:
            make_table(connection, "wide", ROWS)
            connection.execute("CREATE INDEX wide_i ON wide(i)")

    owned.restore("for the throttle", build)
    query = "SELECT count(d) FROM wide WHERE i IN (SELECT g * 40 FROM generate_series(1, 60) g)"
    with Trial(owned, Arm("plain"), block=1) as trial:
        assert trial.make_cold("wide", step="select")
        with limited(owned, reads_per_second=100):
            assert len(groups(owned.postmaster_pid)) == 1
            begin = time.monotonic()
            trial.timed("select", query)
            took = time.monotonic() - begin
            # Sessions opened meanwhile are bound as well.
            with owned.connect() as other:
                text = Path(f"/proc/{other.info.backend_pid}/cgroup").read_text()
                assert f"pgstudies-{owned.postmaster_pid}" in text
        metrics = {row[8]: row[9] for row in trial.rows}
    assert metrics["read_bytes"] >= 60 * 8192
    # The one clock in the tests: at 100 a second, 60 reads cannot be answered any sooner. The
    # kernel lets a tenth of a second's worth pass at once.
    assert took > 0.4
    assert groups(owned.postmaster_pid) == []


@pytest.mark.root
@pytest.mark.usefixtures("able")
def test_an_error_meanwhile_takes_the_limit_away(owned: OwnedServer) -> None:
    owned.restore("empty", lambda: None)
    with pytest.raises(KeyboardInterrupt), limited(owned, reads_per_second=100):
        raise KeyboardInterrupt
    assert groups(owned.postmaster_pid) == []


@pytest.mark.root
@pytest.mark.usefixtures("able")
def test_a_server_that_stops_meanwhile_leaves_no_group(owned: OwnedServer) -> None:
    owned.restore("empty", lambda: None)
    pid = owned.postmaster_pid
    with limited(owned, reads_per_second=100):
        owned.stop()
    owned.start()
    assert groups(pid) == []


def test_an_external_server_is_left_alone(stranger: OwnedServer) -> None:
    with serve(dsn_of(stranger, BUILDER)) as server:
        assert "external server" in str(server.capabilities.reason("limits"))
        with pytest.raises(CannotRun, match="external server"), limited(server, memory_bytes=1):
            pass


def test_a_system_without_cgroups_says_so(owned: OwnedServer, tmp_path: Path) -> None:
    reason = reason_no_limits(owned.data_directory, owned.postmaster_pid, tmp_path)
    assert reason is not None
    assert "no cgroups that limit reads and memory" in reason


def test_files_on_no_disk_of_this_machine_cannot_be_slow(
    owned: OwnedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "DEVICES", tmp_path)
    assert "not on a disk" in str(reason_no_limits(owned.data_directory, owned.postmaster_pid))


def test_version_2_is_asked_in_its_own_words(
    owned: OwnedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against files that stand for the kernel's: there is no version 2 with limits here."""
    (tmp_path / "cgroup.controllers").write_text("cpu io memory")
    (tmp_path / "cgroup.subtree_control").write_text("")
    monkeypatch.setattr(cgroups, "_device_of", lambda _: "254:0")
    monkeypatch.setattr(cgroups, "_remove", lambda _: None)
    where = owned.data_directory, owned.postmaster_pid, owned.pids
    pace = {"iops": 321, "bps": 10**6}
    with limits_on(*where, pace=pace, memory_bytes=2**28, root=tmp_path):
        group = tmp_path / f"pgstudies-{owned.postmaster_pid}"
        assert (group / "io.max").read_text() == "254:0 riops=321 rbps=1000000"
        assert (group / "memory.max").read_text() == str(2**28)
        assert (group / "cgroup.procs").read_text() in map(str, owned.pids())
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+io +memory"


@pytest.mark.root
@pytest.mark.usefixtures("able")
def test_a_small_memory_does_not_keep_a_large_table(owned: OwnedServer) -> None:
    def build() -> None:
        with owned.connect() as connection:
            make_table(connection, "large", 12000)

    owned.restore("for a small memory", build, {"shared_buffers": "2MB"})
    with Trial(owned, Arm("plain"), block=1) as trial:
        assert trial.make_cold("large", step="count")
        with limited(owned, memory_bytes=48 * 2**20):
            for iteration in (1, 2):
                trial.timed("count", "SELECT count(*) FROM large", iteration=iteration)
        read = [row[9] for row in trial.rows if row[8] == "read_bytes"]
    assert read[0] >= 12000 * 8192
    assert read[1] > 0.3 * 12000 * 8192  # with memory enough it would be nothing


def test_a_group_of_a_run_that_was_killed_is_removed(tmp_path: Path) -> None:
    (tmp_path / "pgstudies-1").mkdir()
    (tmp_path / "somebody").mkdir()
    cgroups._remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["somebody"]
