"""Sweeps: two workers stand in for two hosts, and whatever dies, each block is measured once."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import Mock

import psutil
import pytest
from distributed import KilledWorker

from pgapps.fleet import sweep as sweeping
from pgapps.fleet.join import join
from pgapps.fleet.ledger import Ledger, SweepBlock, packed
from pgapps.fleet.sweep import measure_missing, missing
from pgapps.fleet.workers import TOPIC, _States, refuse_other_versions, versions_here
from pgservers.errors import ServerError, StudyError
from pgservers.files import is_locked
from pgservers.servers.leftovers import find_postmaster
from pgservers.terminal import Progress
from pgstudies.records.reading import read_record
from tests.fleet.conftest import NAMES, Place, children_of, ip, namespace, place_in
from tests.servers_at_hand import wait_until_dead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from distributed import Client

    from pgapps.fleet.plan import Sweep
    from pgservers.servers.managed import ManagedServer

pytestmark = pytest.mark.usefixtures("private")


class Cluster:
    """A scheduler with a worker for each host, which tests share that end none of them."""

    def __init__(self, place: Place) -> None:
        self.place = place
        _, self.address = place.scheduler()
        one = str(place.base / "bench1.lock")
        self.workers = {host: place.worker(self.address, host) for host in NAMES}
        self.workers["twin"] = place.worker(self.address, "twin", PGSTUDIES_HOST_LOCK=one)
        with self.client():
            pass

    @contextmanager
    def client(self) -> Iterator[Client]:
        with self.place.connected(self.address, len(self.workers)) as client:
            yield client


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, managed: ManagedServer) -> Iterator[Cluster]:
    with (
        pytest.MonkeyPatch.context() as patch,
        place_in(tmp_path_factory.mktemp("cluster"), managed, patch) as place,
    ):
        yield Cluster(place)


def wait_for(holds: Callable[[], object], timeout_s: float = 120) -> None:
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end, "it did not come to that in time"
        time.sleep(0.05)


def measuring(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The block that a worker measures: its process and what belongs to it."""
    with suppress(psutil.NoSuchProcess):  # nor is a zombie one
        for child in children_of(process):
            if "pgapps.fleet.block" in " ".join(child.cmdline()):
                return [child, *child.children(recursive=True)]
    return []


def postmasters(directory: Path) -> list[psutil.Process]:
    """The servers that run in a directory of servers."""
    found = (find_postmaster(path / "data") for path in directory.glob("s-*"))
    return [process for process in found if process is not None]


def files(place: Place) -> list[str]:
    return sorted(p.name for p in (place.base / "sweep").rglob("*") if p.is_file())


def require_done(sweep: Sweep) -> None:
    """Every block is in the ledger, a directory, and no other file."""
    assert Ledger(sweep.ledger).done() == set(sweep.blocks())
    files = [path for path in Path(sweep.ledger).rglob("*") if path.is_file()]
    assert len(files) == len(set(sweep.blocks()))


def reasons(failures: dict[SweepBlock, str]) -> list[tuple[str, int, str]]:
    return [(block.host, block.number, reason) for block, reason in failures.items()]


def ended(command: subprocess.Popen[str], code: int = 0) -> str:
    """What a command says, once it has ended with this code."""
    said, _ = command.communicate(timeout=120)
    assert command.returncode == code, said
    return said


def held(place: Place, host: str) -> bool:
    return is_locked(place.base / f"{host}.lock")


# As it should be


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, managed: ManagedServer, cluster: Cluster
) -> Iterator[tuple[Place, Sweep, list[Any]]]:
    """A sweep that was carried out twice: its ledger is copied by whoever changes it."""
    base = tmp_path_factory.mktemp("finished")
    with (
        pytest.MonkeyPatch.context() as patch,
        place_in(base, managed, patch) as place,
        Progress("sweep", 4) as bar,
    ):
        patch.setenv("PGSTUDIES_RECORDS", str(base / "records"))
        sweep = place.sweep()
        answers: list[Any] = []
        with cluster.client() as client:
            for _ in range(2):
                failures = measure_missing(sweep, client, bar)
                written = {p: p.stat().st_mtime_ns for p in (base / "sweep").rglob("*.zip")}
                answers.append((failures, written))
        yield place, sweep, answers


