"""Counts of instructions: exact, of what was asked for alone, and nothing is left behind."""

from __future__ import annotations

import platform
import secrets
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from pgapps.counting.counter import Counter, instructions
from pgapps.counting.frames import EXACT, WHOLE, deviation
from pgapps.counting.units import Unit, units
from pgapps.counting.valgrind import reason_no_valgrind
from pgservers.errors import CannotRun, StudyError
from pgservers.programs.compilers import find_compiler, server_headers
from pgservers.programs.installations import find_binaries
from pgservers.tools import installing
from pgstudies.rooms import rooms
from tests.servers_at_hand import skip_but_not_in_ci, wait_until_dead

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

pytestmark = pytest.mark.usefixtures("private")

N = "current_setting('pgstudies.n')::int"
LOOP = f"DO $$BEGIN FOR i IN 1..{N} LOOP PERFORM md5('x'); END LOOP; END$$"
HASHED = Unit("one text hashed", (LOOP,), sizes=(200, 1200))


@pytest.fixture(scope="module", autouse=True)
def cache(run_base: Path) -> Iterator[None]:
    """Counts are kept apart from the user's."""
    reason = reason_no_valgrind()
    if reason:
        skip_but_not_in_ci(reason)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGSTUDIES_CACHE", str(run_base / "counted"))
        yield


@pytest.fixture(scope="module")
def counter() -> Iterator[Counter]:
    with Counter("embedded") as counter:
        yield counter


@pytest.fixture(scope="module")
def library(run_base: Path) -> Path:
    """Functions of ours in C, for the embedded server."""
    if platform.machine() != "x86_64":
        pytest.skip("the planted loop is written for x86_64")
    try:
        _, headers = server_headers(find_binaries("embedded"))
        compiler = find_compiler()
    except CannotRun as reason:
        skip_but_not_in_ci(str(reason))
    built = run_base / "planted.so"
    source = Path(__file__).with_name("planted.c")
    subprocess.run(
        [*compiler, "-O2", "-shared", "-fPIC", f"-I{headers}", str(source), "-o", str(built)],
        check=True,
    )
    built.chmod(0o755)
    return built


def in_c(library: Path, name: str, sizes: tuple[int, int]) -> Unit:
    create = f"CREATE FUNCTION {name}(int) RETURNS int LANGUAGE c STRICT AS '{library}', '{name}'"
    return Unit(name, (f"SELECT {name}({N})",), sizes=sizes, prepare=(create,))


def whole(counts: pl.DataFrame) -> float:
    return float(counts.row(0, named=True)["inclusive"])


def test_a_planted_loop_of_known_length_is_counted(counter: Counter, library: Path) -> None:
    counts = counter.count(in_c(library, "planted", (1_000_000, 3_000_000)))
    assert whole(counts) == pytest.approx(2, rel=EXACT)
    name, own = counts.select("function", "own").row(1)
    assert (name, own) == ("planted", 2.0)


def test_two_counts_agree_and_a_third_of_a_state_made_anew(counter: Counter) -> None:
    first = counter.count(HASHED)
    assert deviation(first) < EXACT
    with Counter("embedded") as another:
        second = another.count(HASHED, fresh=True)
    assert whole(second) == pytest.approx(whole(first), rel=EXACT)


def test_what_is_done_once_is_not_counted(counter: Counter) -> None:
    once = "DO $$BEGIN PERFORM md5(repeat('x', 1000000)); END$$"
    burdened = replace(HASHED, statements=(once, LOOP))
    count = whole(counter.count(burdened, twice=False))
    assert count == pytest.approx(whole(counter.count(HASHED)), rel=EXACT)


def test_what_the_server_does_once_a_second_is_not_counted(counter: Counter) -> None:
    first = "DO $$BEGIN PERFORM md5(repeat('x', 1000)); END$$"
    slow, slower = (
        f"SELECT pg_sleep(CASE current_setting('pgstudies.n') WHEN '{size}' THEN 1.3 ELSE 0.3 END)"
        for size in HASHED.sizes
    )
    after = [
        whole(counter.count(replace(HASHED, statements=(first, one, LOOP)), twice=False))
        for one in (slow, slower)
    ]
    assert after[1] == pytest.approx(after[0], rel=EXACT)


def test_the_whole_comes_first_and_own_counts_add_up_to_it(counter: Counter) -> None:
    counts = counter.count(HASHED)
    assert counts.columns == ["function", "inclusive", "own", "again", "share"]
    assert counts.row(0)[:1] == (WHOLE,)
    functions = counts.slice(1)
    assert functions["own"].sum() == pytest.approx(whole(counts), rel=1e-6)
    assert functions["share"].sum() == pytest.approx(1, rel=1e-6)
    assert functions["own"].is_sorted(descending=True)
    assert "plpgsql_inline_handler" in set(functions["function"])


def test_one_call_of_a_function_is_counted_without_what_another_does_in_it(
    counter: Counter,
) -> None:
    start = Unit("start", ("SELECT 1",), inside=("InitPostgres", "StartupXLOG"))
    with_recovery = replace(start, inside=("InitPostgres",))
    alone, both = (counter.count(unit, twice=False) for unit in (start, with_recovery))
    assert "StartupXLOG" not in set(alone.head(2000)["function"])
    recovery = both.filter(function="StartupXLOG")["inclusive"].item()
    assert whole(both) - recovery == pytest.approx(whole(alone), rel=EXACT)


