"""A slow disk and a small memory: no more than allowed, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgservers.errors import CannotRun, StudyError
from pgservers.host import cgroups, disks
from pgservers.host.cgroups import limits_on, reason_no_limits
from pgservers.paths import EXTENSIONS
from pgservers.programs.compilers import find_compiler
from pgservers.programs.slow_disk import Scheduler, SlowDisk
from pgservers.servers.limits import accounted, limited
from pgservers.servers.serve import serve
from pgstudies.measuring.arms import Arm
from pgstudies.measuring.trial import Trial
from tests.conftest import own_base
from tests.made_up import rows_of
from tests.servers_at_hand import BUILDER, dsn_of, embedded, make_table, skip_but_not_in_ci

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgservers.servers.managed import ManagedServer

ROWS = 4000  # one to a page


# Modelled limits


@pytest.fixture(scope="module")
def modelled(run_base: Path) -> Iterator[ManagedServer]:
    assert run_base.exists()
    with embedded({"fsync": "off", "shared_buffers": "2MB"}, "modelled") as server:
        reason = server.capabilities.reason("limits")
        if reason:
            skip_but_not_in_ci(reason)
        yield server


@pytest.fixture
def wide(modelled: ManagedServer) -> ManagedServer:
    """The server with a table of 31 MB and nothing of it in its buffers."""

    def build() -> None:
        with modelled.connect() as connection:
            make_table(connection, "wide", ROWS)
            connection.execute("CREATE INDEX wide_i ON wide(i)")

    modelled.restore("wide", build)
    with modelled.connect() as connection:  # the catalog's pages, of which no limit is wanted
        connection.execute("SELECT count(*) FROM wide WHERE i < 0")
    return modelled


def read_of(server: ManagedServer, query: str = "SELECT count(d) FROM wide") -> float:
    """Pages that the modelled disk reads for a statement."""
    with Trial(server, Arm("plain"), block=1) as trial:
        trial.execute("SET max_parallel_workers_per_gather = 0")
        trial.timed("select", query)
        read = next(row["value"] for row in rows_of(trial) if row["metric"] == "read_bytes")
    return float(read) / 8192


def disk_of(server: ManagedServer) -> SlowDisk:
    assert server.slow_disk is not None
    return server.slow_disk


FEW = 256
"""Pages of the catalog that a session may read besides, or of the table that are in its buffers."""


def test_what_the_modelled_disk_reads(wide: ManagedServer) -> None:
    """A page once, nothing that a statement spills, and nothing without limits."""
    before = disk_of(wide).bytes_read
    with wide.connect() as connection:
        connection.execute("SELECT count(d) FROM wide")
    assert disk_of(wide).bytes_read == before
    spilled = "SELECT count(*) FROM (SELECT repeat('y', 1000) FROM generate_series(1, 30000)) q(y)"
    with limited(wide, bytes_per_second=10**9):
        assert ROWS - FEW <= read_of(wide) <= ROWS + FEW
        assert read_of(wide) <= FEW
        assert read_of(wide, f"{spilled} GROUP BY y || random() LIMIT 1") <= FEW


def test_a_small_modelled_memory_does_not_keep_a_large_table(wide: ManagedServer) -> None:
    with limited(wide, memory_bytes=ROWS * 8192 // 2):
        assert ROWS - FEW <= read_of(wide) <= ROWS + FEW
        assert ROWS - FEW <= read_of(wide) <= ROWS + FEW
    with limited(wide, memory_bytes=ROWS * 8192 * 2):
        assert read_of(wide) >= ROWS - FEW  # each limit begins with an empty cache
        assert read_of(wide) <= FEW


def test_the_modelled_disk_is_as_slow_as_it_is_told(wide: ManagedServer) -> None:
    """A lower bound, which no busy machine breaks."""
    begin = time.monotonic()
    with limited(wide, bytes_per_second=50 * 10**6):
        read_of(wide)
    assert time.monotonic() - begin >= ROWS * 8192 / 50e6
    sixty = "SELECT count(d) FROM wide WHERE i IN (SELECT g * 60 FROM generate_series(1, 60) g)"
    begin = time.monotonic()
    with limited(wide, reads_per_second=200):
        # What is read here and there has no read-ahead.
        assert 60 <= read_of(wide, sixty) < ROWS / 2
    assert time.monotonic() - begin >= 60 / 200


def test_an_answer_of_the_modelled_disk_is_on_its_way_for_the_latency(wide: ManagedServer) -> None:
    disk = disk_of(wide)
    before, begin = disk.busy_s, time.monotonic()
    with limited(wide, bytes_per_second=10**9, latency_s=0.02):
        read_of(wide, "SELECT d FROM wide WHERE ctid = '(3000,1)'")
    assert time.monotonic() - begin >= 0.2  # a new session reads some sixty pages of the catalogs
    assert disk.busy_s - before < 0.1  # it is at work only while it reads


def test_sessions_and_servers_begun_meanwhile_are_limited(wide: ManagedServer) -> None:
    with limited(wide, memory_bytes=ROWS * 8192 * 2):
        assert read_of(wide) >= ROWS - FEW
        wide.restart()
        assert read_of(wide) <= FEW
    assert not disk_of(wide).limited


def test_each_server_has_a_modelled_disk_of_its_own(wide: ManagedServer) -> None:
    with wide.another() as other:
        other.restore("wide", lambda: None)
        with limited(other, bytes_per_second=10**9):
            before = disk_of(wide).bytes_read
            assert read_of(other) >= ROWS - FEW
        assert disk_of(wide).bytes_read == before


def test_a_session_killed_while_it_waits_leaves_the_disk_to_others(wide: ManagedServer) -> None:
    with limited(wide, bytes_per_second=2 * 10**6):
        with wide.connect() as doomed, ThreadPoolExecutor(1) as pool:
            scan = pool.submit(doomed.execute, "SELECT count(d) FROM wide")
            time.sleep(0.2)
            os.kill(doomed.info.backend_pid, signal.SIGKILL)
            with pytest.raises(psycopg.OperationalError):
                scan.result()
        wide.stop("immediate")
    wide.start()
    with limited(wide, bytes_per_second=10**9):
        assert read_of(wide) >= ROWS - FEW


def test_a_program_that_the_server_starts_knows_of_no_modelled_disk(
    modelled: ManagedServer,
) -> None:
    file = modelled.workplace / "environment"
    with modelled.connect() as connection:
        connection.execute(f"COPY (SELECT 1) TO PROGRAM 'env > {file}'")
    assert "LD_PRELOAD" in file.read_text()
    assert "PGSTUDIES_SLOW_DISK" not in file.read_text()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"reads_per_second": 0}, "reads_per_second is 0: give a number above 0"),
        ({"bytes_per_second": -5}, "bytes_per_second is -5: give a number above 0"),
        ({"memory_bytes": 0}, "memory_bytes is 0: give a number above 0"),
        ({"seek_s": -0.001}, "seek_s is -0.001: give a number above 0"),
        ({"latency_s": 0}, "latency_s is 0: give a number above 0"),
        ({"drive_bytes": -1}, "drive_bytes is -1: give 0 or more"),
        ({"scheduler": Scheduler(0, 0.01)}, "slice_s is 0: give a number above 0"),
        ({"scheduler": Scheduler(0.1, -1)}, "idle_s is -1: give a number above 0"),
    ],
)
def test_a_limit_is_a_positive_number(
    modelled: ManagedServer, wrong: dict[str, Any], words: str
) -> None:
    with pytest.raises(StudyError, match=words), limited(modelled, **wrong):
        pass


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"io_method": "io_uring"}, "io_uring bypasses a modelled disk"),
        ({"debug_io_direct": "data, wal"}, "direct I/O .* bypasses a modelled page cache"),
    ],
)
def test_reads_that_pass_the_model_by_are_refused(
    modelled: ManagedServer, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], words: str
) -> None:
    monkeypatch.setattr(modelled, "_more", settings)  # not every machine starts with these
    with pytest.raises(CannotRun, match=words), limited(modelled, memory_bytes=10**7):
        pass


def test_a_server_is_limited_once_at_a_time_and_within_its_table_of_pages(
    modelled: ManagedServer,
) -> None:
    with pytest.raises(CannotRun, match="at most 16 GB"), limited(modelled, memory_bytes=2**35):
        pass
    with (
        limited(modelled, memory_bytes=10**7),
        pytest.raises(CannotRun, match="limited already"),
        limited(modelled, memory_bytes=10**7),
    ):
        pass


# Seeks, a scheduler, and the account


DRIVE: dict[str, Any] = {"seek_s": 0.01, "bytes_per_second": 80 * 10**6}
SCATTERED = [3000, 100, 2000, 101, 1500, 600]
CFQ = Scheduler(slice_s=0.1, idle_s=0.008)


def page(number: int) -> str:
    return f"SELECT d FROM wide WHERE ctid = '({number},1)'"


def taken(server: ManagedServer, *queries: str) -> tuple[int, int, float]:
    """Bytes, seeks and seconds that statements of one session take of the modelled disk."""
    disk = disk_of(server)
    with server.connect() as connection:
        connection.execute("SET max_parallel_workers_per_gather = 0")
        for query in queries:  # planned before, so that nothing of the catalog is read
            connection.execute(f"EXPLAIN {query}")
        before = disk.bytes_read, disk.seeks, disk.busy_s
        for query in queries:
            connection.execute(query)
        read, seeks = disk.bytes_read - before[0], disk.seeks - before[1]
        return read, seeks, disk.busy_s - before[2]


@pytest.mark.parametrize(
    ("pages", "read", "seeks"),
    [(SCATTERED, len(SCATTERED), len(SCATTERED)), ([500, 501, 500], 2, 1)],
    ids=["scattered", "one that follows"],
)
def test_pages_take_a_seek_each_unless_they_follow(
    wide: ManagedServer, pages: list[int], read: int, seeks: int
) -> None:
    with accounted(wide, **DRIVE):
        found = taken(wide, *map(page, pages))
    assert found[:2] == (read * 8192, seeks)
    assert found[2] == pytest.approx(seeks * 0.01 + read * 8192 / 80e6)


def test_a_scan_is_accounted_for_by_its_bytes(wide: ManagedServer) -> None:
    with accounted(wide, **DRIVE):
        read, seeks, busy_s = taken(wide, "SELECT count(d) FROM wide")
    assert ROWS - FEW <= read / 8192 <= ROWS + FEW
    assert seeks < FEW
    assert busy_s == pytest.approx(seeks * 0.01 + read / 80e6)


def test_what_is_accounted_is_not_slowed(wide: ManagedServer) -> None:
    """With reads held back it would take more than an hour."""
    with accounted(wide, seek_s=1000, bytes_per_second=1000):
        _, seeks, busy_s = taken(wide, *map(page, SCATTERED))
    assert busy_s > 1000 * seeks > 0


def test_a_trial_has_the_time_of_the_disk_only_where_there_is_one(wide: ManagedServer) -> None:
    def metrics(number: int) -> dict[str, float]:
        with Trial(wide, Arm("plain"), block=1) as trial:
            trial.timed("select", page(number))
            return {row["metric"]: row["value"] for row in rows_of(trial)}

    assert "disk_s" not in metrics(700)
    with accounted(wide, **DRIVE):
        found = metrics(900)
    assert found["disk_s"] == pytest.approx(0.01 + found["read_bytes"] / 80e6)
    assert found["read_bytes"] == 8192


def test_seeks_slow_the_modelled_disk(wide: ManagedServer) -> None:
    begin = time.monotonic()
    with limited(wide, seek_s=0.05):
        _, seeks, _ = taken(wide, *map(page, SCATTERED))
    assert seeks == len(SCATTERED)
    assert time.monotonic() - begin >= 0.05 * seeks


def test_a_lone_session_is_served_without_a_seek_between_turns(wide: ManagedServer) -> None:
    with limited(wide, **DRIVE, scheduler=CFQ):
        read, seeks, _ = taken(wide, "SELECT count(d) FROM wide")
    assert ROWS - FEW <= read / 8192 <= ROWS + FEW
    assert seeks < FEW


def test_turns_spare_seeks(wide: ManagedServer) -> None:
    """Two sessions that jump between two places, and wait for one another or not."""

    def seeks(scheduler: Scheduler | None) -> int:
        disk = disk_of(wide)
        with (
            limited(wide, seek_s=0.002, bytes_per_second=50 * 10**6, scheduler=scheduler),
            wide.connect() as one,
            wide.connect() as other,
            ThreadPoolExecutor(2) as pool,
        ):
            before = disk.seeks
            for session, where in ((one, "ctid < '(2000,1)'"), (other, "ctid >= '(2000,1)'")):
                session.execute("SET max_parallel_workers_per_gather = 0")
                session.execute("SET synchronize_seqscans = off")
                pool.submit(session.execute, f"SELECT count(d) FROM wide WHERE {where}")
            pool.shutdown()
            return disk.seeks - before

    assert 2 * seeks(CFQ) < seeks(None)


@pytest.mark.parametrize("wrong", [{"seek_s": -1}, {"bytes_per_second": 0}])
def test_an_account_takes_a_drive_that_can_be(
    modelled: ManagedServer, wrong: dict[str, Any]
) -> None:
    with (
        pytest.raises(StudyError, match="give a number above 0"),
        accounted(modelled, **(DRIVE | wrong)),
    ):
        pass


def test_a_server_not_started_for_limits_has_no_library_in_front_of_its_reads(
    managed: ManagedServer,
) -> None:
    assert "not started for limits" in str(managed.capabilities.reason("limits"))
    with pytest.raises(CannotRun, match="not started for limits"), limited(managed, memory_bytes=1):
        pass
    assert b"slow_disk" not in Path(f"/proc/{managed.postmaster_pid}/maps").read_bytes()


def test_the_library_compiles_without_a_warning(tmp_path: Path) -> None:
    try:
        compiler = find_compiler()
    except CannotRun as reason:
        skip_but_not_in_ci(str(reason))
    source = EXTENSIONS / "slow_disk" / "slow_disk.c"
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([*compiler, *flags, "-o", tmp_path / "library.so", source], check=True)


@pytest.mark.parametrize(
    ("hindrance", "reason"),
    [
        ("no compiler", "there is no /nowhere/cc"),
        ("a space in the path", "without a space or a colon"),
        ("static programs", "linked statically"),
    ],
)
def test_why_there_is_no_modelled_disk_is_told(
    run_base: Path, monkeypatch: pytest.MonkeyPatch, hindrance: str, reason: str
) -> None:
    if hindrance == "no compiler":
        monkeypatch.setenv("CC", "/nowhere/cc")
    elif hindrance == "a space in the path":
        monkeypatch.setenv("PGSTUDIES_CACHE", str(run_base / "a cache"))
    else:
        monkeypatch.setattr(SlowDisk, "environment", lambda _, __, before: before)
    with embedded({"fsync": "off"}, "modelled") as server:
        assert reason in str(server.capabilities.reason("limits"))


# The kernel's limits


@pytest.fixture(scope="module")
def kernel() -> Iterator[ManagedServer]:
    with own_base(None) as base:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PGSTUDIES_RUN_DIR", str(base))
            server = embedded({"fsync": "off"}, "kernel")
        with server:
            yield server


def groups(postmaster_pid: int) -> list[Path]:
    return [*Path("/sys/fs/cgroup").glob(f"**/pgstudies-{postmaster_pid}")]


@pytest.fixture
def able(kernel: ManagedServer) -> ManagedServer:
    reason = kernel.capabilities.reason("limits")
    if reason:
        pytest.skip(reason)
    return kernel


@pytest.mark.root
def test_reads_take_at_least_the_time_they_are_given(able: ManagedServer) -> None:
    def build() -> None:
        with able.connect() as connection:
            make_table(connection, "wide", ROWS)
            connection.execute("CREATE INDEX wide_i ON wide(i)")

    able.restore("for the throttle", build)
    query = "SELECT count(d) FROM wide WHERE i IN (SELECT g * 40 FROM generate_series(1, 60) g)"
    with Trial(able, Arm("plain"), block=1) as trial:
        assert trial.make_cold("wide", step="select")
        with limited(able, reads_per_second=100):
            assert len(groups(able.postmaster_pid)) == 1
            begin = time.monotonic()
            trial.timed("select", query)
            took = time.monotonic() - begin
            # Sessions opened meanwhile are bound as well.
            with able.connect() as other:
                text = Path(f"/proc/{other.info.backend_pid}/cgroup").read_text()
                assert f"pgstudies-{able.postmaster_pid}" in text
        metrics = {row["metric"]: row["value"] for row in rows_of(trial)}
    assert metrics["read_bytes"] >= 60 * 8192
    # The one clock in the tests: at 100 a second, 60 reads cannot be answered any sooner. The
    # kernel lets a tenth of a second's worth pass at once.
    assert took > 0.4
    assert groups(able.postmaster_pid) == []


@pytest.mark.root
def test_the_kernel_has_no_seeks(able: ManagedServer) -> None:
    with pytest.raises(CannotRun, match="ask for modelled ones"), limited(able, seek_s=0.01):
        pass
    assert groups(able.postmaster_pid) == []


@pytest.mark.root
def test_neither_an_error_nor_a_stop_meanwhile_leaves_a_group(able: ManagedServer) -> None:
    able.restore("empty", lambda: None)
    with pytest.raises(KeyboardInterrupt), limited(able, reads_per_second=100):
        raise KeyboardInterrupt
    assert groups(able.postmaster_pid) == []
    pid = able.postmaster_pid
    with limited(able, reads_per_second=100):
        able.stop()
    able.start()
    assert groups(pid) == []


def test_an_external_server_is_left_alone(stranger: ManagedServer) -> None:
    with serve(dsn_of(stranger, BUILDER)) as server:
        assert "external server" in str(server.capabilities.reason("limits"))
        with pytest.raises(CannotRun, match="external server"), limited(server, memory_bytes=1):
            pass


def test_a_system_without_cgroups_or_a_disk_says_so(
    managed_on_disk: ManagedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = managed_on_disk.data_directory, managed_on_disk.postmaster_pid
    assert "no cgroups" in str(reason_no_limits(*where, tmp_path))
    monkeypatch.setattr(disks, "DEVICES", tmp_path)
    assert "not on a disk" in str(reason_no_limits(*where))


def test_version_2_is_asked_in_its_own_words(
    managed_on_disk: ManagedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against files that stand for the kernel's: there is no version 2 with limits here."""
    (tmp_path / "cgroup.controllers").write_text("cpu io memory")
    (tmp_path / "cgroup.subtree_control").write_text("")
    monkeypatch.setattr(cgroups, "_device_of", lambda _: "254:0")
    monkeypatch.setattr(cgroups, "_remove", lambda _: None)
    where = managed_on_disk.data_directory, managed_on_disk.postmaster_pid, managed_on_disk.pids
    pace = {"iops": 321, "bps": 10**6}
    with limits_on(*where, pace=pace, memory_bytes=2**28, root=tmp_path):
        group = tmp_path / f"pgstudies-{managed_on_disk.postmaster_pid}"
        assert (group / "io.max").read_text() == "254:0 riops=321 rbps=1000000"
        assert (group / "memory.max").read_text() == str(2**28)
        assert (group / "cgroup.procs").read_text() in map(str, managed_on_disk.pids())
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+io +memory"


@pytest.mark.root
def test_a_small_memory_does_not_keep_a_large_table(able: ManagedServer) -> None:
    def build() -> None:
        with able.connect() as connection:
            make_table(connection, "large", 12000)

    able.restore("for a small memory", build, {"shared_buffers": "2MB"})
    with Trial(able, Arm("plain"), block=1) as trial:
        assert trial.make_cold("large", step="count")
        with limited(able, memory_bytes=48 * 2**20):
            for iteration in (1, 2):
                trial.timed("count", "SELECT count(*) FROM large", iteration=iteration)
        read = [row["value"] for row in rows_of(trial) if row["metric"] == "read_bytes"]
    assert read[0] >= 12000 * 8192
    assert read[1] > 0.3 * 12000 * 8192  # with memory enough it would be nothing


def test_a_group_of_a_run_that_was_killed_is_removed(tmp_path: Path) -> None:
    (tmp_path / "pgstudies-1").mkdir()
    (tmp_path / "somebody").mkdir()
    cgroups._remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["somebody"]