def test_every_block_of_every_host_is_there_once(
    finished: tuple[Place, Sweep, list[Any]], cluster: Cluster
) -> None:
    place, sweep, (first, second) = finished
    assert first[0] == {}
    assert second == first  # nothing was written again
    require_done(sweep)
    assert files(place) == ["0001.zip"] * 2 + ["0002.zip"] * 2
    for host in NAMES:  # nothing of a block is left on its host
        assert list((cluster.place.base / host / "records" / ".sweep").glob("s-*")) == []


def test_blocks_of_a_host_become_its_record(
    finished: tuple[Place, Sweep, list[Any]], tmp_path: Path
) -> None:
    _, sweep, _ = finished
    records, lacking = join(sweep, tmp_path)
    assert lacking == []
    assert join(sweep, tmp_path) == (records, [])  # nothing is written again
    for path, host in zip(records, NAMES, strict=True):
        record = read_record(path)
        assert record.info["host"]["hostname"] == host
        assert (record.info["status"], record.blocks, record.info["blocks"]) == ("complete", 2, 2)
        counts = record.samples.filter(record.samples["metric"] == "rows")
        for frame in (counts, record.timeline):
            assert frame.group_by("block").len().sort("block").rows() == [(1, 3), (2, 3)]
        assert len(record.info["sessions"]) == 2
    longer = replace(sweep, cells=[replace(sweep.cells[0], blocks=3)])
    sentences = [f"swept on {host}: 2 of 3 blocks." for host in NAMES]
    assert join(longer, tmp_path / "others") == ([], sentences)


def test_blocks_measured_by_different_code_are_not_joined(
    finished: tuple[Place, Sweep, list[Any]], tmp_path: Path
) -> None:
    _, sweep, _ = finished
    copy = replace(sweep, ledger=str(tmp_path / "ledger"))
    shutil.copytree(sweep.ledger, copy.ledger)
    ledger = Ledger(copy.ledger)
    block = next(iter(copy.blocks()))
    info, samples = ledger.read(block)
    (tmp_path / "ledger" / block.path).unlink()
    another: Any = {"fingerprint": "another", "code": info["code"] | {"procedure": "another"}}
    ledger.put(block, packed(info | another, samples))
    with pytest.raises(StudyError, match=r"Block 2 of swept on bench1 .*: `procedure` changed"):
        join(copy, tmp_path / "records")


@pytest.mark.thorough
def test_two_workers_of_one_host_take_turns_and_say_so(
    place: Place, cluster: Cluster, bar: Progress, terminal: io.StringIO
) -> None:
    sweep = place.sweep(pause_s=1.5, blocks=1, hosts=["bench1", "twin"])
    with cluster.client() as client:
        assert measure_missing(sweep, client, bar) == {}
    assert "Waiting: the study swept (process" in terminal.getvalue()
    ledger = Ledger(sweep.ledger)
    timelines = [ledger.read(block)[0]["timeline"] for block in sweep.blocks()]
    times = sorted(
        (min(e["started_at"] for e in entries), max(e["finished_at"] for e in entries))
        for entries in timelines
    )
    assert all(end <= start for (_, end), (start, _) in pairwise(times))


@pytest.mark.thorough
def test_a_block_starts_from_the_states_that_the_one_before_prepared(
    place: Place, run_base: Path, bar: Progress
) -> None:
    sweep = place.sweep(hosts=["bench1"], server="embedded", blocks=2)
    servers = run_base / "of-states"
    _, address = place.scheduler()
    place.worker(address, "bench1", PGSTUDIES_RUN_DIR=str(servers))
    with place.connected(address, 1) as client:
        assert measure_missing(sweep, client, bar) == {}
    assert list(servers.glob("s-*")) == []  # the sweep is over, and its worker still there
    ledger = Ledger(sweep.ledger)
    parts = [ledger.read(block)[1] for block in sweep.blocks()]
    calls = [part.filter(part["metric"] == "calls") for part in parts]
    assert [part.height for part in calls] == [1, 1]
    assert calls[0].equals(calls[1])  # by the microsecond at which it was prepared
    ((record,), _) = join(sweep, place.base / "records")
    samples = read_record(record).samples
    assert samples.filter(samples["metric"] == "calls").height == 1
    assert samples.filter(samples["metric"] == "rows").height == 6


def test_states_that_no_block_asks_for_any_more_are_removed() -> None:
    """The client may have been killed, and its workers wait for the next."""
    states = _States()
    directory = Path(states.directory())
    assert directory.is_dir()
    assert directory.parent.stat().st_mode & 0o777 == 0o700
    states.keep_for(3600)
    assert states.directory() == str(directory)
    states.keep_for(0)
    wait_for(lambda: not directory.parent.exists())
    assert Path(states.directory()).is_dir()  # and the next sweep has another
    states.remove()


