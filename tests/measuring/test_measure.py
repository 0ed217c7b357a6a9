"""Measuring: every arm in every block, from the same state, kept block by block, continued."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import psutil
import psycopg
import pytest

from pgapps.compare.design import Comparison, Side, designed
from pgservers.errors import CannotRun, ServerError, SpaceError, StudyError
from pgservers.paths import ROOT
from pgservers.programs.installations import find_binaries
from pgservers.servers.managed import ManagedServer
from pgstudies.analysis.pairing import round_values
from pgstudies.measuring.arms import Arm
from pgstudies.measuring.design import Design, turn_order
from pgstudies.measuring.instances import Instances
from pgstudies.measuring.measure import measure
from pgstudies.measuring.session import Measurement, Session, session
from pgstudies.records.reading import list_records, read_record
from pgstudies.records.samples import AMONG_OTHERS, UNDISTURBED
from pgstudies.records.writing import RecordWriter, mark_read
from pgstudies.run_options import Replies, RunOptions
from tests.servers_at_hand import BUILDER, LESSER, dsn_of, wait_until_dead

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgservers.servers.serve import Server
    from pgstudies.measuring.session import Procedure
    from pgstudies.measuring.trial import Trial
    from pgstudies.records.info import Info, Setup
    from pgstudies.records.reading import Record

pytestmark = pytest.mark.usefixtures("private")

ROWS = 2000
PARAMETERS = {"server": "", "blocks": 2, "seed": 1}
ARMS = [Arm("plain"), Arm("wide", state="wide", options={"extra": 3})]


def prepare(trial: Trial, arm: Arm) -> None:
    width = 100 if arm.state == "wide" else 1
    trial.timed("create", "CREATE TABLE t(i int, d text)")
    trial.timed(
        "fill", f"INSERT INTO t SELECT i, repeat('x', {width}) FROM generate_series(1, {ROWS}) i"
    )


def procedure(trial: Trial, arm: Arm) -> None:
    trial.timed("count", "SELECT count(*) FROM t", iteration=1)
    trial.record("count", "rows", trial.value("SELECT count(*) FROM t"), "rows", iteration=1)
    for _ in range(arm.options.get("extra", 0)):
        trial.execute("INSERT INTO t VALUES (0, 'x')")
    trial.execute("DELETE FROM t")


def run(server: str = "", arms: list[Arm] | None = None, blocks: int = 2, **changed: Any) -> Record:
    return measure(wanted(server, arms, blocks, **changed))


def wanted(
    server: str = "", arms: list[Arm] | None = None, blocks: int = 2, **changed: Any
) -> Measurement:
    parameters = PARAMETERS | {"server": server, "blocks": blocks}
    options: dict[str, Any] = {"prepare": prepare, "procedure": procedure, "settings": {}} | changed
    return Measurement(study="made_up", arms=arms or ARMS, parameters=parameters, **options)


def one_block(number: int, states: str = "", **changed: Any) -> Record:
    """A block alone, as a sweep asks for it."""
    what = wanted(**changed)
    design = Design(study="made_up", arms=tuple(what.arms))
    with session(what, design, RunOptions(states=states)) as measured:
        measured.block(number)
    return read_record(measured.records[-1])


def value(record: Record, metric: str, step: str = "count") -> list[float]:
    wanted = (pl.col("metric") == metric) & (pl.col("step") == step) & (pl.col("block") > 0)
    return record.samples.filter(wanted)["value"].to_list()


def reasons(record: Record) -> dict[str, Any]:
    """Why arms were not run, by their names."""
    return dict(record.arms.select("name", "not_run").iter_rows())


def test_every_block_runs_every_arm_once_from_the_restored_state() -> None:
    record = run()
    trials = record.samples.filter(pl.col("metric") == "rows")
    assert trials.group_by("block", "arm").len()["len"].to_list() == [1] * 6
    assert value(record, "rows") == [ROWS] * 6
    assert sorted(trials["arm"].unique()) == ["plain", "plain (again)", "wide"]
    info = record.info
    assert (info["status"], info["seed"]) == ("complete", 1)
    assert info["server"]["version"] >= 130000
    names = {setting["name"] for setting in info["server"]["nondefault_settings"]}
    assert "shared_preload_libraries" in names
    assert info["host"]["hostname"]
    assert info["packages"]["psycopg"]
    assert str(info["finished_at"]) > info["started_at"]


def test_arms_take_turns_in_random_order_until_all_have_done_theirs() -> None:
    """Each turn stands between two yields; an arm with more of them goes on alone."""
    taken: list[tuple[str, int]] = []

    def story(trial: Trial, arm: Arm) -> Iterator[None]:
        for leg in range(3 + arm.options.get("extra", 0)):
            if leg:
                yield
            taken.append((arm.name, leg))
            trial.record("leg", "number", leg, "turns", iteration=leg)

    record = run(procedure=story, blocks=1)
    rounds = [{name for name, leg in taken if leg == number} for number in range(6)]
    everyone = {"plain", "plain (again)", "wide"}
    assert rounds == [everyone] * 3 + [{"wide"}] * 3
    assert [leg for _, leg in taken] == sorted(leg for _, leg in taken)
    samples = record.samples.filter(pl.col("metric") == "number")
    assert samples.filter(pl.col("turn") != pl.col("iteration") + 1).is_empty()
    assert sorted(samples.filter(pl.col("turn") == 2)["position"]) == [1, 2, 3]
    assert set(samples["group"]) == {1}


def test_a_turn_in_parts_counts_by_its_undisturbed_one() -> None:
    def in_parts(trial: Trial, _: Arm) -> Iterator[None]:
        for turn in range(3):
            for number in trial.parts(2):
                trial.record("work", "passes", 10 * turn + number, "passes")
            trial.record("whole", "turns", turn, "turns")
            yield
        for number in trial.parts(0):
            assert number == 0
            trial.record("alone", "passes", 1, "passes")

    record = run(procedure=in_parts, arms=[Arm("plain")])
    work = record.measured.filter(step="work", block=1, arm="plain")
    expected = [(10.0 * t + n, UNDISTURBED if n == 2 else AMONG_OTHERS)
                for t in range(3) for n in range(3)]  # fmt: skip
    assert work.select("value", "part").rows() == expected
    rest = record.measured.filter(pl.col("step") != "work")
    assert set(rest["part"]) == {AMONG_OTHERS}
    rounds = round_values(record.measured).filter(step="work", block=1, arm="plain")
    assert rounds["value"].to_list() == [2, 12, 22]
    both = round_values(record.measured, by=["step", "metric", "part"])
    assert both.filter(step="work", block=1, arm="plain").height == 9
    assert round_values(record.measured).filter(step="alone").height == 4


def test_a_sample_knows_whose_turn_was_before() -> None:
    def turns(trial: Trial, arm: Arm) -> Iterator[None]:
        for turn in range(4):
            if not (arm.name == "wide" and turn == 2):
                trial.record("work", "turns", turn, "turns")
            yield

    block = run(procedure=turns).measured.filter(block=1).sort("turn", "position")
    started = turn_order(["plain", "plain (again)", "wide"], 1, 1, 0)
    taken = [turn_order(started, 1, 1, turn) for turn in range(1, 5)]
    order = [(turn, name) for turn, names in enumerate(taken, 1) for name in names]
    before = dict(zip(order[1:], [name for _, name in order], strict=False))
    known = {
        place: name
        if (place[0] - (place[1] == taken[place[0] - 1][0]), name) != (3, "wide")
        else None
        for place, name in before.items()
        if place != (3, "wide")
    }
    found = {
        (turn, name): after for turn, name, after in block.select("turn", "arm", "after").rows()
    }
    assert found == {(1, taken[0][0]): None} | known


@pytest.mark.parametrize("turn", [1, 2])
def test_an_arm_that_cannot_run_leaves_the_blocks_with_its_reason_and_the_others_go_on(
    turn: int,
) -> None:
    def story(trial: Trial, arm: Arm) -> Iterator[None]:
        for number in (1, 2):
            if arm.name == "wide" and number == turn:
                raise CannotRun("there is no such thing here")
            trial.record("leg", "number", number, "turns")
            yield

    record = run(procedure=story)
    others = {"plain": None, "plain (again)": None}
    assert reasons(record) == others | {"wide": "there is no such thing here"}
    kept = record.measured.filter(metric="number")
    assert set(kept["arm"]) == others.keys()
    assert kept.sort("block", "arm", "turn")["value"].to_list() == [1, 2] * 4


def test_where_memory_does_not_hold_all_arms_they_run_in_groups_with_the_baseline(
    capsys: pytest.CaptureFixture[str],
) -> None:
    large = int(0.5 * psutil.virtual_memory().available)
    arms = [Arm("plain"), *(Arm(name, memory_bytes=large) for name in ("one", "two"))]
    record = run(arms=arms, blocks=1)
    assert record.info["groups"] == [
        ["plain", "plain (again)", "one"],
        ["plain", "plain (again)", "two"],
    ]
    assert "made_up: 4/4" in capsys.readouterr().err
    groups = record.samples.filter(pl.col("metric") == "rows").select("group", "arm").rows()
    assert sorted(groups) == [
        (1, "one"), (1, "plain"), (1, "plain (again)"),
        (2, "plain"), (2, "plain (again)"), (2, "two"),
    ]  # fmt: skip


def test_servers_take_what_they_need_of_the_disk_before_groups_are_formed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[tuple[int, str]] = []
    grouped: list[list[tuple[int, str]]] = []
    form = Instances.groups

    def begin(_: Design, info: Info, block: int, arm: Arm, server: Server) -> None:
        assert (info["study"], server.version > 0) == ("made_up", True)
        done.append((block, arm.name))

    def groups(these: Instances, units: Any) -> list[list[Arm]]:
        grouped.append(list(done))
        return form(these, units)

    monkeypatch.setattr(Design, "begin", begin)
    monkeypatch.setattr(Instances, "groups", groups)
    run(blocks=1)
    names = ["plain", "plain (again)", "wide"]
    assert grouped == [[(0, name) for name in names]]
    assert sorted(done[3:]) == [(1, name) for name in names]


def test_a_baseline_that_cannot_run_stops_the_run() -> None:
    def refuse(trial: Trial, _: Arm) -> None:
        raise CannotRun(f"not on {trial.server.version_text}")

    with pytest.raises(StudyError, match="The baseline, plain, cannot run here: not on"):
        run(procedure=refuse)


def other_server() -> str:
    """The embedded programs once more, by their directory: a second server of the same version."""
    return str(find_binaries("embedded").bindir.parent)


def test_every_arm_has_a_server_of_its_own_and_all_run_at_once() -> None:
    def servers() -> set[int]:
        children = psutil.Process().children()
        return {child.pid for child in children if child.name().startswith("postgres")}

    before = servers()
    running: list[int] = []

    def watched(trial: Trial, arm: Arm) -> None:
        running.append(len(servers() - before))
        assert trial.server.spec == (arm.server or "embedded")
        procedure(trial, arm)

    arms = [Arm("here"), Arm("there", server=other_server())]
    record = run(arms=arms, procedure=watched)
    assert value(record, "rows") == [ROWS] * 6
    assert running == [3] * 6
    assert servers() == before
    assert list(record.info["servers"]) == [other_server()]
    versions = record.arms["server"].unique().to_list()
    assert versions == [record.info["server"]["version_text"]]
    assert "compiled by" in str(record.info["servers"][other_server()]["build"])


def test_a_run_whose_arms_are_all_known_not_to_run_says_why() -> None:
    with pytest.raises(StudyError, match=r"^No arm can run here: there is no mvn\.$"):
        run(arms=[Arm("one", not_run="there is no mvn"), Arm("other", not_run="it is too old")])


def test_an_arm_whose_server_cannot_be_had_is_named_and_the_next_is_the_baseline() -> None:
    arms = [
        Arm("known", not_run="it is not for this machine"),
        Arm("found out", server="/no/such/directory"),
        Arm("plain", since="10"),
        Arm("wide", state="wide"),
        Arm("of the future", since="99"),
    ]
    record = run(arms=arms)
    table = record.arms
    assert table["name"].to_list()[:5] == ["known", "found out", "plain", "plain (again)", "wide"]
    assert table.filter("baseline")["name"].to_list() == ["plain"]
    why = table["not_run"].to_list()
    assert why[0] == "it is not for this machine"
    assert "/no/such/directory" in why[1]
    assert why[2:5] == [None] * 3
    assert why[5] == f"it needs PostgreSQL 99, not {record.info['server']['version_text']}"
    assert value(record, "rows") == [ROWS] * 6


class Stopped(Exception):  # noqa: N818
    """Stands for whatever ends a run early."""


def test_a_run_cut_short_is_continued_with_the_blocks_that_are_missing() -> None:
    seen: list[tuple[int, str]] = []
    no_more = threading.Event()

    def watched(trial: Trial, arm: Arm) -> None:
        if trial.block == 2 and arm.name == "wide" and not no_more.is_set():
            raise Stopped
        seen.append((trial.block, arm.name))
        procedure(trial, arm)

    with pytest.raises(Stopped):
        run(procedure=watched, blocks=3)
    half = list_records("made_up").row(0, named=True)
    assert (half["status"], half["blocks_done"]) == ("interrupted", 1)
    assert read_record(half["path"]).samples["block"].unique().sort().to_list() == [0, 1]

    no_more.set()
    already = len(seen)  # which this process has changed, and the user has not
    record = run(procedure=watched, blocks=3)

    del seen[:already]
    assert {block for block, _ in seen} == {2, 3}
    assert str(record.path) == half["path"]
    assert len(record.info["sessions"]) == 2
    rows = record.samples.filter(pl.col("metric") == "rows")
    assert rows.group_by("block", "arm").len().height == 9
    assert list_records("made_up").height == 1


@pytest.mark.parametrize("read", [False, True])
def test_a_run_killed_before_its_page_is_written_is_not_measured_again(
    read: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the mark, which goes once the page is there, the same run measures anew."""
    locks: list[int] = []
    create = RecordWriter.create.__func__  # type: ignore[attr-defined]

    def created(cls: type[RecordWriter], study: str, setup: Setup) -> RecordWriter:
        writer: RecordWriter = create(cls, study, setup)
        locks.append(writer._lock)
        return writer

    monkeypatch.setattr(RecordWriter, "create", classmethod(created))
    monkeypatch.setenv("PGSTUDIES_RUN_OPTIONS", json.dumps({"replies": str(tmp_path)}))
    first = run()
    os.close(locks.pop())  # as the kernel does when the process is killed
    if read:
        mark_read(first.path)
    again = run()
    assert (again.path == first.path) is not read
    assert len(locks) == read
    assert Replies(tmp_path).record == again.path
    for lock in locks:
        os.close(lock)


