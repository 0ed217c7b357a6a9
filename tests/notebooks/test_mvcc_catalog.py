"""The arms of the study of catalogs, its sessions, and what its page reads from a record."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import polars as pl
import psycopg
import pytest

import pgstudies as pg
from pgapps.builds.served import NO_REPOSITORY
from pgservers.errors import CannotRun, ServerError, StudyError
from pgservers.servers.serve import serve
from pgservers.sessions import reason_no_room, room_for_sessions
from pgstudies.analysis.agreement import judge
from pgstudies.analysis.claims import claims, origins
from pgstudies.notebook import Study
from pgstudies.rooms import study_module
from tests import made_up
from tests.servers_at_hand import BUILDER, dsn_of

if TYPE_CHECKING:
    from pathlib import Path

    from pgservers.servers.managed import ManagedServer
    from pgservers.servers.serve import Server

ARMS = study_module("mvcc_catalog", "arms")
READING = study_module("mvcc_catalog", "reading")
SESSIONS = study_module("mvcc_catalog", "sessions")

RATIOS = pl.DataFrame(
    [
        {"battery": battery, "test": test, "connections": connections, "ratio": ratio}
        for battery, test, connections, ratio in [
            (1, "drop", 500, 9.0),
            *((2, test, 250, 1.1) for test in ("create", "drop", "startup")),
            *((2, test, 2000, 1.65) for test in ("create", "drop", "startup")),
        ]
    ]
)


def arms_by_name(*, of_commits: bool = False, **wanted: Any) -> dict[str, Any]:
    """The arms of the commits, or all others."""
    none: dict[str, Any] = {"server": "", "releases": [], "prepared": [], "sessions": []}
    arms = ARMS.arms(repo="", **none | wanted)
    return {arm.name: arm for arm in arms if (arm.options["release"] in ARMS.COMMITS) is of_commits}


def test_without_any_release_the_embedded_server_takes_their_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for lacking in (set(), {"9.3"}, {"9.3", "18"}):
        monkeypatch.setattr(pg, "reason_not_available", lambda r, no=lacking: "no" * (r in no))
        found = arms_by_name(releases=["9.3", "18"])
        assert (f"{ARMS.THIS_SERVER}, none" in found) == (len(lacking) == 2)
        assert any(not arm.not_run for arm in found.values())


def test_the_baselines_arms_come_twice_and_the_first_two_releases_have_sessions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pg, "reason_not_available", lambda _: None)
    arms = arms_by_name(releases=["9.3", "9.6", "13"], prepared=[80, 20, 80], sessions=[20])
    held = ["none", "20 prepared", "80 prepared", "20 sessions"]
    again = ["20 prepared (again)", "80 prepared (again)"]
    of_releases = {"9.3": [*held, *again], "9.6": held, "13": held[:3]}
    assert list(arms) == [f"{of}, {what}" for of, each in of_releases.items() for what in each]
    assert arms["9.3, 20 prepared (again)"].copy_of == "9.3, 20 prepared"
    assert arms["9.3, 20 sessions"].memory_bytes == 40 * 2**20
    states = [arms[f"9.3, {what}"].state for what in ("none", "20 prepared", "20 sessions")]
    assert states == ["plain", "20 prepared", "plain"]


def test_a_server_of_the_users_is_measured_beside_the_releases_or_alone() -> None:
    alone = arms_by_name(prepared=[20], sessions=[5])
    assert list(alone) == [f"this server, {what}" for what in ("none", "20 prepared", "5 sessions")]
    assert {(arm.server, arm.not_run) for arm in alone.values()} == {(None, None)}
    beside = arms_by_name(server="embedded", releases=["9.3"])
    assert list(beside) == ["9.3, none", "this server, none"]


def test_without_a_clone_the_commits_are_not_run() -> None:
    wanted: dict[str, Any] = {"releases": ["9.3"], "prepared": [80, 20, 40], "sessions": [5, 10]}
    found = arms_by_name(of_commits=True, **wanted)
    held = ["none", "20 prepared", "40 prepared", "80 prepared", "5 sessions", "10 sessions"]
    assert list(found) == [
        *(f"before, {what}" for what in held),
        *(f"after, {what}" for what in held),
        "before, 20 prepared (again)",
        "before, 80 prepared (again)",
    ]
    assert {arm.not_run for arm in found.values()} == {NO_REPOSITORY}
    assert {arm.together for arm in found.values()} == {"the commits"}
    servers = {arm.server for name, arm in found.items() if name.startswith("before")}
    assert servers == {"commit-384f933046"}
    assert found["after, none"].server == "commit-568d4138c6"
    assert found["before, 20 prepared (again)"].copy_of == "before, 20 prepared"


def test_claims_about_the_patch_are_judged_by_the_commit() -> None:
    asked = claims("mvcc_catalog", places=origins()["mvcc_catalog"].places)
    judging = {claim.id: claim.by_commit for claim in asked if claim.by_commit}
    ends = [f"{end}{what}" for end in ("few", "most") for what in ("", ", drop", ", start")]
    assert judging.keys() == {"drop", "create", "start", "commit", *ends}
    for claim in judging.values():
        sides = [str(claim.comparison[side]) for side in ("baseline", "candidate")]
        assert [side.removesuffix(", sessions") for side in sides] == list(ARMS.COMMITS)
        assert claim.commit == ARMS.COMMITS["after"][0]
        assert (claim.requires, claim.not_tested) == ((), None)


def record_of(*opened: tuple[str, int, str]) -> Any:
    """A record of arms with these releases, numbers and holders; the last one was not run."""
    names = [f"{release}, {number} {holder}" for release, number, holder in opened]
    options = [dict(zip(("release", "open", "holder"), place, strict=True)) for place in opened]
    arms = [
        {"name": name, "copy_of": None, "options": each}
        for name, each in zip(names, options, strict=True)
    ]
    return SimpleNamespace(
        info={"arms": arms},
        arms=pl.DataFrame({"name": names, "server": "PostgreSQL 9.3.25 on x86_64"}),
        measured=pl.DataFrame({"arm": names[:-1]}),
        reasons={names[-1]: "no room"},
    )


def test_sessions_are_a_line_of_their_own_and_begin_where_their_server_does() -> None:
    none, twenty, by_sessions = ("9.3", 0, "none"), ("9.3", 20, "prepared"), ("9.3", 20, "sessions")
    lines = READING.lines_of(record_of(none, twenty, by_sessions, ("9.6", 0, "none")))
    assert lines.select("home", "release", "open").rows() == [
        ("9.3.25", "9.3.25", 0),
        ("9.3.25", "9.3.25", 20),
        ("9.3.25", "9.3.25, sessions", 20),
    ]
    own = {"block": 1, "round": 1, "what": "drop", "metric": "cpu_s"}
    rounds = lines.with_columns(
        value=pl.Series([2.0, 3.0, 5.0]), **{name: pl.lit(value) for name, value in own.items()}
    )
    begun = READING.from_none(rounds, lines).filter(open=0)
    both = {("9.3.25", 2.0), ("9.3.25, sessions", 2.0)}
    assert set(begun.select("release", "value").rows()) == both
    grown = READING.relative_to([0], rounds).select("release", "value", "since")
    assert grown.rows() == [("9.3.25", 1.5, 0), ("9.3.25, sessions", 2.5, 0)]
    assert READING.relative_to([20], rounds).is_empty()


def test_sessions_judge_where_both_releases_have_all_numbers_so_held() -> None:
    lines = pl.DataFrame(
        {"release": ["9.3", "9.3, sessions", "9.6", "9.6, sessions"], "open": [250] * 4}
    )
    assert READING.by_sessions(lines, ["9.3", "9.6"], [250]) == ", sessions"
    assert READING.by_sessions(lines, ["9.3", "9.6"], [250, 2000]) == ""
    assert READING.by_sessions(lines, ["9.3", "13"], [250]) == ""


def test_a_record_without_open_transactions_is_refused() -> None:
    with pytest.raises(StudyError, match=r"^Nothing was measured .* open: no room\.$"):
        READING.lines_of(record_of(("9.3", 0, "none"), ("9.3", 20, "prepared")))


def test_a_statements_seconds_are_those_of_its_objects_and_the_first_is_left_out() -> None:
    rows = [("create", "first", 9.0), ("create", "many at once", 5.0), ("start", "a path", 0.25)]
    samples = pl.DataFrame(rows, schema=["step", "case", "value"], orient="row")
    costs = READING.costs_of(samples.with_columns(metric=pl.lit("cpu_s")), at_once=50)
    found = dict(costs.select("what", "value").rows())
    assert found == {"create, many at once": 0.1, "start, a path": 0.25}


def test_the_posts_numbers_are_those_of_its_second_battery() -> None:
    assert READING.ends_in_post(RATIOS, [0, 250, 500, 2000, 4000]) == (250, 2000)
    assert READING.ends_in_post(RATIOS, [0, 2000]) == (2000, 2000)
    assert READING.ends_in_post(RATIOS, [0, 20]) == (None, None)
    told = READING.told_by_post(RATIOS, 250, 2000, None)
    grown, few = dict.fromkeys(("drop", "create", "start"), 1.5), {"few": 1.1}
    assert {name: told[name] for name in (*grown, *few)} == pytest.approx(grown | few)
    assert told["most, drop"] == pytest.approx(told["drop"] * told["few, drop"])
    assert told["drop today"] == told["commit"] == told["drop"]
    assert READING.told_by_post(RATIOS, 250, 2000, "why")["drop"] is None
    alone = READING.told_by_post(RATIOS, 2000, 2000, None)
    assert alone["create"] is alone["most"] is None
    assert set(READING.told_by_post(RATIOS, None, None, "why").values()) == {None}


def test_the_percentage_is_the_posts() -> None:
    shown = pl.DataFrame({"ratio": [1.5]}).select(READING.post_formula(pl.col("ratio")))
    assert shown.item() == 40


def test_each_reason_speaks_where_its_condition_fails_and_is_silent_elsewhere() -> None:
    assert READING.reason_missing(["9.3", "13"], 2000) == "release 9.6 was not run"
    assert "none of the post's numbers" in READING.reason_missing(["9.3", "9.6"], None)
    assert READING.reason_missing(["9.3", "9.6"], 2000) is None
    assert READING.reason_missing(["18", "before", "after"], 2000) is None
    listed = pl.DataFrame({"metric": "xids", "value": [20.0, 21.0], "open": [20, 20]})
    assert READING.reason_not_held(listed) is None
    assert "did not list all" in READING.reason_not_held(listed.with_columns(open=21))


def test_what_is_counted_is_yes_no_or_not_known() -> None:
    def answers(touched: float, objects: float) -> list[bool | None]:
        rows = [("xids", 20.0, "hold", ""), ("objects", objects, "create", "many at once")]
        rows.append(("objects", 0.0, "drop", "many at once"))
        columns = ["metric", "value", "step", "case"]
        samples = pl.DataFrame(rows, schema=columns, orient="row").with_columns(open=20)
        where: dict[str, Any] = {"block": 1, "release": "9.3.25", "turn": 1, "step": "drop"}
        work = pl.DataFrame(where | {"open": [0, 20], "value": [10.0, touched]})
        assert READING.growth_of_work(work.clear(), 20) is None
        # Unknown where one side was not counted.
        apart = work.with_columns(block=pl.col("open") + 1)
        assert READING.growth_of_work(apart, 20) is None
        return list(READING.counted(samples, work, 20, 50).values())

    assert answers(10.5, 50) == [True, True, True, None, None, True]
    assert answers(12.0, 49) == [True, False, True, None, None, False]


# The very commits

COSTS = {
    "9.3": {0: 1.0, 250: 1.0, 2000: 1.1},
    "9.6": {0: 2.0, 250: 2.2, 2000: 4.4},
    "before": {0: 1.0, 250: 1.0, 2000: 1.2},
    "after": {0: 1.0, 250: 1.1, 2000: 1.8},
}
"""Seconds for an object, by server and open transactions."""

VERSIONS = {"9.3": "9.3.25", "9.6": "9.6.24", "before": "9.4devel", "after": "9.4devel"}


def run_of(*servers: str, sessions: bool = False) -> Any:
    """The page of six blocks in which these servers dropped and created one object at a time."""
    holders = ("prepared", "sessions") if sessions else ("prepared",)
    options: dict[str, dict[str, Any]] = {
        f"{server}, {number} {holder}" if number else f"{server}, none": {
            "release": server,
            "open": number,
            "holder": holder if number else "none",
        }
        for server in servers
        for holder in holders
        for number in COSTS[server]
    }
    first = f"{servers[0]}, none"
    again = f"{first} (again)"
    options[again] = options[first]
    took = {name: [COSTS[o["release"]][o["open"]]] * 6 for name, o in options.items()}
    steps = [("drop", "many at once"), ("create", "many at once")]
    measured = pl.concat(
        made_up.samples(took, metric="cpu_s", step=step, case=case, iteration=0)
        for step, case in steps
    )
    versions = [f"PostgreSQL {VERSIONS[o['release']]} on x86_64" for o in options.values()]
    arms = [
        {"name": name, "copy_of": first if name == again else None, "options": o}
        for name, o in options.items()
    ]
    record: Any = SimpleNamespace(
        measured=measured,
        parameters={"at_once": 1},
        info={"arms": arms},
        arms=pl.DataFrame({"name": [*options], "server": versions}),
        reasons={},
    )
    study = Study("mvcc_catalog", {})
    study._record = record
    return READING.run_of(study)


def effects_of(run: Any) -> pl.DataFrame:
    """The growth of releases."""
    rounds = READING.rounds_of(READING.costs_of(run.samples, 1), run.lines)
    relative = READING.relative_to([0, run.fewest], rounds)
    effects: pl.DataFrame = READING.growth_effects(relative, run.first)
    return effects


def verdicts_of(run: Any) -> dict[str, dict[str, Any]]:
    told = READING.told_by_post(run.ratios, run.few, run.most, run.missing)
    how: dict[str, Any] = {"published": told, "not_tested": run.missing}
    asked = claims("mvcc_catalog", places=READING.places(run), **how)
    of_commit = READING.effects_of_commit(run, 1)
    effects = pl.concat([effects_of(run), *of_commit], how="diagonal_relaxed")
    return {row["claim"]: row for row in judge(asked, effects).iter_rows(named=True)}


def test_the_commit_judges_where_it_was_measured_and_the_releases_stand_beside_it() -> None:
    run = run_of(*COSTS)
    found = verdicts_of(run)
    grown, direct = found["drop"], found["most, drop"]
    for row in (grown, direct, found["most"]):
        sides = (row["baseline"], row["candidate"])
        assert (row["commit"], *sides) == ("568d4138c6", "before", "after")
    assert grown["ratio"] == found["commit"]["ratio"] == pytest.approx(1.8 / 1.1 / 1.2)
    assert grown["stood_in"] == pytest.approx(2 / 1.1)
    assert direct["ratio"] == found["most"]["ratio"] == pytest.approx(1.8 / 1.2)
    assert direct["stood_in"] == pytest.approx(2.2 / 1.1)
    assert found["few, drop"]["ratio"] == pytest.approx(1.1)
    of_today = found["drop today"]
    assert (of_today["commit"], of_today["baseline"]) == (None, "9.3.25")
    assert set(effects_of(run)["candidate"]) == {"9.6.24"}


def test_the_commits_costs_stand_beside_those_of_the_post() -> None:
    run = run_of(*COSTS, sessions=True)
    table, growth = READING.commit_tables(READING.effects_of_commit(run, 1), run)
    at_most = table.filter(what="drop, many at once", open=2000)
    assert at_most["held"].to_list() == ["prepared", "sessions"]
    assert at_most["before, µs"].to_list() == pytest.approx([1.2e6] * 2)
    assert at_most["after, µs"].to_list() == pytest.approx([1.8e6] * 2)
    post = at_most.select("post, before", "post, after", "post, ratio").row(0)
    assert post == (307.4, 434.4, 1.413)
    without = table.filter(what="create, many at once", open=0).row(0, named=True)
    assert (without["held"], without["post, before"]) == ("none", None)
    assert growth["ratio"].to_list() == pytest.approx([1.364] * 4)


def test_the_commit_alone_is_judged_with_prepared_transactions() -> None:
    run = run_of(*COSTS, sessions=True)
    found = verdicts_of(run)
    assert READING.places(run)["held"] == "sessions"
    assert found["drop"]["baseline"] == "before, sessions"
    assert found["commit"]["baseline"] == "before"


def test_the_commit_judges_without_the_releases_that_stand_beside_it() -> None:
    run = run_of("9.6", "before", "after")
    assert run.missing is None
    found = verdicts_of(run)
    assert (found["drop"]["commit"], found["drop"]["stood_in"]) == ("568d4138c6", None)


def test_without_the_commit_the_releases_judge() -> None:
    run = run_of("9.3", "9.6")
    found = verdicts_of(run)
    assert {row["commit"] for row in found.values()} == {None}
    assert found["drop"]["ratio"] == pytest.approx(2 / 1.1)
    assert found["commit"]["verdict"].startswith("not tested: both servers are built from a clone")
    assert READING.commit_tables(READING.effects_of_commit(run, 1), run) == []


# Transactions held open


def idle_in_transaction(server: ManagedServer) -> int:
    query = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'"
    with server.connect() as connection:
        (count,) = connection.execute(query).fetchone() or (0,)
    return int(count)


@pytest.mark.parametrize("count", [0, 1, 70])
def test_a_snapshot_lists_every_transaction_held_and_none_afterwards(
    managed: ManagedServer, count: int
) -> None:
    processes = len(managed.session_pids())
    with SESSIONS.hold_transactions(managed, count) as held:
        assert held == count
        assert idle_in_transaction(managed) == count
    assert len(managed.session_pids()) <= processes
    assert idle_in_transaction(managed) == 0


def test_an_error_meanwhile_leaves_no_session_behind(managed: ManagedServer) -> None:
    processes = len(managed.session_pids())
    with pytest.raises(KeyboardInterrupt), SESSIONS.hold_transactions(managed, 5):
        raise KeyboardInterrupt
    assert len(managed.session_pids()) <= processes


def test_more_than_the_server_takes_is_refused_with_the_number_that_fits(
    managed: ManagedServer,
) -> None:
    room = room_for_sessions(managed)
    assert 50 < room < 100
    refused = pytest.raises(CannotRun, match=f"200 sessions do not fit.* {room} connections")
    with refused, SESSIONS.hold_transactions(managed, 200):
        pass
    with SESSIONS.hold_transactions(managed, room) as held:
        assert held == room


def test_a_session_refused_while_others_are_opened_is_an_error_and_closes_those(
    managed: ManagedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SESSIONS, "reason_no_room", lambda *_: None)
    processes = len(managed.session_pids())
    refused = pytest.raises(ServerError, match=r"Only \d+ of 150 sessions could be opened: ")
    with refused, SESSIONS.hold_transactions(managed, 150):
        pass
    assert len(managed.session_pids()) <= processes


def test_sessions_of_somebody_elses_server_are_those_of_the_role(stranger: ManagedServer) -> None:
    with serve(dsn_of(stranger, BUILDER)) as server, SESSIONS.hold_transactions(server, 5) as held:
        assert held == 5
        with stranger.connect() as connection:
            query = """
                SELECT count(*) FROM pg_stat_activity
                WHERE usename = %s AND backend_xid IS NOT NULL
            """
            assert connection.execute(query, [BUILDER]).fetchone() == (5,)
    assert idle_in_transaction(stranger) == 0


def room_at_rest(server: Server) -> int:
    """The room for sessions once those that are being closed have ended, which takes a moment."""
    found = [room_for_sessions(server)]
    while len(found) < 5 or len(set(found[-5:])) > 1:
        time.sleep(0.1)
        found.append(room_for_sessions(server))
    return found[-1]


def test_half_of_what_is_free_on_a_server_of_others_is_left_to_them(
    stranger: ManagedServer,
) -> None:
    with serve(dsn_of(stranger, BUILDER)) as server:
        taken = room_at_rest(server)
        assert 20 < taken <= (100 - 3) // 2
        with SESSIONS.hold_transactions(server, taken), stranger.connect() as connection:
            query = (
                "SELECT 97 - count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
            )
            (left,) = connection.execute(query).fetchone() or (0,)
            assert left >= taken
        assert room_at_rest(server) == taken
        reason = str(reason_no_room(server, taken + 1))
        assert f"of which {taken}, half of them, may be used on an external server" in reason


def test_the_address_is_enough_for_another_client(managed: ManagedServer) -> None:
    with psycopg.connect(SESSIONS.conninfo(managed)) as connection:
        assert connection.execute("SELECT current_database()").fetchone() == ("pgstudies",)


def test_semaphores_limit_the_room_for_servers_before_10(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limits, used = tmp_path / "sem", tmp_path / "used"
    limits.write_text("32000\t1024000000\t500\t12\n")
    used.write_text("key semid perms nsems\n 1 0 600 17\n 2 1 600 17\n")
    monkeypatch.setattr(SESSIONS, "_SEMAPHORE_LIMITS", limits)
    monkeypatch.setattr(SESSIONS, "_SEMAPHORES_USED", used)
    # The machine's own room changes with every process that starts beside this one.
    monkeypatch.setattr(SESSIONS, "room_on_any_server", lambda: 5000)
    fit = (12 - 2) * 16 - 50
    assert SESSIONS.room_for_sessions() == fit < 5000
    monkeypatch.setattr(SESSIONS, "_SEMAPHORE_LIMITS", tmp_path / "none")
    assert SESSIONS.room_for_sessions() == 5000
