"""Which commit: on a small repository whose numbers are known, and its builds."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest

from pgapps.builds.builder import Builder
from pgapps.builds.repository import Repository
from pgapps.commits.bisection import bisect
from pgapps.commits.report import as_text, moved_functions
from pgservers.errors import StudyError
from tests.commits.conftest import cost_of, git

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def counted(repository: Repository, seen: list[str]) -> Callable[[str], float]:
    """What a commit costs, by building it and reading its program."""
    builder = Builder(repository)

    def measure(sha: str) -> float:
        seen.append(sha)
        return cost_of(builder.build(sha))

    return measure


def subjects(repository: Repository, costs: Sequence[float | None]) -> list[str]:
    found = bisect(repository, "v0", f"v{len(costs) - 1}", counted(repository, []))
    return [step.commit.subject for step in found.steps]


@pytest.mark.parametrize("first", range(1, 12))
def test_the_commit_is_found_wherever_it_is(first: int, history: Callable[..., Repository]) -> None:
    costs = [100.0] * first + [105.0] * (12 - first)
    repository = history(costs)
    seen: list[str] = []
    found = bisect(repository, "v0", "v11", counted(repository, seen))
    (step,) = found.steps
    assert (step.commit.subject, step.before, step.after) == (f"Commit {first}", 100.0, 105.0)
    assert len(step.among) == 1
    assert len(seen) == len(set(seen)) <= 7  # both ends, and the binary logarithm of eleven


def test_small_differences_do_not_mislead(history: Callable[..., Repository]) -> None:
    costs = [100.0, 100.05, 99.96, 100.02, 110.0, 110.04, 109.97, 110.02]
    assert subjects(history(costs), costs) == ["Commit 4"]


def test_a_third_level_is_a_second_step(history: Callable[..., Repository]) -> None:
    costs = [100.0, 100.0, 104.0, 104.0, 104.0, 104.0, 115.0, 115.0, 115.0]
    assert subjects(history(costs), costs) == ["Commit 6", "Commit 2"]


def test_a_commit_that_does_not_build_is_skipped_and_told(
    history: Callable[..., Repository],
) -> None:
    costs = [100.0, 100.0, 100.0, None, 120.0, 120.0]
    repository = history(costs)
    found = bisect(repository, "v0", "v5", counted(repository, []))
    (step,) = found.steps
    assert [commit.subject for commit in step.among] == ["Commit 3", "Commit 4"]
    assert (step.before, step.after) == (100.0, 120.0)
    (reason,) = found.skipped.values()
    assert reason.startswith("it does not build: main.c:1:2: error: no cost (all of it: ")
    assert Path(reason.rpartition(": ")[2].rstrip(")")).exists()
    text = as_text(found, "a thing done", {})
    assert "by one of 2 commits" in text
    assert "a thing done: 100 -> 120 (+20.0 %)" in text
    assert "skipped" in text


def test_a_build_that_fails_elsewhere_does_no_harm(history: Callable[..., Repository]) -> None:
    costs = [100.0, None, 100.0, 100.0, 120.0, 120.0, None, 120.0]
    assert subjects(history(costs), costs) == ["Commit 4"]


@pytest.mark.parametrize("of_branch", [100.0, 108.0])
def test_a_release_branch_is_compared_from_where_it_branched_off(
    of_branch: float, history: Callable[..., Repository]
) -> None:
    """Its own last commit costs 100 as before, or more than where it branched off."""
    repository = history([100.0, 100.0, 100.0, 110.0, 110.0])
    git(repository.source, "checkout", "--quiet", "-b", "stable", "v1")
    for number, cost in enumerate([100.0, of_branch]):
        (repository.source / "cost").write_text(str(cost))
        git(
            repository.source,
            "commit",
            "--quiet",
            "--allow-empty",
            "--all",
            "-m",
            f"Stable {number}",
        )
    found = bisect(repository, "stable", "v4", counted(repository, []))
    steps = {step.commit.subject: (step.before, step.after) for step in found.steps}
    stable = {"Stable 1": (100.0, 108.0)} if of_branch != 100.0 else {}
    assert steps == {"Commit 3": (100.0, 110.0), **stable}


def test_what_is_left_is_told(history: Callable[..., Repository]) -> None:
    repository = history([100.0] * 8 + [105.0] * 8)
    left: list[int] = []
    bisect(
        repository, "v0", "v15", counted(repository, []), show=lambda _, steps: left.append(steps)
    )
    assert left[0] >= 4
    assert left == sorted(left, reverse=True)
    assert left[-1] == 1


def test_ends_that_do_not_differ_are_told(history: Callable[..., Repository]) -> None:
    repository = history([100.0, 150.0, 100.0])
    with pytest.raises(StudyError, match=r"do not differ: 100 and 100\.  Steps .* cancel out"):
        bisect(repository, "v0", "v2", counted(repository, []))


def test_an_end_without_a_number_is_told(history: Callable[..., Repository]) -> None:
    repository = history([None, 100.0])
    with pytest.raises(StudyError, match="v0 cannot be measured: it does not build"):
        bisect(repository, "v0", "v1", counted(repository, []))


def test_the_users_checkout_stays_as_it_is(history: Callable[..., Repository]) -> None:
    repository = history([100.0, 100.0, 120.0])
    git(repository.source, "bisect", "start", "v2", "v0")
    (repository.source / "cost").write_text("being edited")
    (repository.source / "new").write_text("not added")
    before = [git(repository.source, *what) for what in (["status", "-s"], ["rev-parse", "HEAD"])]
    refs = git(repository.source, "for-each-ref")
    bisect(repository, "v0", "v2", counted(repository, []))
    after = [git(repository.source, *what) for what in (["status", "-s"], ["rev-parse", "HEAD"])]
    assert after == before
    assert git(repository.source, "for-each-ref") == refs
    assert git(repository.source, "bisect", "log")


def test_what_is_built_is_kept_until_there_is_no_room(history: Callable[..., Repository]) -> None:
    repository = history([1.0, 2.0, 3.0])
    shas = [repository.commit(f"v{n}").sha for n in range(3)]
    with repository.held():
        builder = Builder(repository, most_bytes=100_000)
        places = [builder.build(sha) for sha in shas]
        assert builder.built == 3
        assert [builder.build(sha) for sha in shas] == places
        assert builder.built == 3
        crowded = Builder(repository, configure=["--other"], most_bytes=1)
        newest = crowded.build(shas[0])
        assert newest not in places
        assert newest.is_dir()
        assert not any(place.exists() for place in places)


def test_ninja_builds_what_is_installed_alone_and_its_steps_are_shown(
    history: Callable[..., Repository], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bin_, seen, given = tmp_path / "bin", tmp_path / "seen", tmp_path / "given"
    bin_.mkdir()
    scripts = {
        "meson": """for a; do case $a in --prefix=*) echo ${a#--prefix=} > prefix;; esac; done
mkdir -p meson-info; echo '[
{"installed": true, "filename": ["'$PWD'/src/backend/postgres"]},
{"installed": false, "filename": ["'$PWD'/src/test/modules/test_lfind.so"]},
{"installed": true, "filename": ["'$PWD'/src/libpq.so", "'$PWD'/src/libpq.a"]}
]' > meson-info/intro-targets.json""",
        # It waits until somebody has seen how far it is.
        "ninja": f"""echo '[3/12] Compiling'; n=0
while [ ! -e {seen} ] && [ $n -lt 1000 ]; do sleep 0.05; n=$((n + 1)); done
mkdir -p $(cat prefix)/bin && printf '#!/bin/sh\n' > $(cat prefix)/bin/postgres
chmod 755 $(cat prefix)/bin/postgres""",
    }
    for name, script in scripts.items():
        (bin_ / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {given}\n{script}\n')
        (bin_ / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    monkeypatch.setattr("pgapps.builds.builder._LOOK_S", 0.01)
    repository = history([1.0])
    (repository.source / "meson.build").touch()
    git(repository.source, "add", "--all")
    git(repository.source, "commit", "--quiet", "--message", "Build with meson")
    shown: list[str] = []

    def show(what: str) -> None:
        shown.append(what)
        if "3 of 12" in what:
            seen.touch()

    with repository.held():
        Builder(repository, show=show).build(repository.commit("HEAD").sha)
    assert any(re.search(r"^building \w{10}: 3 of 12, about \d+ seconds left$", s) for s in shown)
    setup, ninja, install = given.read_text().splitlines()
    assert "-Dauto_features=disabled" in setup.split()
    assert ninja.split()[3:] == ["src/backend/postgres", "src/libpq.a", "src/libpq.so"]
    assert install == "meson install --quiet --no-rebuild"


def test_two_at_a_time_are_refused(history: Callable[..., Repository]) -> None:
    repository = history([1.0])
    with (
        repository.held(),
        pytest.raises(StudyError, match="Another command builds from"),
        Repository(repository.source).held(),
    ):
        pass


def test_what_is_no_repository_or_commit_is_told(
    history: Callable[..., Repository], tmp_path: Path
) -> None:
    with pytest.raises(StudyError, match="has no commit 'v9'"):
        history([1.0]).commit("v9")
    with pytest.raises(StudyError, match=r"git in .*not a git repository"):
        Repository(tmp_path)


def test_the_functions_that_moved_are_named(history: Callable[..., Repository]) -> None:
    repository = history([100.0, 120.0])
    found = bisect(repository, "v0", "v1", counted(repository, []))
    (step,) = found.steps

    def counts(sha: str) -> pl.DataFrame:
        own = {"whole": 100.0, "scan": 60.0, "compare": 40.0}
        if sha == step.commit.sha:
            own |= {"whole": 120.0, "compare": 60.0}
        return pl.DataFrame({"function": list(own), "own": list(own.values())})

    table = moved_functions(step, counts)
    assert table.rows() == [("compare", 40.0, 60.0, 20.0)]
    text = as_text(found, "a thing done", {step.commit.sha: table})
    assert "compare" in text
    assert "+20" in text
    assert max(map(len, text.splitlines())) <= 79