def test_a_session_measures_what_it_is_asked_for_and_nothing_before() -> None:
    what = wanted()
    design = Design(study="made_up", arms=tuple(what.arms))
    with session(what, design, RunOptions()) as measured:
        pass
    assert list_records("made_up").is_empty()
    with session(what, design, RunOptions()) as measured:
        measured.block(2)
        measured.block(7)
        measured.leave_out(["wide"], "there was no time")
        measured.block(8)
        assert measured.finished == [2, 7, 8]
    record = read_record(measured.records[-1])
    assert (record.info["status"], record.info["blocks"]) == ("complete", 3)
    assert set(record.measured.filter(block=8)["arm"]) == {"plain", "plain (again)"}
    assert reasons(record)["wide"] == "there was no time"


def test_places_on_the_disk_are_drawn_anew_for_states_that_are_copied_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cleared: list[ManagedServer] = []
    clear = ManagedServer.clear

    def noted(server: ManagedServer) -> None:
        cleared.append(server)
        clear(server)

    monkeypatch.setattr(ManagedServer, "clear", noted)
    run(blocks=2)
    assert len(cleared) == 2 * 3
    cleared.clear()
    monkeypatch.setattr("pgstudies.measuring.instances._COPIED_WHOLE_BYTES", 1000)
    run(blocks=1)
    assert not cleared


