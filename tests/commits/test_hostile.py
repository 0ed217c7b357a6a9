"""Repositories of others, builds that are cut short, and a cache that others could write to."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
import pytest

from pgapps.builds import builder as builds
from pgapps.builds import repository as repositories
from pgapps.builds.builder import Builder
from pgapps.builds.repository import Repository
from pgservers.errors import CannotRun, ServerError, SpaceError, StudyError
from pgservers.programs.running import NO_PROCESSES
from tests.commits.conftest import cost_of, git
from tests.servers_at_hand import is_alive

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def built(repository: Repository, name: str = "v0") -> Path:
    with repository.held():
        return Builder(repository).build(repository.commit(name).sha)


def change(repository: Repository, *lines: str) -> None:
    """Commit another configure, whose Makefile has these rules."""
    makefile = "\n".join(lines)
    (repository.source / "configure").write_text(f"#!/bin/sh\ncat > Makefile <<'END'\n{makefile}\n")
    git(repository.source, "commit", "--quiet", "--all", "-m", "Changed")


def everything_below(place: Path) -> set[int]:
    return {p.stat().st_mode & 0o022 for p in [place, *place.rglob("*")] if not p.is_symlink()}


def test_nobody_else_can_change_a_build_or_what_it_is_made_of_whatever_the_umask(
    history: Callable[..., Repository], tmp_path: Path
) -> None:
    repository = history([1.0])
    before = os.umask(0)
    try:
        built(repository)
    finally:
        os.umask(before)
    assert everything_below(tmp_path / "cache") == {0}


@pytest.mark.parametrize("below", [".", "bin", "bin/postgres", "..", "../.."])
def test_a_build_that_others_can_change_is_not_run(
    below: str, history: Callable[..., Repository]
) -> None:
    repository = history([1.0])
    path = built(repository) / below
    path.chmod(path.stat().st_mode | 0o002)
    with pytest.raises(ServerError, match=r"Other accounts can change .*, so no program is run"):
        built(repository)


def test_a_build_that_was_changed_is_not_run(history: Callable[..., Repository]) -> None:
    repository = history([1.0])
    (built(repository) / "bin" / "postgres").write_text("another")
    with pytest.raises(
        ServerError, match="have changed since they were stored: remove the directory"
    ):
        built(repository)


def test_a_checkout_that_others_could_change_is_made_anew(
    history: Callable[..., Repository],
) -> None:
    repository = history([1.0, 2.0])
    built(repository)
    (repository.clone / "configure").chmod(0o777)
    planted = repository.clone / ".git" / "planted"
    planted.touch()
    built(repository, "v1")
    assert not planted.exists()


def test_a_build_without_its_mark_is_built_again(history: Callable[..., Repository]) -> None:
    repository = history([1.0])
    place = built(repository)
    (place / "bin" / "postgres").write_text("half of a prog")
    (place / "finished.json").unlink()
    (place.parent / "older").mkdir()
    assert built(repository) == place
    assert cost_of(place) == 1.0
    assert not (place.parent / "older").exists()


def test_a_build_whose_program_does_not_answer_is_none(history: Callable[..., Repository]) -> None:
    repository = history([1.0])
    change(repository, "all:", "install:")
    with pytest.raises(CannotRun, match=r"it does not build: .*bin/postgres: not found"):
        built(repository, "HEAD")
    assert [p.suffix for p in (repository.place / "builds").iterdir()] == [".log"]


def test_what_is_set_for_other_builds_does_not_reach_ours(
    history: Callable[..., Repository], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    repository = history([1.0])
    for name in ("DESTDIR", "CFLAGS", "LD_PRELOAD", "CC", "PGHOST", "GIT_DIR", "CPATH"):
        monkeypatch.setenv(name, str(tmp_path / "nowhere"))
    monkeypatch.setenv("MAKEFLAGS", "-n")
    assert cost_of(built(repository)) == 1.0


@pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_build_ends_with_us(
    ends: signal.Signals, history: Callable[..., Repository], tmp_path: Path
) -> None:
    repository = history([1.0])
    told = tmp_path / "pids"
    sleeps = f"\t(sleep 1000 & echo $$! > {told}; wait)"
    change(repository, "all:", sleeps)
    command = ["-m", "pgapps", "servers", "build", "HEAD", "--repo", str(repository.source)]
    with subprocess.Popen([sys.executable, *command]) as process:
        while not told.exists() or not told.read_text().strip():
            assert process.poll() is None
            time.sleep(0.02)
        child = psutil.Process(int(told.read_text()))
        process.send_signal(ends)
        assert process.wait() in {-ends, 130}
    with suppress(psutil.NoSuchProcess):
        while is_alive(child):
            time.sleep(0.02)
    assert cost_of(built(repository)) == 1.0


def test_a_lock_that_a_killed_git_left_is_no_hindrance(history: Callable[..., Repository]) -> None:
    repository = history([1.0, 2.0])
    built(repository)
    for name in ("index.lock", "HEAD.lock"):
        (repository.clone / ".git" / name).touch()
    assert cost_of(built(repository, "v1")) == 2.0


def test_where_git_finds_no_room_it_is_a_full_disk(
    history: Callable[..., Repository], monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = history([1.0])
    built(repository)
    (repository.clone / ".git" / "config").write_text("of half a line [")
    monkeypatch.setattr(repositories, "ROOM_BYTES", 2**62)
    with pytest.raises(SpaceError, match=r"No space left while git writes to .*: free some"):
        built(repository)


@pytest.mark.parametrize("said", ["cc1: No space left on device", "Disk quota exceeded"])
def test_a_build_on_a_full_disk_says_so(said: str, history: Callable[..., Repository]) -> None:
    repository = history([1.0])
    change(repository, "all:", f"\techo '{said}' >&2; exit 1")
    with pytest.raises(SpaceError, match=r"No space left while building in .* set PGSTUDIES_CACHE"):
        built(repository, "HEAD")
    assert list((repository.place / "builds").iterdir()) == []


def test_where_no_room_is_left_for_a_word_it_is_a_full_disk(
    history: Callable[..., Repository], monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = history([1.0])
    change(repository, "all:", "\texit 1")
    monkeypatch.setattr(builds, "ROOM_BYTES", 2**62)
    with pytest.raises(SpaceError, match=r"No space left while building in .*: free some"):
        built(repository, "HEAD")


def test_a_test_of_configure_that_found_no_room_is_not_believed(
    history: Callable[..., Repository],
) -> None:
    repository = history([1.0])
    configure = repository.source / "configure"
    configure.write_text(f"{CONFIGURED}\n{configure.read_text().partition(chr(10))[2]}")
    git(repository.source, "commit", "--quiet", "--all", "-m", "Changed")
    with pytest.raises(SpaceError):
        built(repository, "HEAD")


CONFIGURED = "#!/bin/sh\necho 'conftest.c: No space left on device' > config.log"


@pytest.mark.parametrize(
    "said", ["sh: 1: Cannot fork", "cc: fatal error: vfork: Resource temporarily unavailable"]
)
def test_where_nothing_more_can_be_started_it_is_not_the_commits_fault(
    said: str, history: Callable[..., Repository]
) -> None:
    repository = history([1.0])
    change(repository, "all:", f"\techo '{said}' >&2; exit 1")
    with pytest.raises(StudyError, match=re.escape(NO_PROCESSES)) as caught:
        built(repository, "HEAD")
    assert not isinstance(caught.value, CannotRun)


@pytest.mark.parametrize("name", ["^v0", "v0..v1", "--all", "-v0", "", "v0\n^v1", "v0^{tree}"])
def test_a_name_that_is_no_commits_is_told(name: str, history: Callable[..., Repository]) -> None:
    with pytest.raises(StudyError, match="has no commit"):
        history([1.0, 2.0]).commit(name)


SPOILS = {
    "i18n.logOutputEncoding": "UTF-16",
    "color.ui": "always",
    "core.quotePath": "true",
    "log.showSignature": "true",
    "core.autocrlf": "true",
    "format.pretty": "oneline",
    "core.fsmonitor": "{planted}",
    "core.hooksPath": "{hooks}",
    "core.pager": "{planted}",
    "diff.external": "{planted}",
    "diff.x.command": "{planted}",
    "diff.x.textconv": "{planted}",
    "filter.x.smudge": "{planted}",
    "filter.x.process": "{planted}",
    "filter.x.required": "true",
    "gpg.program": "{planted}",
    "core.sshCommand": "{planted}",
    "core.alternateRefsCommand": "{planted}",
    "uploadpack.packObjectsHook": "{planted}",
    "submodule.recurse": "true",
    "protocol.allow": "always",
    "protocol.ext.allow": "always",
    "extensions.partialClone": "origin",
    "remote.origin.url": "ext::{planted}",
    "remote.origin.promisor": "true",
    "remote.origin.uploadpack": "{planted}",
}


def spoiled(place: Path, write: Callable[[str, str], object], tmp_path: Path) -> Path:
    """Write settings that spoil what git says, or run a program, which leaves this file."""
    seen, planted, hooks = tmp_path / "seen", tmp_path / "planted", tmp_path / "hooks"
    planted.write_text(f"#!/bin/sh\necho $0 $* >> {seen}\nexit 1\n")
    planted.chmod(0o755)
    hooks.mkdir()
    for hook in ("post-checkout", "post-index-change", "reference-transaction"):
        shutil.copy(planted, hooks / hook)
        if (place / "hooks").is_dir():
            shutil.copy(planted, place / "hooks" / hook)
    for name, value in SPOILS.items():
        write(name, value.format(planted=planted, hooks=hooks))
    return seen


def all_is_well(repository: Repository) -> None:
    assert repository.commit("v1").subject == "Commit 1"
    assert repository.merge_base("v0", "v1") == repository.commit("v0").sha
    assert repository.every("v0", "v1", 1)[-1] == repository.commit("v1").sha
    assert cost_of(built(repository, "v1")) == 2.0
    (built(repository, "v0"), built(repository, "v1"))
    assert (repository.clone / "cost").read_bytes() == b"1.0"
    with repository.held():
        ends = [repository.commit(name).sha for name in ("v0", "v1")]
        text = repository.git("diff", "--unified=0", *ends)
    assert "+2.0" in text
    with pytest.raises(StudyError, match="has no commit"):
        repository.commit("1" * 40)


def test_a_repository_of_somebody_else_runs_nothing(
    history: Callable[..., Repository], tmp_path: Path
) -> None:
    repository = history([1.0, 2.0])
    place = repository.source
    (place / ".gitattributes").write_text("* filter=x diff=x\n*.dat merge=x\n")
    (place / ".gitmodules").write_text('[submodule "x"]\n\tpath = x\n\turl = ext::sh\n')
    git(place, "add", "--all")
    git(place, "commit", "--quiet", "-m", "Attributes")
    (place / ".git" / "info").mkdir(exist_ok=True)
    (place / ".git" / "info" / "attributes").write_text("* filter=x diff=x\n")
    seen = spoiled(place / ".git", lambda name, value: git(place, "config", name, value), tmp_path)
    seen.unlink(missing_ok=True)
    all_is_well(Repository(place))
    built(repository, "HEAD")
    assert not seen.exists() or seen.read_text() == ""


def test_the_users_own_settings_change_nothing(
    history: Callable[..., Repository], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = history([1.0, 2.0])
    monkeypatch.setenv("HOME", str(tmp_path))
    seen = spoiled(
        tmp_path,
        lambda name, value: git(repository.source, "config", "--global", name, value),
        tmp_path,
    )
    (tmp_path / ".config" / "git").mkdir(parents=True)
    (tmp_path / ".config" / "git" / "attributes").write_text("* filter=x diff=x\n")
    all_is_well(repository)
    assert not seen.exists()


def test_a_commit_in_another_encoding_is_named(history: Callable[..., Repository]) -> None:
    repository = history([1.0])
    message = repository.source / "message"
    message.write_bytes(b"Stra\xdfe")
    git(repository.source, "config", "i18n.commitEncoding", "no-such-encoding")
    git(repository.source, "commit", "--quiet", "--allow-empty", "--file", str(message))
    assert repository.commit("HEAD").subject == "Stra�e"


def test_a_directory_in_another_encoding_is_read(
    history: Callable[..., Repository], tmp_path: Path
) -> None:
    repository = history([1.0])
    moved = tmp_path / os.fsdecode(b"stra\xdfe \"a'b$c\\")
    repository.source.rename(moved)
    assert cost_of(built(Repository(moved))) == 1.0


def test_a_shallow_clone_builds_what_it_has(
    history: Callable[..., Repository], tmp_path: Path
) -> None:
    repository = history([1.0, 2.0, 3.0])
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth=2", f"file://{repository.source}", str(shallow))
    assert cost_of(built(Repository(shallow), "HEAD")) == 3.0
    with pytest.raises(StudyError, match="no commit 'HEAD~2'"):
        Repository(shallow).commit("HEAD~2")


@pytest.mark.root
def test_a_repository_of_another_account_needs_the_users_word(
    history: Callable[..., Repository], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = history([1.0]).source
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in [place, *place.rglob("*")]:
        os.chown(path, 4321, 4321)
    with pytest.raises(StudyError, match=r"belongs to another account: .* safe\.directory"):
        Repository(place)
    git(tmp_path, "config", "--global", "--add", "safe.directory", str(place))
    assert cost_of(built(Repository(place))) == 1.0
