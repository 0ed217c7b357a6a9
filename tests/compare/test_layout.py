"""Layout as a part of every block, on a made-up build that can be linked in another order."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import polars as pl
import psutil
import pytest

from pgapps.compare.design import Comparison, Side, designed
from pgapps.compare.judging.layout import layout
from pgapps.compare.judging.measured import Measured
from pgservers.programs.cached import finish, sha256_of
from pgservers.programs.installations import copy_installation, find_binaries
from pgservers.programs.relinking import KEPT, can_relink, keep_link
from pgservers.servers.managed import ManagedServer
from pgservers.servers.serve import serve
from pgstudies.measuring.arms import Arm
from tests.made_up import info

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pgapps.compare.design import ComparedInfo

MAIN = """
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv) {
    char path[4096 + 5];
    ssize_t length = readlink("/proc/self/exe", path, 4096);
    if (argc > 1 && (!strcmp(argv[1], "-V") || !strcmp(argv[1], "--version")))
        return puts("VERSION") < 0;
    strcpy(path + length, ".real");
    execv(path, argv);
    return 1;
}
"""
"""A backend that is PostgreSQL's, beside it, whatever its own layout."""


def compile_backend(tree: Path, version: str) -> str:
    """Compile it and eight objects more in a directory; returns the command that links them."""
    sources = {"main": MAIN.replace("VERSION", version)}
    sources |= {f"f{n}": f"int f{n}(int i) {{ return i + {n}; }}" for n in range(8)}
    for name, text in sources.items():
        (tree / f"{name}.c").write_text(text)
    subprocess.run(["cc", "-c", *(f"{name}.c" for name in sources)], cwd=tree, check=True)
    command = f"cc {' '.join(f'{name}.o' for name in sources)} -o postgres"
    subprocess.run(command.split(), cwd=tree, check=True)
    return command


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManagedServer]:
    """A server of such a build."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    place = tmp_path_factory.mktemp("layout")
    place.chmod(0o755)
    tree, cache = place / "tree", place / "cache"
    tree.mkdir()
    copied = copy_installation(find_binaries("embedded"), cache)
    backend, prefix = copied.bindir / "postgres", copied.bindir.parent
    version = subprocess.run([backend, "--version"], check=True, capture_output=True, text=True)
    backend.rename(backend.with_name("postgres.real"))
    command = compile_backend(tree, version.stdout.strip())
    shutil.copy(tree / "postgres", backend)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGSTUDIES_CACHE", str(cache))
        keep_link(command, backend, prefix / KEPT, cwd=tree, trees=[tree])
        finish(prefix)
        with serve(str(prefix)) as server:
            assert isinstance(server, ManagedServer)
            assert server.can_relink
            yield server


def test_every_instance_of_a_block_runs_a_program_of_its_own_link(built: ManagedServer) -> None:
    comparison = Comparison(Side("master"), Side("patched"))
    design = designed("s", [Arm("one")], comparison)
    about = cast("ComparedInfo", info("s", seed=7))
    with built.another(own_programs=True) as second, built.another() as third:
        servers = (built, second, third)
        for block in (1, 2):
            for arm, server in zip(design.arms, servers, strict=True):
                design.begin(about, block, arm, server)
        for server in servers:
            server.restore("made", lambda: None)
            with server.connect() as connection:
                assert connection.execute("SELECT 1").fetchone() == (1,)
        programs = [server._programs.bindir / "postgres" for server in servers]
        links, environments = about["links"], about["environments"]
        paddings = [
            psutil.Process(s.postmaster_pid).environ()["PGSTUDIES_PADDING"] for s in servers
        ]
        assert [len(padding) for padding in paddings] == [
            e["padding_bytes"] for e in environments[3:]
        ]
        assert [(e["block"], e["arm"]) for e in environments] == [
            (e["block"], e["arm"]) for e in links
        ]
        assert len({e["padding_bytes"] for e in environments}) >= 4
        assert all(0 <= e["padding_bytes"] < 4096 for e in environments)
        assert [sha256_of(program) for program in programs] == [e["sha256"] for e in links[3:]]
        assert [e["block"] for e in links] == [1, 1, 1, 2, 2, 2]
        assert [e["arm"] for e in links] == [arm.name for arm in design.arms] * 2
        assert len({e["seed"] for e in links}) == len({e["sha256"] for e in links}) == 6
        design.begin(about, 2, design.arms[2], third)  # the block was interrupted
        assert (about["links"], about["environments"]) == (links, environments)
        replace(design, links="of another").begin(about, 2, design.arms[2], third)
        assert about["links"][-1]["seed"] not in {e["seed"] for e in links}
    assert built.binaries.bindir / "postgres" not in programs
    assert can_relink(built.binaries), "the build itself is as it was"


def test_programs_that_are_not_of_a_build_of_ours_have_an_environment_drawn_alone(
    managed: ManagedServer,
) -> None:
    comparison = Comparison(Side("master"), Side("patched"))
    design = designed("s", [Arm("one")], comparison)
    about = cast("ComparedInfo", info("s", seed=7))
    programs = managed._programs
    design.begin(about, 1, design.arms[0], managed)
    assert "links" not in about
    assert managed._programs is programs
    drawn = about["environments"]
    design.begin(about, 2, design.arms[0], managed)
    assert about["environments"][:1] == drawn
    assert len({e["padding_bytes"] for e in about["environments"]}) == 2


SIDES = ("baseline", "baseline (again)", "candidate")


def measured(*linked: tuple[int, str], candidate: str = "patched") -> Measured:
    """Two blocks of all sides, of which these are relinked."""
    ran = [(block, side) for block, side in itertools.product((1, 2), SIDES)]
    told = info(
        "s",
        arms=[{"name": side, "side": side, "not_run": None} for side in SIDES],
        comparison={"baseline": {"server": "master"}, "candidate": {"server": candidate}},
        server={},
        servers={},
        timeline=[{"block": block, "arm": side} for block, side in ran],
        links=[{"block": block, "arm": side} for block, side in linked],
    )
    return Measured("s", (told,), (), cast("Any", None))


def guard(*of: Measured) -> tuple[bool | None, str]:
    """The guard of a comparison without a step."""
    nothing = {"metric": pl.String(), "allowance": pl.Float64(), "instructions": pl.Float64()}
    return layout(of, pl.DataFrame(schema=nothing))


def test_layout_is_drawn_where_every_block_of_both_sides_was_linked_anew() -> None:
    every = list(itertools.product((1, 2), SIDES))
    sentence = "Each block ran relinked programs, in another link order."
    assert guard(measured(*every)) == (True, sentence)
    of_two = [place for place in every if place[1] != SIDES[2]]
    passed, sentence = guard(measured(*every), measured(*of_two))
    assert passed is False
    assert "the candidate's programs cannot be relinked here" in sentence
    for some in (every[:-1], every[1:]):
        assert guard(measured(*some))[0] is False
    assert guard(measured(every[0]))[0] is None
    assert "these programs cannot be relinked here" in guard(measured())[1]
    assert "same programs" in guard(measured(candidate="master"))[1]
    copied = measured()
    copied.infos[0]["server"] = {"programs": "one"}
    copied.infos[0]["servers"] = {"patched": {"programs": "one"}}
    assert "cannot be relinked here" in guard(copied)[1]
    never = measured(*every)
    never.infos[0]["timeline"].clear()
    assert guard(never)[0] is None


def test_links_that_make_no_sense_are_none() -> None:
    told = measured(*itertools.product((1, 2), SIDES))
    told.infos[0]["links"] = [{"block": [1], "arm": {}}, {}, {"block": "1", "arm": SIDES[0]}]
    assert guard(told)[0] is None