def test_a_comparison_adds_no_blocks_of_another_procedure_and_says_to_which_records() -> None:
    side = Side("embedded")

    def compared(block: int, procedure: Procedure = procedure) -> Session:
        what = wanted(procedure=procedure)
        design = designed("made_up", [Arm("plain")], Comparison(side, side))
        with session(what, design, RunOptions()) as measured:
            assert block not in measured.finished
            measured.block(block)
        return measured

    first, more = compared(1), compared(2)
    assert (more.finished, more.records) == ([1, 2], [*first.records, more.records[-1]])
    other = compared(1, calling)
    assert (other.finished, other.earlier) == ([1], {})
    marks = [each.info["fingerprint"] for each in (first, more, other)]
    assert marks[0] == marks[1] != marks[2]


def calling(trial: Trial, arm: Arm) -> None:
    procedure(trial, arm)


def test_a_fresh_run_continues_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    once: list[str] = []

    def stopped(trial: Trial, arm: Arm) -> None:
        procedure(trial, arm)
        once.append(arm.name)
        if len(once) == 1:
            raise Stopped

    with pytest.raises(Stopped):
        run(procedure=stopped)
    monkeypatch.setenv("PGSTUDIES_FRESH", "1")
    run(procedure=stopped)
    assert sorted(list_records("made_up")["status"]) == ["complete", "interrupted"]


