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
from pgapps.builds.repository import Repository
from pgservers.errors import CannotRun, ServerError, SpaceError, StudyError
from pgservers.programs.running import NO_PROCESSES
from tests.commits.conftest import build, commit, cost_of, git
from tests.servers_at_hand import is_alive

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def repository(history: Callable[..., Repository]) -> Repository:
    """A repository of two commits, v0 and v1."""
    return history([1.0, 2.0])


def change(repository: Repository, *lines: str) -> None:
    """Commit another configure, whose Makefile has these rules."""
    configure = "\n".join(["#!/bin/sh", "cat > Makefile <<'END'", *lines, ""])
    commit(repository.source, files={"configure": configure})


def test_nobody_else_can_change_a_build_or_what_it_is_made_of_whatever_the_umask(
    repository: Repository, tmp_path: Path
) -> None:
    before = os.umask(0)
    try:
        build(repository)
    finally:
        os.umask(before)
    cache = tmp_path / "cache"
    modes = {p.stat().st_mode for p in [cache, *cache.rglob("*")] if not p.is_symlink()}
    assert not any(mode & 0o022 for mode in modes)


@pytest.mark.parametrize("below", [".", "bin", "bin/postgres", "..", "../.."])
def test_a_build_that_others_can_change_is_not_run(below: str, repository: Repository) -> None:
    path = build(repository) / below
    path.chmod(path.stat().st_mode | 0o002)
    with pytest.raises(ServerError, match=r"Other accounts can change .*, so no program is run"):
        build(repository)


def test_a_build_that_was_changed_is_not_run(repository: Repository) -> None:
    (build(repository) / "bin" / "postgres").write_text("another")
    with pytest.raises(ServerError, match="have changed since they were stored"):
        build(repository)


def test_a_look_at_what_is_not_committed_runs_no_filter_and_enters_no_submodule(
    repository: Repository, tmp_path: Path
) -> None:
    planted, inner = tmp_path / "planted", repository.source / "inner"
    runs = f"touch {planted}; cat"
    git(repository.source, "init", "--quiet", "inner")
    commit(inner, files={"a": "1"})
    git(inner, "config", "core.fsmonitor", f"touch {planted};")
    commit(repository.source, files={".gitattributes": "cost filter=evil\n", "number": "7"})
    git(repository.source, "config", "filter.evil.clean", runs)
    head = repository.commit("HEAD").sha
    (inner / "a").write_text("2")
    (repository.source / "cost").write_text("another")
    assert repository.uncommitted(head) == ["cost"]
    assert not planted.exists()
    git(repository.source, "diff", "--name-only")
    assert planted.exists(), "git itself runs it"


def test_a_checkout_that_others_could_change_is_made_anew(repository: Repository) -> None:
    build(repository, "v0")
    (repository.clone / "configure").chmod(0o777)
    planted = repository.clone / ".git" / "planted"
    planted.touch()
    build(repository, "v1")
    assert not planted.exists()


def test_a_build_without_its_mark_is_built_again(repository: Repository) -> None:
    place = build(repository)
    (place / "bin" / "postgres").write_text("half of a prog")
    (place / "finished.json").unlink()
    (place.parent / "older").mkdir()
    assert build(repository) == place
    assert cost_of(place) == 2.0
    assert not (place.parent / "older").exists()


def test_a_build_whose_program_does_not_answer_is_none(repository: Repository) -> None:
    change(repository, "all:", "install:")
    with pytest.raises(CannotRun, match=r"it does not build: .*bin/postgres: not found"):
        build(repository)
    assert [p.suffix for p in (repository.place / "builds").iterdir()] == [".log"]