@pytest.mark.thorough
def test_open_transactions_and_their_subtransactions_cost(counter: Counter) -> None:
    (created,) = (unit for unit in units() if unit.name == "one function created")
    small = replace(created, sizes=(20, 40))
    none, some, more = (
        counter.count(small.with_open(*open_), twice=False)
        for open_ in ((0, 0), (250, 0), (250, 20))
    )
    assert whole(none) < whole(some) < whole(more)
    copied = [frame.filter(function="CopySnapshot")["own"].sum() for frame in (none, some, more)]
    assert copied[0] < copied[1] < copied[2]


def test_what_was_counted_is_not_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = instructions(HASHED, server="embedded")
    assert first.height == 11
    monkeypatch.setattr("pgapps.counting.counter.serve", None)
    again = instructions(replace(HASHED, name="another name"), server="embedded")
    assert again.equals(first)
    with pytest.raises(TypeError):
        instructions(replace(HASHED, sizes=(200, 1201)), server="embedded")


def test_a_damaged_count_is_counted_again(run_base: Path) -> None:
    unit = replace(HASHED, sizes=(200, 1300))
    with Counter("embedded") as counter:
        before = set((run_base / "counted" / "counts").iterdir())
        first = counter.count(unit, twice=False)
        (kept,) = set((run_base / "counted" / "counts").iterdir()) - before
        kept.write_bytes(kept.read_bytes()[:-1] + b"?")
        again = counter.count(unit, twice=False)
    assert whole(again) == pytest.approx(whole(first), rel=EXACT)
    assert len(set((run_base / "counted" / "counts").iterdir()) - before) == 1


def test_without_valgrind_the_reason_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert installing("valgrind") in str(reason_no_valgrind())


def test_what_a_backend_cannot_do_alone_is_a_reason_in_one_sentence(
    counter: Counter, library: Path
) -> None:
    less = LOOP.replace(N, f"2000 - {N}")
    for unit, reason in (
        (in_c(library, "crash", (1, 2)), r"^PostgreSQL 18\S* crashed .*SIGSEGV"),
        (Unit("wrong", ("SELECT * FROM nothing",)), 'relation "nothing" does not exist'),
        (Unit("wrong", ("SELECT 1",), prepare=("DROP TABLE nothing",)), "cannot be prepared"),
        (replace(HASHED, settings={"no_such_setting": "1"}), "no_such_setting"),
        (replace(HASHED, statements=(less,)), "no more instructions than 200"),
    ):
        with pytest.raises(CannotRun, match=reason):
            counter.count(unit)
    with pytest.raises(CannotRun, match="already running"):
        Counter("postgresql://somebody@nowhere/else")
    with pytest.raises(StudyError, match="the smaller first"):
        replace(HASHED, sizes=(3, 3))


Counting = tuple[subprocess.Popen[bytes], psutil.Process]

ENDLESS = """
from pgapps.counting.counter import Counter
from pgapps.counting.units import Unit
loop = "DO $$BEGIN LOOP PERFORM md5('x'); END LOOP; END$$"
with Counter("embedded") as counter:
    counter.count(Unit("endless", (loop,)), fresh=True)
"""


@pytest.fixture
def base(run_base: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the servers of a counting process have their directories."""
    base = run_base / f"ended-{secrets.token_hex(2)}"
    base.mkdir(mode=0o711)
    monkeypatch.setenv("PGSTUDIES_RUN_DIR", str(base))
    return base


@pytest.fixture
def counting(base: Path) -> Iterator[Counting]:
    """A process that counts without end, and the backend that valgrind runs for it."""
    with subprocess.Popen([sys.executable, "-c", ENDLESS], stderr=subprocess.DEVNULL) as run:
        try:
            yield run, counted_backend(base)
        finally:
            run.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_it_leaves_nothing(
    number: signal.Signals, base: Path, counting: Counting
) -> None:
    run, backend = counting
    run.send_signal(number)
    assert run.wait(90) in {1, -number}
    assert_nothing_is_left(base, backend)


def test_a_backend_that_answers_late_leaves_nothing(base: Path, counting: Counting) -> None:
    run, backend = counting
    backend.suspend()
    run.kill()
    run.wait()
    time.sleep(7)  # a machine that is loaded
    backend.resume()
    assert_nothing_is_left(base, backend)


def test_a_backend_that_is_killed_leaves_no_pipe_and_no_shared_memory(counting: Counting) -> None:
    run, backend = counting
    backend.kill()
    assert run.wait(60) == 1
    assert list(Path("/tmp").glob(f"vgdb-pipe-*-{backend.pid}-*")) == []
    assert not has_shared_memory(backend.pid)


def assert_nothing_is_left(base: Path, backend: psutil.Process) -> None:
    assert wait_until_dead([backend], 90)
    deadline = time.monotonic() + 90
    while any(base.glob("s-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(base.glob("s-*")) == []
    assert not has_shared_memory(backend.pid)


def counted_backend(base: Path) -> psutil.Process:
    """The process that valgrind runs there, once it does."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for process in psutil.process_iter(["cmdline"]):
            command = " ".join(process.info["cmdline"] or [])
            if "callgrind" in command and f"-D {base}/" in command:
                time.sleep(1)  # until it is in the loop
                return process
        time.sleep(0.1)
    raise AssertionError("no backend was run under valgrind")


def has_shared_memory(pid: int) -> bool:
    """Whether a segment of System V shared memory is there that this process made."""
    segments = Path("/proc/sysvipc/shm")
    rows = segments.read_text().splitlines()[1:] if segments.exists() else []
    return any(row.split()[4] == str(pid) for row in rows)


def test_every_unit_is_of_a_study_and_has_a_name_of_its_own() -> None:
    names = [unit.name for unit in units()]
    assert len(set(names)) == len(names)
    assert {unit.study for unit in units()} <= set(rooms("study"))
    assert units("mvcc_catalog") == tuple(u for u in units() if u.study == "mvcc_catalog")