def test_one_block_alone_is_as_in_the_whole_run() -> None:
    whole = run(blocks=3)
    alone = one_block(3, blocks=3)
    assert alone.info["fingerprint"] == whole.info["fingerprint"]
    assert alone.info["status"] == "complete"
    assert (alone.blocks, alone.info["blocks"]) == (1, 1)
    counted = pl.col("metric") == "rows"
    columns = ["block", "turn", "position", "arm", "value"]
    third = whole.samples.filter(counted, pl.col("block") == 3).select(columns)
    assert alone.samples.filter(counted, pl.col("block") > 0).select(columns).equals(third)


@pytest.fixture
def kept(run_base: Path) -> Iterator[Path]:
    """A directory for prepared states, on the servers' file system."""
    with tempfile.TemporaryDirectory(dir=run_base) as directory:
        yield Path(directory)


@pytest.mark.thorough
def test_a_later_block_of_a_sweep_starts_from_what_an_earlier_one_prepared(
    kept: Path, run_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def counted(trial: Trial, arm: Arm) -> None:
        calls.append(arm.state)
        prepare(trial, arm)

    def otherwise(trial: Trial, arm: Arm) -> None:
        calls.append(arm.state)
        prepare(trial, arm)

    before = set(run_base.glob("s-*"))
    first = one_block(1, str(kept), prepare=counted)
    second = one_block(2, str(kept), prepare=counted)
    assert calls == ["plain", "wide"]
    prepared = [r.samples.filter(pl.col("block") == 0) for r in (first, second)]
    assert prepared[0].height > 0
    assert prepared[0].equals(prepared[1])
    for record in (first, second):
        assert value(record, "rows") == [ROWS] * 3
    monkeypatch.setitem(PARAMETERS, "seed", 2)
    one_block(2, str(kept), prepare=counted)
    assert len(calls) == 4
    one_block(2, str(kept), prepare=otherwise)
    assert len(calls) == 6
    one_block(3, str(kept), prepare=otherwise)
    assert len(calls) == 6
    assert {path.stat().st_mode & 0o777 for path in kept.iterdir()} == {0o700}
    assert len(list(kept.iterdir())) == 6
    assert set(run_base.glob("s-*")) == before


def test_a_server_killed_in_mid_block_leaves_a_record_that_continues() -> None:
    killed: list[int] = []

    def kill(trial: Trial, arm: Arm) -> None:
        procedure(trial, arm)
        if trial.block == 2 and not killed:
            killed.extend(trial.server.pids())
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            trial.execute("SELECT 1")

    with pytest.raises(ServerError, match="The server went away in block 2"):
        run(procedure=kill)
    path = list_records("made_up")["path"][0]
    assert read_record(path).blocks == 1
    record = run(procedure=kill)
    assert str(record.path) == path
    assert record.blocks == 2


def test_a_statement_that_is_cancelled_is_no_server_that_went_away() -> None:
    def cancelled(trial: Trial, _: Arm) -> None:
        trial.execute("SET statement_timeout = 1")
        trial.execute("SELECT pg_sleep(10)")

    with pytest.raises(psycopg.errors.QueryCanceled):
        run(procedure=cancelled)


def test_an_arm_whose_extension_does_not_load_is_left_out_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ManagedServer, "provide", lambda *_: None)

    def loads(trial: Trial, arm: Arm) -> None:
        if arm.extension:
            trial.execute(f"LOAD '{arm.extension}'")
        procedure(trial, arm)

    arms = [*ARMS, Arm("extended", "needs a library", extension="no_such_library")]
    record = run(arms=arms, procedure=loads)
    found = dict(record.not_run.select("arm", "reason").iter_rows())
    assert found.keys() == {"extended"}
    assert 'fails on this server: could not access file "no_such_library"' in found["extended"]
    assert "no_such_library" in record.info["code"]