def test_what_is_set_for_other_builds_does_not_reach_ours(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("DESTDIR", "CFLAGS", "LD_PRELOAD", "CC", "PGHOST", "GIT_DIR", "CPATH"):
        monkeypatch.setenv(name, str(tmp_path / "nowhere"))
    monkeypatch.setenv("MAKEFLAGS", "-n")
    assert cost_of(build(repository)) == 2.0


@pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_build_ends_with_us(ends: signal.Signals, repository: Repository, tmp_path: Path) -> None:
    told = tmp_path / "pids"
    change(repository, "all:", f"\t(sleep 1000 & echo $$! > {told}; wait)")
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
    assert cost_of(build(repository, "v0")) == 1.0


def test_a_lock_that_a_killed_git_left_is_no_hindrance(repository: Repository) -> None:
    build(repository, "v0")
    for name in ("index.lock", "HEAD.lock"):
        (repository.clone / ".git" / name).touch()
    assert cost_of(build(repository, "v1")) == 2.0


def test_where_git_finds_no_room_it_is_a_full_disk(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(repository)
    (repository.clone / ".git" / "config").write_text("of half a line [")
    monkeypatch.setattr(repositories, "ROOM_BYTES", 2**62)
    with pytest.raises(SpaceError, match=r"No space left while git writes to .*: free some"):
        build(repository)


@pytest.mark.parametrize(
    ("said", "error", "advice"),
    [
        ("cc1: No space left on device", SpaceError, "set PGSTUDIES_CACHE"),
        ("Disk quota exceeded", SpaceError, "set PGSTUDIES_CACHE"),
        ("sh: 1: Cannot fork", StudyError, NO_PROCESSES),
        ("cc: fatal error: vfork: Resource temporarily unavailable", StudyError, NO_PROCESSES),
    ],
)
def test_what_the_machine_lacks_is_not_the_commits_fault(
    said: str, error: type[StudyError], advice: str, repository: Repository
) -> None:
    change(repository, "all:", f"\techo '{said}' >&2; exit 1")
    with pytest.raises(StudyError, match=re.escape(advice)) as caught:
        build(repository)
    assert caught.type is error
    assert error is StudyError or list((repository.place / "builds").iterdir()) == []


def test_where_no_room_is_left_for_a_word_it_is_a_full_disk(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(repository, "all:", "\texit 1")
    monkeypatch.setattr(builds, "ROOM_BYTES", 2**62)
    with pytest.raises(SpaceError, match=r"No space left while building in .*: free some"):
        build(repository)


def test_a_test_of_configure_that_found_no_room_is_not_believed(repository: Repository) -> None:
    _, _, configure = (repository.source / "configure").read_text().partition("\n")
    full = "#!/bin/sh\necho 'conftest.c: No space left on device' > config.log\n"
    commit(repository.source, files={"configure": full + configure})
    with pytest.raises(SpaceError):
        build(repository)


@pytest.mark.parametrize(
    "name", ["v9", "^v0", "v0..v1", "--all", "-v0", "", "v0\n^v1", "v0^{tree}"]
)
def test_a_name_that_is_no_commits_is_told(name: str, repository: Repository) -> None:
    with pytest.raises(StudyError, match="has no commit"):
        repository.commit(name)


SPOILS = {
    "i18n.logOutputEncoding": "UTF-16",
    "color.ui": "always",
    "core.quotePath": "true",
    "log.showSignature": "true",
    "core.autocrlf": "true",
    "format.pretty": "oneline",
    "core.hooksPath": "{hooks}",
    "filter.x.required": "true",
    "submodule.recurse": "true",
    "protocol.allow": "always",
    "protocol.ext.allow": "always",
    "extensions.partialClone": "origin",
    "remote.origin.url": "ext::{planted}",
    "remote.origin.promisor": "true",
}
PROGRAMS = (
    *("core.fsmonitor", "core.pager", "core.sshCommand", "core.alternateRefsCommand"),
    *("diff.external", "diff.x.command", "diff.x.textconv", "filter.x.smudge", "filter.x.process"),
    *("gpg.program", "uploadpack.packObjectsHook", "remote.origin.uploadpack"),
)


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
    for name, value in (SPOILS | dict.fromkeys(PROGRAMS, "{planted}")).items():
        write(name, value.format(planted=planted, hooks=hooks))
    return seen


def all_is_well(repository: Repository) -> None:
    assert repository.commit("v1").subject == "Commit 1"
    assert repository.merge_base("v0", "v1") == repository.commit("v0").sha
    assert repository.every("v0", "v1", 1)[-1] == repository.commit("v1").sha
    assert cost_of(build(repository, "v1")) == 2.0
    (build(repository, "v0"), build(repository, "v1"))
    assert (repository.clone / "cost").read_bytes() == b"1.0"
    with repository.held():
        ends = [repository.commit(name).sha for name in ("v0", "v1")]
        text = repository.git("diff", "--unified=0", *ends)
    assert "+2.0" in text
    with pytest.raises(StudyError, match="has no commit"):
        repository.commit("1" * 40)


def test_a_repository_of_somebody_else_runs_nothing(repository: Repository, tmp_path: Path) -> None:
    place = repository.source
    modules = '[submodule "x"]\n\tpath = x\n\turl = ext::sh\n'
    attributes = "* filter=x diff=x\n*.dat merge=x\n"
    commit(place, files={".gitattributes": attributes, ".gitmodules": modules})
    (place / ".git" / "info").mkdir(exist_ok=True)
    (place / ".git" / "info" / "attributes").write_text("* filter=x diff=x\n")
    seen = spoiled(place / ".git", lambda name, value: git(place, "config", name, value), tmp_path)
    seen.unlink(missing_ok=True)
    all_is_well(Repository(place))
    build(repository)
    assert not seen.exists() or seen.read_text() == ""


def test_the_users_own_settings_change_nothing(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    here = repository.source
    seen = spoiled(tmp_path, lambda n, value: git(here, "config", "--global", n, value), tmp_path)
    (tmp_path / ".config" / "git").mkdir(parents=True)
    (tmp_path / ".config" / "git" / "attributes").write_text("* filter=x diff=x\n")
    all_is_well(repository)
    assert not seen.exists()


def test_a_commit_in_another_encoding_is_named(repository: Repository) -> None:
    message = repository.source / "message"
    message.write_bytes(b"Stra\xdfe")
    git(repository.source, "config", "i18n.commitEncoding", "no-such-encoding")
    git(repository.source, "commit", "--quiet", "--allow-empty", "--file", str(message))
    assert repository.commit("HEAD").subject == "Stra�e"


def test_a_directory_in_another_encoding_is_read(repository: Repository, tmp_path: Path) -> None:
    moved = tmp_path / os.fsdecode(b"stra\xdfe \"a'b$c\\")
    repository.source.rename(moved)
    assert cost_of(build(Repository(moved))) == 2.0


def test_a_shallow_clone_builds_what_it_has(repository: Repository, tmp_path: Path) -> None:
    commit(repository.source, files={"cost": "3.0"})
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth=2", f"file://{repository.source}", str(shallow))
    assert cost_of(build(Repository(shallow))) == 3.0
    with pytest.raises(StudyError, match="no commit 'HEAD~2'"):
        Repository(shallow).commit("HEAD~2")


@pytest.mark.root
def test_a_repository_of_another_account_needs_the_users_word(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = repository.source
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")  # a machine's may trust every directory
    for name in ("GIT_CONFIG_GLOBAL", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    for path in [place, *place.rglob("*")]:
        os.chown(path, 4321, 4321)
    with pytest.raises(StudyError, match=r"belongs to another account: .* safe\.directory"):
        Repository(place)
    git(tmp_path, "config", "--global", "--add", "safe.directory", str(place))
    assert cost_of(build(Repository(place))) == 2.0