# Whatever dies


@pytest.mark.thorough
def test_a_worker_is_killed_in_the_middle_of_a_block(place: Place) -> None:
    sweep = place.sweep(pause_s=2.0, blocks=1)
    _, address = place.scheduler()
    victim, _ = (place.worker(address, host) for host in NAMES)
    command = place.command(address)
    wait_for(lambda: measuring(victim) and held(place, "bench1"))
    block = measuring(victim)
    worker = next(p for p in children_of(victim) if block[0] in p.children())
    worker.kill()
    assert wait_until_dead(block, 60)
    assert "was lost, and begins again" in ended(command)
    require_done(sweep)


def test_a_worker_is_killed_and_no_server_is_left(place: Place, run_base: Path) -> None:
    sweep = place.sweep(pause_s=60.0, hosts=["bench1"], server="embedded", blocks=1)
    servers = run_base / "of-bench1"
    _, address = place.scheduler()
    victim = place.worker(address, "bench1", PGSTUDIES_RUN_DIR=str(servers))
    place.command(address)
    wait_for(lambda: held(place, "bench1") and postmasters(servers))
    everything = [*measuring(victim), *postmasters(servers)]
    os.killpg(victim.pid, signal.SIGKILL)  # the host's worker and its nanny at once
    assert wait_until_dead(everything, 60)
    wait_for(lambda: not list(servers.glob("s-*")))
    wait_for(lambda: not held(place, "bench1"))
    assert files(place) == []
    assert len(missing(sweep)) == 1


@pytest.mark.thorough
def test_the_client_is_killed_and_started_again(place: Place, cluster: Cluster) -> None:
    sweep = place.sweep(pause_s=1.0, blocks=1)
    place.certificates = cluster.place.certificates
    command = place.command(cluster.address)
    wait_for(lambda: all(measuring(cluster.workers[h]) and held(cluster.place, h) for h in NAMES))
    command.kill()
    ended(place.command(cluster.address))
    require_done(sweep)


@pytest.mark.thorough
def test_the_scheduler_is_killed_and_started_again(place: Place) -> None:
    sweep = place.sweep(pause_s=1.0)
    scheduler, address = place.scheduler()
    workers = [place.worker(address, host) for host in NAMES]
    command = place.command(address)
    wait_for(lambda: files(place))
    scheduler.kill()
    assert "The scheduler is gone" in ended(command, ServerError.exit_code)
    _, address = place.scheduler()
    for worker, host in zip(workers, NAMES, strict=True):
        worker.wait(90)
        place.worker(address, host)
    ended(place.command(address))
    require_done(sweep)


@pytest.mark.thorough
def test_a_host_vanishes(place: Place, bar: Progress) -> None:
    sweep = place.sweep(pause_s=1.0, blocks=1)
    _, address = place.scheduler(patience="5s")
    victim, _ = (place.worker(address, host) for host in NAMES)
    with place.connected(address, 2) as client:
        wait_for(lambda: len(children_of(victim)) > 0)

        def freeze() -> list[psutil.Process]:
            wait_for(lambda: measuring(victim) and held(place, "bench1"))
            frozen = [psutil.Process(victim.pid), *children_of(victim)]
            for process in frozen:
                process.suspend()
            return frozen

        with ThreadPoolExecutor(1) as beside:
            frozen = beside.submit(freeze)
            failures = measure_missing(sweep, client, bar, lost_s=3)
        assert reasons(failures) == [("bench1", 1, "no worker has its name for 3 s")]
        assert {block.host for block in Ledger(sweep.ledger).done()} == {"bench2"}
        for process in frozen.result():  # it comes back, and finds that it was given up
            process.resume()
        place.worker(address, "bench1")
        assert measure_missing(sweep, client, bar, lost_s=60) == {}
    require_done(sweep)


