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
from pgapps.commits.bisection import as_text, bisect, moved_functions
from pgservers.errors import StudyError
from tests.commits.conftest import build, commit, cost_of, git

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def counted(repository: Repository) -> Callable[[str], float]:
    """What a commit costs, by building it and reading its program."""
    builder = Builder(repository)
    return lambda sha: cost_of(builder.build(sha))


def test_the_commit_is_found_wherever_it_is(history: Callable[..., Repository]) -> None:
    repository = history([100.0] * 12)
    build(repository)  # bisecting needs the work tree of a build
    with repository.held():
        numbers = {repository.commit(f"v{number}").sha: number for number in range(12)}
    for first in range(1, 12):
        seen: list[str] = []

        def noted(sha: str, first: int = first, seen: list[str] = seen) -> float:
            seen.append(sha)
            return 100.0 if numbers[sha] < first else 105.0

        (step,) = bisect(repository, "v0", "v11", noted).steps
        assert (step.commit.subject, step.before, step.after) == (f"Commit {first}", 100.0, 105.0)
        assert len(step.among) == 1
        assert len(seen) == len(set(seen)) <= 7  # both ends, and the binary logarithm of eleven


@pytest.mark.parametrize(
    ("costs", "subjects"),
    [
        ([100.0, 100.05, 99.96, 100.02, 110.0, 110.04, 109.97, 110.02], ["Commit 4"]),
        ([100.0, 100.0, 104.0, 104.0, 104.0, 104.0, 115.0, 115.0], ["Commit 6", "Commit 2"]),
        ([100.0, None, 100.0, 100.0, 120.0, 120.0, None, 120.0], ["Commit 4"]),
    ],
    ids=["small differences", "a third level", "builds that fail elsewhere"],
)
def test_the_steps_are_found(
    costs: Sequence[float | None], subjects: list[str], history: Callable[..., Repository]
) -> None:
    repository = history(costs)
    found = bisect(repository, "v0", "v7", counted(repository))
    assert [step.commit.subject for step in found.steps] == subjects


def test_a_commit_that_does_not_build_is_skipped_and_told(
    history: Callable[..., Repository],
) -> None:
    repository = history([100.0, 100.0, 100.0, None, 120.0, 120.0])
    found = bisect(repository, "v0", "v5", counted(repository))
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


@pytest.mark.parametrize("of_branch", [100.0, 108.0])
def test_a_release_branch_is_compared_from_where_it_branched_off(
    of_branch: float, history: Callable[..., Repository]
) -> None:
    """Its own last commit costs 100 as before, or more than where it branched off."""
    repository = history([100.0, 100.0, 100.0, 110.0, 110.0])
    git(repository.source, "checkout", "--quiet", "-b", "stable", "v1")
    for number, cost in enumerate([100.0, of_branch]):
        commit(repository.source, f"Stable {number}", {"cost": str(cost), "number": str(number)})
    found = bisect(repository, "stable", "v4", counted(repository))
    steps = {step.commit.subject: (step.before, step.after) for step in found.steps}
    stable = {"Stable 1": (100.0, 108.0)} if of_branch != 100.0 else {}
    assert steps == {"Commit 3": (100.0, 110.0), **stable}


def test_what_is_left_is_told(history: Callable[..., Repository]) -> None:
    repository = history([100.0] * 8 + [105.0] * 8)
    left: list[int] = []
    bisect(repository, "v0", "v15", counted(repository), show=lambda _, steps: left.append(steps))
    assert left[0] >= 4
    assert left == sorted(left, reverse=True)
    assert left[-1] == 1


@pytest.mark.parametrize(
    ("costs", "why"),
    [
        ([100.0, 150.0, 100.0], "do not differ: 100 and 100"),
        ([None, 100.0, 100.0], "v0 cannot be measured: it does not build"),
    ],
)
def test_ends_that_cannot_be_bisected_are_told(
    costs: Sequence[float | None], why: str, history: Callable[..., Repository]
) -> None:
    repository = history(costs)
    with pytest.raises(StudyError, match=why):
        bisect(repository, "v0", "v2", counted(repository))


def test_the_users_checkout_stays_as_it_is(history: Callable[..., Repository]) -> None:
    repository = history([100.0, 100.0, 120.0])
    git(repository.source, "bisect", "start", "v2", "v0")
    (repository.source / "cost").write_text("being edited")
    (repository.source / "new").write_text("not added")
    questions = (["status", "-s"], ["rev-parse", "HEAD"], ["for-each-ref"], ["bisect", "log"])
    before = [git(repository.source, *question) for question in questions]
    bisect(repository, "v0", "v2", counted(repository))
    assert [git(repository.source, *question) for question in questions] == before


def test_what_is_built_is_kept_until_there_is_no_room(
    history: Callable[..., Repository], monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = history([1.0, 2.0, 3.0])
    shas = [repository.commit(f"v{n}").sha for n in range(3)]
    with repository.held():
        builder = Builder(repository)
        places = [builder.build(sha) for sha in shas]
        assert builder.built == 3
        assert [builder.build(sha) for sha in shas] == places
        assert builder.built == 3
        monkeypatch.setattr("pgapps.builds.builder.MOST_BYTES", 1)
        newest = Builder(repository, configure=["--other"]).build(shas[0])
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
    commit(repository.source, files={"meson.build": ""})
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


def test_two_names_of_one_commit_are_refused_before_anything_is_built(
    history: Callable[..., Repository],
) -> None:
    repository = history([1.0, 2.0])
    with pytest.raises(StudyError, match="v1 and HEAD are the same commit"):
        bisect(repository, "v1", "HEAD", counted(repository))


def test_two_at_a_time_are_refused(history: Callable[..., Repository]) -> None:
    repository = history([1.0])
    with (
        repository.held(),
        pytest.raises(StudyError, match="Another command builds from"),
        Repository(repository.source).held(),
    ):
        pass


def test_what_is_no_repository_is_told(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="not a git repository"):
        Repository(tmp_path)


def test_the_functions_that_moved_are_named(history: Callable[..., Repository]) -> None:
    repository = history([100.0, 120.0])
    found = bisect(repository, "v0", "v1", counted(repository))
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
