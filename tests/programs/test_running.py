"""Programs that we run end with us, see an environment of ours, and make what others may read."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import psutil
import pytest

from pgservers.errors import StudyError
from pgservers.programs.running import NO_PROCESSES, build_environment, run_with_us
from tests.servers_at_hand import wait_until_dead

if TYPE_CHECKING:
    from pathlib import Path


def shell(script: str, where: Path) -> tuple[int, str, str]:
    done = run_with_us(["sh", "-c", script], cwd=where, environment=build_environment())
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_it_reads_nothing_and_others_cannot_change_what_it_makes(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert shell("cat; mkdir made; umask", tmp_path)[1] == "0022\n"
    finally:
        os.umask(before)
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o755


def test_how_it_ends_is_told_also_where_its_shell_died(tmp_path: Path) -> None:
    """As when the shell could start nothing more."""
    assert shell("echo out; echo error >&2; exit 3", tmp_path) == (3, "out\n", "error\n")
    assert shell("kill -KILL $PPID", tmp_path)[0] == -9


def test_nothing_that_it_started_is_left(tmp_path: Path) -> None:
    _, told, _ = shell("sleep 1000 >/dev/null 2>&1 & echo $!", tmp_path)
    assert wait_until_dead([psutil.Process(int(told))] if psutil.pid_exists(int(told)) else [])


def test_where_nothing_can_be_started_a_sentence_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError

    monkeypatch.setattr("subprocess.Popen", refuse)
    with pytest.raises(StudyError, match=re.escape(NO_PROCESSES)):
        shell("true", tmp_path)


def test_the_environment_is_a_short_list(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CFLAGS", "DESTDIR", "MAKEFLAGS", "GIT_DIR", "PGHOST", "LD_PRELOAD", "LANG"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("CCACHE_DIR", "/ccache")
    found = build_environment()
    assert found.keys() <= {"PATH", "HOME", "TMPDIR", "LC_ALL"} | {
        n for n in found if "CCACHE_" in n
    }
    assert (found["CCACHE_DIR"], found["LC_ALL"]) == ("/ccache", "C")