@pytest.mark.root
def test_the_network_of_a_host_is_cut(place: Place, bar: Progress) -> None:
    """Its block is finished all the same, as the ledger is not on that network, and counts once."""
    sweep = place.sweep(pause_s=3.0, blocks=1, hosts=["bench1"])
    with namespace() as (inside, device, here):
        _, address = place.scheduler(host=here, patience="5s")
        victim = place.worker(address, "bench1", inside=inside)
        with place.connected(address, 1) as client:

            def cut() -> None:
                wait_for(lambda: measuring(victim) and held(place, "bench1"))
                ip("link", "set", device, "down")

            with ThreadPoolExecutor(1) as beside:
                done = beside.submit(cut)
                failures = measure_missing(sweep, client, bar, lost_s=3)
            done.result()
            assert reasons(failures) == [("bench1", 1, "no worker has its name for 3 s")]
            wait_for(lambda: files(place) == ["0001.zip"])
            before = next((place.base / "sweep").rglob("*.zip")).stat().st_mtime_ns
            ip("link", "set", device, "up")
            place.worker(address, "bench1", inside=inside)
            assert measure_missing(sweep, client, bar, lost_s=60) == {}
    require_done(sweep)
    assert next((place.base / "sweep").rglob("*.zip")).stat().st_mtime_ns == before


@pytest.mark.root
def test_a_disk_is_full_on_one_host(place: Place, cluster: Cluster, bar: Progress) -> None:
    sweep = place.sweep(blocks=1)
    small = cluster.place.base / "bench2" / "records"
    small.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(small)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no small disk can be mounted here")
    try:
        with cluster.client() as client:
            ((host, _, reason),) = reasons(measure_missing(sweep, client, bar))
        assert host == "bench2"
        assert "No space left" in reason
        assert {block.host for block in Ledger(sweep.ledger).done()} == {"bench1"}
    finally:
        subprocess.run(["umount", str(small)], check=True)
    with cluster.client() as client:
        assert measure_missing(sweep, client, bar) == {}
    require_done(sweep)


def test_a_study_that_refuses_is_not_tried_again(
    place: Place, cluster: Cluster, bar: Progress
) -> None:
    sweep = place.sweep(pause_s=99.0, hosts=["bench1"])
    with cluster.client() as client:
        failures = measure_missing(sweep, client, bar)
    assert reasons(failures) == [("bench1", 1, "This study does not like to wait 99 seconds.")]
    assert files(place) == []


# Ctrl-C