FULL = """DO $$ BEGIN
    RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full';
END $$"""


def test_a_disk_that_fills_is_told_as_such_and_only_blocks_before_are_kept() -> None:
    def fill(trial: Trial, arm: Arm) -> None:
        if trial.block != 1:
            trial.execute(FULL)
        procedure(trial, arm)

    with pytest.raises(SpaceError, match="No space left"):
        run(prepare=fill)
    assert list_records("made_up").is_empty()
    with pytest.raises(SpaceError, match="No space left"):
        run(procedure=fill)
    assert read_record(list_records("made_up")["path"][0]).blocks == 1


SUBPROCESS = """
import os, sys
sys.path.insert(0, {tests!r})
from tests.measuring.test_measure import run, procedure
def slow(trial, arm):
    if trial.block == 2:
        print(" ".join(map(str, trial.server.pids())), flush=True)
        trial.execute("SELECT pg_sleep(600)")
    procedure(trial, arm)
run(procedure=slow, blocks=2)
"""


def test_python_killed_in_mid_block_leaves_no_server_and_a_readable_record() -> None:
    code = SUBPROCESS.format(tests=str(ROOT))
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    servers = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
    assert servers
    process.kill()
    process.wait()
    process.stdout.close()

    assert wait_until_dead(servers)
    found = list_records("made_up").row(0, named=True)
    assert (found["status"], found["blocks_done"]) == ("unfinished", 1)
    assert read_record(found["path"]).blocks == 1


