"""The arms of the study of catalogs, and what its page reads from a record."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

import pgstudies as pg
from pgstudies.errors import StudyError

ARMS = pg.beside("mvcc_catalog", "arms")
READING = pg.beside("mvcc_catalog", "reading")

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


def arms_by_name(**wanted: Any) -> dict[str, Any]:
    none: dict[str, Any] = {"server": "", "releases": [], "prepared": [], "sessions": []}
    arms = ARMS.arms(**none | wanted)
    return {arm.name: arm for arm in arms}


def test_the_baselines_arms_come_twice_and_the_first_two_releases_have_sessions() -> None:
    arms = arms_by_name(releases=["9.3", "9.6", "13"], prepared=[80, 20, 80], sessions=[20])
    assert list(arms) == [
        "9.3, none",
        "9.3, 20 prepared",
        "9.3, 80 prepared",
        "9.3, 20 sessions",
        "9.3, 20 prepared (again)",
        "9.3, 80 prepared (again)",
        "9.6, none",
        "9.6, 20 prepared",
        "9.6, 80 prepared",
        "9.6, 20 sessions",
        "13, none",
        "13, 20 prepared",
        "13, 80 prepared",
    ]
    assert arms["9.3, 20 prepared (again)"].copy_of == "9.3, 20 prepared"
    assert arms["9.3, 20 sessions"].memory_bytes == 40 * 2**20
    assert [arms[f"9.3, {what}"].state for what in ("none", "20 prepared", "20 sessions")] == [
        "plain",
        "20 prepared",
        "plain",
    ]


def test_a_server_of_the_users_is_measured_beside_the_releases_or_alone() -> None:
    alone = arms_by_name(prepared=[20], sessions=[5])
    assert list(alone) == [f"this server, {what}" for what in ("none", "20 prepared", "5 sessions")]
    assert {(arm.server, arm.not_run) for arm in alone.values()} == {(None, None)}
    beside = arms_by_name(server="embedded", releases=["9.3"])
    assert list(beside) == ["9.3, none", "this server, none"]


def record_of(*opened: tuple[str, int, str]) -> Any:
    """A record of arms with these releases, numbers and holders; the last one was not run."""
    names = [f"{release}, {number} {holder}" for release, number, holder in opened]
    return SimpleNamespace(
        info={
            "arms": [
                {
                    "name": name,
                    "copy_of": None,
                    "options": {"release": release, "open": number, "holder": holder},
                }
                for name, (release, number, holder) in zip(names, opened, strict=True)
            ]
        },
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
    begun = READING.from_none(rounds, lines).filter(pl.col("open") == 0)
    assert set(begun.select("release", "value").rows()) == {
        ("9.3.25", 2.0),
        ("9.3.25, sessions", 2.0),
    }
    grown = READING.relative_to([0], rounds).select("release", "value", "since")
    assert grown.rows() == [("9.3.25", 1.5, 0), ("9.3.25, sessions", 2.5, 0)]
    assert READING.relative_to([20], rounds).is_empty()


def test_a_record_without_open_transactions_is_refused() -> None:
    with pytest.raises(StudyError, match=r"^Nothing was measured .* open: no room\.$"):
        READING.lines_of(record_of(("9.3", 0, "none"), ("9.3", 20, "prepared")))


def test_a_statements_seconds_are_those_of_its_objects_and_the_first_is_left_out() -> None:
    samples = pl.DataFrame(
        {
            "step": ["create", "create", "start"],
            "case": ["first", "many at once", "the post's path"],
            "metric": "cpu_s",
            "value": [9.0, 5.0, 0.25],
        }
    )
    costs = READING.costs_of(samples, at_once=50)
    assert dict(costs.select("what", "value").rows()) == {
        "create, many at once": 0.1,
        "start, the post's path": 0.25,
    }


def test_the_posts_numbers_are_those_of_its_second_battery() -> None:
    assert READING.ends_in_post(RATIOS, [0, 250, 500, 2000, 4000]) == (250, 2000)
    assert READING.ends_in_post(RATIOS, [0, 2000]) == (2000, 2000)
    assert READING.ends_in_post(RATIOS, [0, 20]) == (None, None)
    told = READING.told_by_post(RATIOS, 250, 2000, tested=True)
    assert told == pytest.approx({"drop": 1.5, "create": 1.5, "start": 1.5, "few": 1.1})
    assert READING.told_by_post(RATIOS, 250, 2000, tested=False)["drop"] is None
    assert READING.told_by_post(RATIOS, 2000, 2000, tested=True)["create"] is None
    assert set(READING.told_by_post(RATIOS, None, None, tested=False).values()) == {None}


def test_the_percentage_is_the_posts() -> None:
    shown = pl.DataFrame({"ratio": [1.5]}).select(READING.post_formula(pl.col("ratio")))
    assert shown.item() == 40


def test_each_reason_speaks_where_its_condition_fails_and_is_silent_elsewhere() -> None:
    assert READING.reason_missing(["9.3", "13"], 2000) == "release 9.6 was not run"
    assert "none of the post's numbers" in READING.reason_missing(["9.3", "9.6"], None)
    assert READING.reason_missing(["9.3", "9.6"], 2000) is None
    listed = pl.DataFrame({"metric": "xids", "value": [20.0, 21.0], "open": [20, 20]})
    assert READING.reason_not_held(listed) is None
    assert "did not list all" in READING.reason_not_held(listed.with_columns(open=21))


def test_what_is_counted_is_yes_no_or_not_known() -> None:
    def answers(touched: float, objects: float) -> list[bool | None]:
        samples = pl.DataFrame(
            {
                "metric": ["xids", "objects", "objects"],
                "value": [20.0, objects, 0.0],
                "open": 20,
                "step": ["hold", "create", "drop"],
                "case": ["", "many at once", "many at once"],
            }
        )
        work = pl.DataFrame(
            {
                "block": 1,
                "release": "9.3.25",
                "turn": 1,
                "step": "drop",
                "open": [0, 20],
                "value": [10.0, touched],
            }
        )
        assert READING.growth_of_work(work.clear(), 20) is None
        return list(READING.counted(samples, work, 20, 50).values())

    assert answers(10.5, 50) == [True, True, True, None, None, True]
    assert answers(12.0, 49) == [True, False, True, None, None, False]