@pytest.mark.parametrize("times", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_ctrl_c_lets_blocks_finish_and_a_second_one_aborts_them(
    place: Place, cluster: Cluster, times: int
) -> None:
    sweep = place.sweep(pause_s=2.0 if times == 1 else 30.0, blocks=3, hosts=["bench1"])
    place.certificates = cluster.place.certificates
    worker = cluster.workers["bench1"]
    own = {block.path for block in sweep.blocks()}  # and not what an earlier test has left
    command = place.command(cluster.address)
    with cluster.client() as client:
        wait_for(lambda: own & {said.get("begins") for _, said in client.get_events(TOPIC)})
    wait_for(lambda: measuring(worker) and held(cluster.place, "bench1"))
    block = measuring(worker)
    command.send_signal(signal.SIGINT)
    said = ""
    if times == 2:
        assert command.stdout is not None
        while "The blocks that run will finish." not in said:  # one signal at a time
            line = command.stdout.readline()
            assert line, said
            said += line
        command.send_signal(signal.SIGINT)
    said += ended(command, 130)
    assert "The blocks that run will finish.  Ctrl-C again aborts them." in said
    assert "run it again to continue" in said
    assert wait_until_dead(block)
    assert len(missing(sweep)) == 1 + times
    assert files(place) == ["0001.zip"] * (2 - times)


def test_sigterm_aborts_the_blocks_at_once_and_leaves_nothing(
    place: Place, cluster: Cluster
) -> None:
    sweep = place.sweep(pause_s=600.0, blocks=3, hosts=["bench1"])
    place.certificates = cluster.place.certificates
    worker = cluster.workers["bench1"]
    command = place.command(cluster.address)
    assert command.stdout is not None
    while "blocks are done" not in command.stdout.readline():  # from here on it has handlers
        assert command.poll() is None
    wait_for(lambda: measuring(worker) and held(cluster.place, "bench1"))
    block = measuring(worker)
    command.send_signal(signal.SIGTERM)
    said = ended(command, 130)
    assert "will finish" not in said  # as after the first Ctrl-C, which waits
    assert "Aborting the blocks that run." in said
    assert wait_until_dead(block)
    assert len(missing(sweep)) == 3


class Interrupted(io.RawIOBase):
    """A terminal; Ctrl-C is pressed while a sentence is written to it."""

    def __init__(self) -> None:
        self.written = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if b"Waiting" in bytes(data):
            os.kill(os.getpid(), signal.SIGINT)
        self.written += bytes(data)
        return len(data)


def test_ctrl_c_may_come_while_the_terminal_is_written_to(place: Place) -> None:
    terminal = Interrupted()
    stream = io.TextIOWrapper(io.BufferedWriter(terminal), write_through=True)
    sweep = place.sweep()
    with Progress("sweep", 1, stream=stream) as progress:
        submitted = sweeping._Submitted(sweep, Mock(), progress, 1.0)
        submitted.pending[Mock()] = block = next(iter(sweep.blocks()))
        submitted.running[block.host] = block.path
        with submitted._interruptible():
            progress.note("bench1: Waiting for the host.")
        assert b"will finish" not in terminal.written
        submitted._heed(1)
    assert b"The blocks that run will finish." in terminal.written


# What becomes of blocks that Dask gives back, without a worker


class Given:
    """In place of Dask's client: it keeps what is submitted, and workers have our versions."""

    status = "running"

    def __init__(self) -> None:
        self.submitted: list[Mock] = []
        self.versions = versions_here()

    def run(self, *_: object, **__: object) -> dict[str, dict[str, str]]:
        return {"tls://one": self.versions}

    def submit(self, _: object, request: dict[str, Any], **how: Any) -> Mock:
        future = Mock(request=request, how=how)
        future.done.return_value = future.cancelled.return_value = False
        self.submitted.append(future)
        return future

    def cancel(self, futures: list[Mock]) -> None:
        for future in futures:
            self.submitted.remove(future)


@pytest.fixture
def submitted(place: Place, bar: Progress) -> Any:
    """A sweep of two blocks on one host, both of which Dask has."""
    sweep = place.sweep(hosts=["bench1"])
    state = sweeping._Submitted(sweep, cast("Client", Given()), bar, 1.0)
    for block in missing(sweep):
        state._submit(block)
    return state


def end(future: Mock, result: object) -> None:
    future.done.return_value = True
    future.result.side_effect = [result]


def test_a_block_waits_for_its_host_and_for_the_first_blocks(submitted: Any) -> None:
    first, second = submitted.client.submitted
    assert first.how["resources"] == {"measuring": 1, "host bench1": 1}
    assert first.how["priority"] > second.how["priority"]


def test_blocks_that_only_waited_for_a_lost_worker_are_submitted_again(submitted: Any) -> None:
    """Dask gives them up with the one that was measured whenever the worker was lost."""
    first, second = submitted.client.submitted
    for _ in range(sweeping.TRIES):
        submitted._hear((0.0, {"host": "bench1", "begins": submitted.pending[first].path}))
    end(second, KilledWorker("second", Mock(), 3))
    submitted._take_note()
    assert submitted.client.submitted[2].request == second.request
    assert submitted.failures == {}
    end(first, KilledWorker("first", Mock(), 3))
    submitted._take_note()
    assert reasons(submitted.failures) == [("bench1", 1, "its worker was lost, 3 times")]


def test_after_ctrl_c_only_blocks_that_run_are_waited_for(submitted: Any) -> None:
    first, _ = submitted.client.submitted
    submitted._hear((0.0, {"host": "bench1", "begins": submitted.pending[first].path}))
    submitted.signals = 1
    submitted._heed(1)
    assert list(submitted.pending) == submitted.client.submitted == [first]


def test_blocks_that_a_scheduler_forgot_end_the_sweep(submitted: Any) -> None:
    for future in submitted.client.submitted:
        future.done.return_value = future.cancelled.return_value = True
    with pytest.raises(ServerError, match="The scheduler is gone"):
        submitted._take_note()


def test_a_worker_is_asked_for_its_versions(submitted: Any) -> None:
    submitted.client.versions |= {"polars": "1.9.0"}
    with pytest.raises(StudyError, match=r" has polars 1\.9\.0, and here it is"):
        submitted.until_done([])


def test_hosts_with_other_versions_are_refused() -> None:
    ours = {"host": "here", "polars": "2.0.0", "checkout": "abc"}
    refuse_other_versions("bench1", ours | {"host": "there"}, ours)
    with pytest.raises(StudyError, match=r"bench1 has polars 1\.9\.0, and here it is 2.0.0: check"):
        refuse_other_versions("bench1", ours | {"polars": "1.9.0"}, ours)
    with pytest.raises(StudyError, match="bench1 has checkout not at all, and here it is abc"):
        refuse_other_versions("bench1", {"polars": "2.0.0"}, ours)
