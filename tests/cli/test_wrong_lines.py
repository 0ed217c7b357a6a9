"""Wrong command lines: none hangs or ends in a traceback, each in a sentence and a known code."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
import typer

from pgapps import cli
from pgservers.errors import ServerError
from pgservers.servers.managed import ManagedServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


CODES = {0, 2, 3, 4, 5, 125, 130}
"""The exit codes of the help, without 1: an error of ours, or a verdict."""

LIMIT_S = 120  # what takes longer hangs
LONGEST = 400  # characters of what is said
LINES = 300

NUMBERS = ["NaN", "-1", "-inf", "1e999", "9" * 30, "x", "", "٣", "0x10", "1,5", "--"]

WORDS = [
    *("", " ", "nonsense", "\x1b[31mred", "x" * 5000, "../../etc/passwd", "'; --", "\u202eabc"),
    *("*", "postgresql://me@127.0.0.1:1/x", "postgresql://a@b@c/d", "host=/nowhere dbname=x"),
    *("99.9", "postgresql://[::1", "/nonexistent", "~nobody_of_that_name/x", "a=b", "=", "-1"),
    "\ud800",
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with every wrong kind of file in it."""
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("missing")
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 100)
    (tmp_path / "bad.toml").write_text("[[run]\nx = \x1b[31m\n")
    (tmp_path / "unreadable").write_text("x")
    (tmp_path / "unreadable").chmod(0)
    (tmp_path / "closed").mkdir(mode=0)
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(tmp_path)
        listener.bind("socket")
    for of_fifos in ("scripts", "programs"):
        (tmp_path / of_fifos).mkdir()
    os.mkfifo(tmp_path / "scripts" / "a.sql")
    os.mkfifo(tmp_path / "programs" / "initdb")
    monkeypatch.setenv("HOME", str(tmp_path / "directory"))
    monkeypatch.setenv("PGSTUDIES_RECORDS", str(tmp_path / "records"))
    monkeypatch.setenv("PGSTUDIES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "2")
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


PATHS = [
    *("missing", "directory", "fifo", "loop", "nowhere", "empty", "binary", "bad.toml", "socket"),
    *("unreadable", "closed", "closed/x", "scripts", "programs", "", ".", "/", "/proc"),
    *("/dev/full", "/dev/null", "/proc/self/mem", "empty/x", "x" * 300, "\x1b[2J"),
    *("~nobody_of_that_name/x", "loop/x", "directory/missing/x.html", "/proc/x.html"),
    "fifo/x.html",
]


def leaves(command: Any, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    if hasattr(command, "commands"):
        for name, below in command.commands.items():
            yield from leaves(below, *words, name)
    else:
        yield words, command


def wrong_lines() -> list[list[str]]:
    """Lines of every command, each option in turn with a value that it is unlikely to take."""
    chosen = random.Random(70)

    def value(parameter: Any) -> str:
        of = (parameter.name, parameter.type_descriptor.annotation, parameter.metavar)
        kind = " ".join(map(str, of)).lower()
        if "int" in kind or "float" in kind:
            return chosen.choice(NUMBERS)
        words = [*WORDS, *PATHS] if "server" in kind or "candidate" in kind else WORDS
        return chosen.choice(PATHS if re.search(r"path|file|dir|report", kind) else words)

    def given(parameter: Any) -> list[str]:
        if parameter.param_type_name == "argument":
            return [value(parameter)]
        if getattr(parameter, "is_flag", False):
            return [parameter.opts[0]]
        return [parameter.opts[0], value(parameter)]

    found: list[Any] = []
    while len(found) < LINES:
        for words, command in leaves(typer.main.get_command(cli.app)):
            needed = [p for p in command.params if p.required]
            others = [p for p in command.params if not p.required and p.name != "help"]
            if words[0] in {"book", "scorecard"} or words[-1] == "update":
                line = chosen.choice([["--nonsense"], ["extra", "words"]])
            else:
                some_of = chosen.sample(others, min(len(others), chosen.randint(1, 3)))
                line = [word for p in [*needed, *some_of] for word in given(p)]
                if chosen.random() < 0.1:
                    line.append(chosen.choice(["--nonsense", "extra", "-", "--", "-p"]))
            found.append([*words, *line])
    return found[:LINES]


class Hangs(BaseException):
    pass


def hang(*_: object) -> NoReturn:
    raise Hangs


def wrong(code: int | None, said: str, line: Sequence[str]) -> str:
    """What is wrong with how a line ended; empty if nothing is."""
    if "Traceback" in said or "error in pgstudies itself" in said:
        return f"{line}: a traceback: {said[-600:]}"
    if code not in CODES:
        return f"{line}: code {code}: {said}"
    beside = ("Usage:", "Try ", "  ")  # what there is to choose from is indented
    sentences = [text for text in said.splitlines() if not text.startswith(beside)]
    if code and line[0] != "doctor" and (not said.strip() or sum(map(len, sentences)) > LONGEST):
        return f"{line}: {len(said)} characters: {said[:1500]}"
    if re.search(r"[\x00-\x09\x0b-\x1f\x7f]", said):
        return f"{line}: an escape: {said!r}"
    return ""


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("place")
def test_a_wrong_line_ends_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def started(*_: object, **__: object) -> NoReturn:
        raise ServerError("A server would be started.")

    monkeypatch.setattr(ManagedServer, "__init__", started)
    monkeypatch.setattr(ManagedServer, "close", lambda _: None)
    monkeypatch.setattr("pgapps.execution.run._execute", started)
    cli._applications()
    found: list[Any] = []
    for line in wrong_lines():
        code = ended(line, monkeypatch)
        found.append(
            wrong(code, capsys.readouterr().err, line) if code != HANGS else f"{line}: hangs"
        )
    assert list(filter(None, found)) == []


HANGS = -1


def ended(line: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of a line in this process, or ``HANGS``."""
    monkeypatch.setattr(sys, "argv", ["pgstudies", *line])
    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(LIMIT_S)
    try:
        return cli._exit_code()
    except Hangs:
        return HANGS
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


COMMAND = f"{sys.executable} -m pgapps"


def in_a_shell(line: str, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        timeout=LIMIT_S,
        env=os.environ | environment,
    )
    return done.returncode, done.stderr


REPOSITORY = "--repo /nonexistent"

AS_PROCESSES = [
    ("studies >&-", 5, "Standard output is closed"),
    ("records >&- 2>&- <&-", 5, ""),
    ("studies >/dev/full", 5, "No space left"),
    ("records >/dev/full", 5, "No space left"),
    ("--help >/dev/full", 5, "No space left"),
    ("studies >/dev/null <&-", 0, ""),
    ("studies >/dev/null 2>&-", 0, ""),
    ("nonsense 2>&-", 2, ""),
    ("nonsense 2>/dev/full", 5, ""),
]

HERE = [
    (f"servers build REL_16_0 {REPOSITORY}", 2, "No such file or directory"),
    (f"history {REPOSITORY} --since a --until b", 2, "No such file or directory"),
    (f"gate --base a --head b {REPOSITORY}", 2, "No such file or directory"),
    (f"bisect --unit x --good a --bad b {REPOSITORY}", 2, "no"),
    (f"compare --candidate a --baseline b {REPOSITORY}", 3, "No such file or directory"),
    ("run sync_scans --server nonsense", 2, "is not a server"),
    ("run sync_scans --server ./loop", 3, "There is no directory"),
    ("run sync_scans --server ./programs", 3, "holds no PostgreSQL"),
    ("plans --server postgresql://127.0.0.1:1/x --queries scripts", 2, "it is no regular file"),
    ("plans --server postgresql://127.0.0.1:1/x --setting fifo", 2, "it is no regular file"),
    ("new-workload new --from-log fifo", 2, "it is no regular file"),
    ("sweep fifo", 2, "it is no regular file"),
    ("rerun fifo", 3, "it is no regular file"),
    ("gate --base a --head b --diff fifo", 2, "it is no regular file"),
]


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(("line", "code", "sentence"), AS_PROCESSES)
def test_a_process_ends_as_its_help_says(line: str, code: int, sentence: str) -> None:
    ended, said = in_a_shell(f"{COMMAND} {line}")
    assert (ended, said.count("Traceback")) == (code, 0), said
    assert sentence in said
    assert len(said) <= LONGEST


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(("line", "code", "sentence"), HERE)
def test_a_wrong_line_has_the_code_of_its_help(
    line: str,
    code: int,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ended(line.split(), monkeypatch) == code
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert sentence in said
    assert len(said) <= LONGEST


@pytest.mark.usefixtures("place")
def test_no_server_keeps_its_data_in_proc() -> None:
    code, said = in_a_shell(f"{COMMAND} run sync_scans", PGSTUDIES_RUN_DIR="/proc")
    assert code == 5
    assert "set PGSTUDIES_RUN_DIR to a directory that you may write to" in said


INTERRUPTED = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, *_):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
"""


@pytest.mark.parametrize(("module", "code"), [("pgapps.__main__", 130), ("pgapps.cli", 1)])
def test_ctrl_c_while_modules_are_imported_is_no_error(module: str, code: int) -> None:
    text = f"{INTERRUPTED}\nfrom {module} import main\nsys.argv = ['pgstudies', 'studies']\nmain()"
    done = subprocess.run([sys.executable, "-c", text], check=False, capture_output=True, text=True)
    if code == 130:
        assert (done.returncode, done.stderr) == (130, "")
    else:  # as it was: the module that defines the command is what is interrupted
        assert "KeyboardInterrupt" in done.stderr
