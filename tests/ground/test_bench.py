"""The bench's own tools: nothing it stops stays stopped, and a planted noise is found."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import psutil
import pytest

from book.bench import power, readme
from book.bench.turns import FLAT, IN_TURNS, Tree, noise, used, with_ratio
from pgservers.paths import ROOT
from tests.made_up import samples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgservers.servers.managed import ManagedServer


def test_the_power_of_a_run_is_that_of_its_noise() -> None:
    rng = np.random.default_rng(54)
    for sd, least, most in ((0.002, 1.0, 1.0), (0.5, 0.0, 0.01)):
        noise = [rng.normal(0, sd, (40, 12)), rng.normal(0, sd, (50, 8))]
        wrong, slower = power.found(noise, 8, 1.1, runs=4)
        assert least <= slower / (4 * power.MOVED) <= most
        assert wrong == 0


def test_readme_has_the_minutes_that_were_measured() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    measured = pl.read_csv(readme.MEASURED)
    assert "make book" in measured["command"]
    for command, minutes in measured.select("command", "minutes").iter_rows():
        said = re.search(rf"\| `{command}` \|.*\| (\d+) to (\d+) minutes", text)
        assert said is not None
        assert int(said[1]) - 0.5 <= minutes <= int(said[2]) + 0.5


@pytest.fixture
def pids() -> Iterator[list[int]]:
    """Two processes that sleep."""
    processes = [subprocess.Popen(["sleep", "1000"]) for _ in range(2)]
    yield [process.pid for process in processes]
    for process in processes:
        process.kill()
        process.wait()


def come_to(pids: list[int], *, stopped: bool) -> bool:
    """Whether all of them are stopped, or none, before long: a signal takes its time."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        states = [psutil.Process(pid).status() == psutil.STATUS_STOPPED for pid in pids]
        if states == [stopped] * len(pids):
            return True
        time.sleep(0.01)
    return False


def settled(server: ManagedServer) -> list[int]:
    """The server's processes once they stay the same: some come and go after it is ready."""
    pids, same = server.pids(), 0
    while same < 10:
        time.sleep(0.05)
        before, pids = pids, server.pids()
        same = same + 1 if pids == before else 0
    return pids


def test_processes_are_stopped_for_a_while(pids: list[int]) -> None:
    with Tree(pids) as tree:
        for _ in range(2):
            with tree.stopped():
                assert come_to(pids, stopped=True)
            assert come_to(pids, stopped=False)


def test_a_server_that_was_stopped_answers_again(managed: ManagedServer) -> None:
    managed.restore("stopped for a while", lambda: None)
    pids = settled(managed)
    with Tree(pids) as tree, tree.stopped():
        assert come_to(pids, stopped=True)
        assert used(pids, 0.2) == (0, 0)
    with managed.connect() as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_ctrl_c_continues_what_is_stopped(pids: list[int]) -> None:
    tree = Tree(pids)
    with suppress(KeyboardInterrupt), tree, tree.stopped():
        assert come_to(pids, stopped=True)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(20)
        pytest.fail("Ctrl-C did not arrive")
    assert come_to(pids, stopped=False)


def test_a_kill_continues_what_is_stopped(pids: list[int]) -> None:
    program = f"""
        import os, signal
        from book.bench.turns import Tree
        with Tree({pids}).stopped():
            print("stopped", flush=True)
            signal.pause()
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "stopped\n"
        assert come_to(pids, stopped=True)
        child.kill()
    assert come_to(pids, stopped=False)


def test_the_noise_of_a_design_is_that_of_its_own_pair() -> None:
    """Ten blocks of which every second one is off by a tenth, or by a fortieth."""
    signs = [1, -1] * 5
    arms = {
        f"{design}{copy}": [math.exp(off * sign) if copy else 1.0 for sign in signs]
        for design, off in ((FLAT, 0.1), (IN_TURNS, 0.025))
        for copy in ("", " 2")
    }
    copy_of = {f"{design} 2": design for design in (FLAT, IN_TURNS)}
    found = noise(samples(arms, step="insert", iteration=1, copy_of=copy_of))
    sd = math.sqrt(10 / 9)
    expected = {FLAT: 0.1 * sd, IN_TURNS: 0.025 * sd}
    assert dict(found.select("design", "sd").rows()) == pytest.approx(expected)
    ratio = with_ratio(found, ["sd"]).filter(pl.col("design") == IN_TURNS)["times smaller"]
    assert ratio.to_list() == pytest.approx([4])
