"""What a kernel writes to stderr, in a terminal and in a log."""

from __future__ import annotations

import io
import os

import pytest

from pgservers.terminal import LinesOnly, Progress, Relay, notice, printable


class Terminal(io.StringIO):
    """A stream that claims to be a terminal; ``seen`` returns the lines it shows."""

    def isatty(self) -> bool:
        return True

    def seen(self) -> list[str]:
        rows = []
        for line in self.getvalue().split("\n"):
            row = ""
            for part in line.split("\r"):
                row = part + row[len(part) :]
            rows.append(row.rstrip())
        return rows


def last_bar(stream: io.StringIO) -> str:
    return stream.getvalue().rpartition("\r")[2].rstrip()


class Clock:
    """A clock that shows ``now`` until a test changes it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_lines_pass_through_both() -> None:
    for stream in (io.StringIO(), Terminal()):
        relay = Relay(stream)
        relay.write("one\ntw")
        relay.write("o\n\n")
        relay.flush()
        assert stream.getvalue() == "one\ntwo\n\n"


def test_a_terminal_shows_the_latest_state_of_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((20, 24)))
    monkeypatch.delenv("COLUMNS", raising=False)
    screen = Terminal()
    relay = Relay(screen)
    relay.write("\rstudy: 1/3 a long text about it")
    assert screen.seen() == ["study: 1/3 a long t"]
    relay.write("\rstudy: 2/3")
    assert screen.seen() == ["study: 2/3"]
    relay.write("\r          \rheap: not run: no disk\n\rstudy: 3/3")
    assert screen.seen() == ["heap: not run: no disk", "study: 3/3"]
    relay.write("\n")
    assert screen.seen() == ["heap: not run: no disk", "study: 3/3", ""]


def test_several_write_lines_to_a_terminal_and_overwrite_none() -> None:
    screen = Terminal()
    one, other = (Relay(LinesOnly(screen)) for _ in range(2))
    one.write("\rone: 1/2")
    other.write("\rother: 1/1\n")
    one.write("\rone: 2/2\n")
    assert screen.getvalue() == "other: 1/1\none: 2/2\n"


def test_a_log_has_a_line_of_a_bar_now_and_then() -> None:
    log, clock = io.StringIO(), Clock()
    relay = Relay(log, interval_s=10, clock=clock)
    for done in range(30):
        clock.now += 1
        relay.write(f"\rstudy: {done}/30")
    relay.write("\r          \rheap: not run: no disk\n")
    relay.write("\rstudy: 30/30\n")
    assert log.getvalue().splitlines() == [
        "study: 9/30",
        "study: 19/30",
        "study: 29/30",
        "heap: not run: no disk",
        "study: 30/30",
    ]


def test_a_sentence_above_a_bar_begins_its_line() -> None:
    for stream in (io.StringIO(), Terminal()):
        with Progress("study", 2, stream=Relay(stream)) as progress:
            progress.note("Time is up.")
            progress.advance(2)
        assert "Time is up." in stream.getvalue().replace("\r", "\n").split("\n")


def test_text_from_elsewhere_cannot_move_the_cursor() -> None:
    assert printable("a\x1b[31mé\u00a0−\n\u202e\x9b") == "a\\x1b[31mé\u00a0−\\n\\u202e\\x9b"


def test_a_bar_within_another_takes_its_line() -> None:
    for relayed in (False, True):
        clock, screen = Clock(), Terminal()
        stream = Relay(screen) if relayed else screen
        with Progress("a study of some length", 2, stream=stream, clock=clock) as around:
            with Progress("fetching", 0, clock=clock):
                assert screen.seen() == ["fetching: 00:00"]
            clock.now = 1.0
            around.show("block 1")
            assert screen.seen() == [
                "fetching: 00:00",
                "a study of some length: 0/2 |                    | 00:01<?, block 1"[:79],
            ]


def test_a_log_of_a_command_has_plain_lines_only(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Progress("study", 2, clock=clock) as progress:
        clock.now = 3661.0
        progress.show("block 1")
        notice("The load is high.")
        progress.advance(2)
    bar = "study: 2/2 |████████████████████| 1:01:01<00:00"
    assert capsys.readouterr().err == f"The load is high.\n{bar}\n"


def test_where_nothing_is_counted_the_time_is_shown() -> None:
    clock, stream = Clock(), io.StringIO()
    with Progress("fetching", 0, stream=stream, clock=clock) as progress:
        clock.now = 2.0
        progress.show("1 MB")
    assert stream.getvalue() == "\rfetching: 00:00\rfetching: 00:02, 1 MB\rfetching: 00:02      \n"


def test_a_bar_that_ends_before_its_delay_is_not_drawn() -> None:
    clock, stream = Clock(), io.StringIO()
    with Progress("study", 2, stream=stream, delay_s=2, clock=clock) as progress:
        clock.now = 1.9
        progress.advance()
        progress.note("Time is up.")
    assert stream.getvalue() == "Time is up.\n"


def test_the_time_left_of_arms_that_end_together() -> None:
    clock, stream = Clock(), io.StringIO()
    with Progress("study", None, stream=stream, clock=clock) as progress:
        progress.advance(9)
        clock.now = 17.0
        progress.show("block 2")
        assert last_bar(stream) == "study: 9/? |                    | 00:17<?, block 2"
    clock.now = 0.0
    with Progress("study", 54, stream=stream, clock=clock) as progress:
        for second in range(241):
            clock.now = float(second)
            progress.show("block 1")
        assert last_bar(stream) == "study: 0/54 |                    | 04:00<?, block 1"
        clock.now = 241.0
        for _ in range(9):
            progress.advance()
        clock.now = 301.0
        progress.show("block 2")
        assert last_bar(stream) == "study: 9/54 |███▎                | 05:01<19:05, block 2"
        clock.now = 3000.0  # a block that takes far longer than the one before
        progress.show("block 2")
        assert last_bar(stream) == "study: 9/54 |███▎                | 50:00<?, block 2"


def test_the_time_left_is_told_by_the_first_block_without_what_prepared_it() -> None:
    clock, stream = Clock(), io.StringIO()
    with Progress("study", 50, done=5, stream=stream, clock=clock) as progress:
        clock.now = 500.0
        progress.prepared()
        clock.now = 530.0
        for _ in range(9):
            progress.advance(5 if _ == 0 else 0)
        assert stream.getvalue().count("study: about 4 minutes left on this machine.") == 1
        clock.now = 560.0
        progress.advance(5)
        assert stream.getvalue().count("left on this machine") == 1
        assert last_bar(stream) == "study: 15/50 |██████              | 09:20<03:30"


def test_a_minute_or_less_and_a_time_without_an_end_are_not_told() -> None:
    for total, seconds in ((2, 59.0), (None, 100.0)):
        clock, stream = Clock(), io.StringIO()
        with Progress("study", total, stream=stream, clock=clock) as progress:
            progress.prepared()
            clock.now = seconds
            progress.advance()
        assert "left on this machine" not in stream.getvalue()


@pytest.mark.parametrize(
    ("session", "where"), [("a.ipynb", "out"), ("", "err")], ids=["JupyterLab", "a terminal"]
)
def test_progress_is_no_error_in_jupyterlab(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    session: str,
    where: str,
) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", session)
    with Progress("study", 3, done=1) as progress:
        progress.advance(2)
    shown = capsys.readouterr()._asdict()
    assert "study: 3/3" in shown.pop(where)
    assert [*shown.values()] == [""]
    notice("Before measuring: the load is high.")
    told = capsys.readouterr()._asdict()
    assert told.pop(where) == "Before measuring: the load is high.\n"
    assert [*told.values()] == [""]