@pytest.mark.parametrize("role", [BUILDER, LESSER])
def test_on_somebody_elses_server_what_cannot_be_had_is_named(
    stranger: ManagedServer, role: str
) -> None:
    def careful(trial: Trial, arm: Arm) -> None:
        trial.checkpoint()
        assert not trial.make_cold("t", step="count")
        procedure(trial, arm)

    arms = [Arm("plain"), Arm("big buffers", settings={"shared_buffers": "1GB"})]
    record = run(dsn_of(stranger, role), arms, procedure=careful)

    assert value(record, "rows") == [ROWS] * 4
    assert "needs a restart of the server" in str(reasons(record)["big buffers"])
    assert record.not_run.select("step", "case").unique().sort("step").rows() == [
        ("all", ""),
        ("checkpoint", ""),
        ("count", "cold"),
    ]
    assert "w0rd" not in json.dumps(record.info)  # which no spelling of the password lacks


def test_a_record_is_replayed_without_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = run(blocks=1)
    monkeypatch.setenv("PGSTUDIES_REPLAY", str(record.path))
    monkeypatch.setenv("PGSTUDIES_SERVER", "no server at all")
    options = RunOptions(replies=str(tmp_path)).environment()["PGSTUDIES_RUN_OPTIONS"]
    monkeypatch.setenv("PGSTUDIES_RUN_OPTIONS", options)
    again = run(blocks=99)
    assert again.samples.equals(record.samples)
    assert again.parameters["blocks"] == 1
    assert Replies(tmp_path).record == record.path


def installations() -> list[Path]:
    """Other releases: Debian's, and those that $PGSTUDIES_TEST_BINARIES lists."""
    listed = os.environ.get("PGSTUDIES_TEST_BINARIES", "").split(os.pathsep)
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return [*(found.parents[1] for found in debian), *(Path(entry) for entry in listed if entry)]


@pytest.mark.usefixtures("on_disk")
@pytest.mark.parametrize("directory", installations(), ids=str)
def test_other_releases_are_measured_the_same_way(directory: Path) -> None:
    def cold(trial: Trial, arm: Arm) -> None:
        assert trial.make_cold("t", step="count")
        trial.timed("count", "SELECT count(*) FROM t", case="cold")
        procedure(trial, arm)

    record = run(str(directory), blocks=1, procedure=cold)
    assert value(record, "rows") == [ROWS] * 3
    by_case = record.samples.filter(pl.col("metric") == "read_bytes", pl.col("case") == "cold")
    assert by_case["value"].min() > 0  # type: ignore[operator]
