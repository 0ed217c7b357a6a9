"""Layout: links in another order in every block, and what two programs without may differ by."""

from __future__ import annotations

import itertools
import math
import shutil
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import polars as pl
import psutil
import pytest

from book.bench.links import likeliest, links, rounded_up
from pgapps.compare.counted import Counted
from pgapps.compare.design import BASELINE, CANDIDATE, COPY, SIDES, Comparison, Side, designed
from pgapps.compare.judging import layout
from pgapps.compare.judging.layout import LINKS, allowance, doubted
from pgapps.compare.judging.measured import CPU, PLACE, TIME, Measured, effects_by_names
from pgapps.compare.text import as_text
from pgapps.compare.wording import COLUMNS
from pgservers.paths import LAYOUT_RECORDS
from pgservers.programs.cached import finish, sha256_of
from pgservers.programs.installations import copy_installation, find_binaries
from pgservers.programs.relinking import KEPT, can_relink, keep_link
from pgservers.servers.managed import ManagedServer
from pgservers.servers.serve import serve
from pgstudies.measuring.arms import Arm
from tests.compare.test_compare import (
    first_line,
    info_of,
    logs,
    made_up,
    of_inserts,
    result,
    samples_of,
    well,
    words,
)
from tests.made_up import info

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
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


DESIGN = designed("s", [Arm("one")], Comparison(Side("master"), Side("patched")))


def test_every_instance_of_a_block_runs_a_program_of_its_own_link(built: ManagedServer) -> None:
    about = cast("ComparedInfo", info("s", seed=7))
    with built.another(own_programs=True) as second, built.another() as third:
        servers = (built, second, third)
        for block in (1, 2):
            for arm, server in zip(DESIGN.arms, servers, strict=True):
                DESIGN.begin(about, block, arm, server)
        for server in servers:
            server.restore("made", lambda: None)
            with server.connect() as connection:
                assert connection.execute("SELECT 1").fetchone() == (1,)
        programs = [server._programs.bindir / "postgres" for server in servers]
        links, environments = about["links"], about["environments"]
        running = [psutil.Process(server.postmaster_pid).environ() for server in servers]
        drawn = [e["padding_bytes"] for e in environments]
        assert [len(of["PGSTUDIES_PADDING"]) for of in running] == drawn[3:]
        assert len(set(drawn)) >= 4
        assert all(0 <= padding_bytes < 4096 for padding_bytes in drawn)
        assert [sha256_of(program) for program in programs] == [e["sha256"] for e in links[3:]]
        places = list(itertools.product((1, 2), [arm.name for arm in DESIGN.arms]))
        for entries in (links, environments):
            assert [(e["block"], e["arm"]) for e in entries] == places
        assert len({e["seed"] for e in links}) == len({e["sha256"] for e in links}) == 6
        DESIGN.begin(about, 2, DESIGN.arms[2], third)  # the block was interrupted
        assert (about["links"], about["environments"]) == (links, environments)
        replace(DESIGN, links="of another").begin(about, 2, DESIGN.arms[2], third)
        assert about["links"][-1]["seed"] not in {e["seed"] for e in links}
    assert built.binaries.bindir / "postgres" not in programs
    assert can_relink(built.binaries), "the build itself is as it was"


def test_programs_that_are_not_of_a_build_of_ours_have_an_environment_drawn_alone(
    managed: ManagedServer,
) -> None:
    about = cast("ComparedInfo", info("s", seed=7))
    programs = managed._programs
    for block in (1, 2):
        DESIGN.begin(about, block, DESIGN.arms[0], managed)
    assert "links" not in about
    assert managed._programs is programs
    assert len({e["padding_bytes"] for e in about["environments"]}) == 2


EVERY = list(itertools.product((1, 2), SIDES))


def measured(*linked: tuple[int, str], candidate: str = "patched") -> Measured:
    """Two blocks of all sides, of which these are relinked."""
    told = info(
        "s",
        arms=[{"name": side, "side": side, "not_run": None} for side in SIDES],
        comparison={"baseline": {"server": "master"}, "candidate": {"server": candidate}},
        server={},
        servers={},
        timeline=[{"block": block, "arm": side} for block, side in EVERY],
        links=[{"block": block, "arm": side} for block, side in linked],
    )
    return Measured("s", (told,), (), cast("Any", None))


def guard(*of: Measured) -> tuple[bool | None, str]:
    """The guard of a comparison without a step."""
    nothing = {"metric": pl.String(), "allowance": pl.Float64(), "instructions": pl.Float64()}
    return layout.layout(of, pl.DataFrame(schema=nothing))


def test_layout_is_drawn_where_every_block_of_both_sides_was_linked_anew() -> None:
    passed, sentence = guard(measured(*EVERY))
    assert passed is True
    assert "Each block ran relinked programs" in sentence
    of_two = [place for place in EVERY if place[1] != CANDIDATE]
    passed, sentence = guard(measured(*EVERY), measured(*of_two))
    assert passed is False
    assert "the candidate's programs cannot be relinked here" in sentence
    for some in (EVERY[:-1], EVERY[1:]):
        assert guard(measured(*some))[0] is False
    assert guard(measured(EVERY[0]))[0] is None
    assert "these programs cannot be relinked here" in guard(measured())[1]
    assert "same programs" in guard(measured(candidate="master"))[1]
    copied = measured()
    copied.infos[0]["server"] = {"programs": "one"}
    copied.infos[0]["servers"] = {"patched": {"programs": "one"}}
    assert "cannot be relinked here" in guard(copied)[1]
    never = measured(*EVERY)
    never.infos[0]["timeline"].clear()
    assert guard(never)[0] is None
    senseless = measured(*EVERY)
    senseless.infos[0]["links"] = [{"block": [1], "arm": {}}, {}, {"block": "1", "arm": BASELINE}]
    assert guard(senseless)[0] is None


def fixed(steps: Mapping[str, float], **about: Any) -> Measured:
    """Two builds that were not relinked, with the candidate's time of each step."""
    told = info_of(links=[], **about)
    return made_up(samples_of({step: logs(effect) for step, effect in steps.items()}), told)


def test_the_constants_are_what_the_records_of_links_give() -> None:
    assert {m: rounded_up(d) for m, d in links(LAYOUT_RECORDS).items()} == pytest.approx(LINKS)


def test_what_the_rounds_of_a_block_show_as_noise_is_no_matter_of_links() -> None:
    rng = np.random.default_rng(3)
    noise = rng.uniform(0.01, 0.04, 400) ** 2
    means = rng.normal(0, 0.02, 400) + rng.normal(0, np.sqrt(noise))
    assert likeliest(means, noise) == pytest.approx(0.02, abs=0.003)
    assert likeliest(means, 0 * noise + 1e-9) > 0.03


def test_the_more_steps_the_further_must_one_of_them_be() -> None:
    assert allowance(CPU, 1) == pytest.approx(math.expm1(1.96 * LINKS[CPU]), rel=1e-3)
    assert allowance(TIME, 12) == pytest.approx(math.expm1(2.865 * LINKS[TIME]), rel=1e-3)
    rng = np.random.default_rng(4)
    moved = np.abs(rng.normal(0, LINKS[CPU], (4000, 12))).max(axis=1)
    assert np.mean(moved > math.log1p(allowance(CPU, 12))) == pytest.approx(0.05, abs=0.01)
    assert np.mean(moved > math.log1p(allowance(CPU, 1))) > 0.4, "each step by itself"


@pytest.mark.parametrize(("ratio", "code"), [(1.1, 1), (1.045, 2), (1 / 1.1, 0), (1 / 1.045, 2)])
def test_a_step_is_called_slower_or_faster_only_beyond_what_links_move(
    ratio: float, code: int
) -> None:
    found = result(fixed({"insert": ratio, "select": 1.0}))
    row = found.effects.row(by_predicate=pl.col("step") == "insert", named=True)
    assert row["allowance"] == pytest.approx(allowance(TIME, 2))
    assert found.code == code
    is_open = code == 2
    beyond = "slower" if ratio > 1 else "faster"
    assert row["verdict"] == ("inconclusive" if is_open else beyond)
    assert row["doubt"] == ("layout not excluded" if is_open else None)
    assert row["blocks_needed"] is None
    assert max(map(len, as_text(found).splitlines())) <= COLUMNS
    assert "Links alone move one of 2 steps by up to 5.8 % in wall time" in words(found)
    assert any(line.endswith("  layout") for line in as_text(found).splitlines()) == is_open
    assert ("because layout is not excluded for 1 step:" in first_line(found)) == is_open


def test_settings_alone_and_links_in_every_block_need_no_allowance() -> None:
    sides = {side: {"server": "embedded", "settings": {"work_mem": "64MB"}} for side in SIDES}
    for measured in (fixed({"insert": 1.1}, comparison=sides), of_inserts(1.1)):
        found = result(measured)
        assert found.code == 1
        assert found.effects["allowance"].is_null().all()


def test_the_text_of_two_releases_says_that_their_compilers_differ() -> None:
    servers = {BASELINE: "16", CANDIDATE: "17"}
    sides = {side: {"server": name, "settings": {}} for side, name in servers.items()}
    assert "compilers included" in words(result(fixed({"insert": 1.1}, comparison=sides)))
    assert "compilers included" not in words(result(fixed({"insert": 1.1})))


def counts(baseline: float, candidate: float | None, **of: Any) -> Counted:
    """One unit, of the step insert."""
    ratio = None if candidate is None else candidate / baseline
    about = {"study": "made_up", "unit": "one row inserted", "reason": None}
    numbers = {"baseline": baseline, "candidate": candidate, "ratio": ratio}
    row = about | numbers | {"arm": "", "steps": ["insert"]} | of
    moved = dict.fromkeys(["unit", "function"], pl.String()) | {"change": pl.Float64()}
    return Counted(pl.DataFrame([row]), pl.DataFrame(schema=moved))


@pytest.mark.parametrize(
    ("counted", "code"),
    [
        (counts(1000.0, 1060.0), 1),
        (counts(1000.0, 1060.0, arm="heap"), 1),
        (counts(1000.0, 1015.0), 2),
        (counts(1000.0, 940.0), 2),
        (counts(1000.0, 1000.5), 2),
        (counts(1000.0, None), 2),
        (counts(1000.0, 1060.0, arm="tree"), 2),
        (counts(1000.0, 1060.0, steps=["insert, many"]), 2),
        (counts(1000.0, 1060.0, study="another"), 2),
    ],
    ids=["more", "its arm", "too few", "fewer", "equal", "not counted", "arm", "case", "study"],
)
def test_a_step_whose_instructions_grew_with_its_time_is_slower(
    counted: Counted, code: int
) -> None:
    assert result(fixed({"insert": 1.045, "select": 1.0}), counted=counted).code == code


def test_counts_alone_make_no_step_slower() -> None:
    found = result(fixed({"insert": 1.0}), counted=counts(1000.0, 1100.0))
    assert (found.code, found.effects["verdict"].to_list()) == (0, ["equivalent"])


def test_more_instructions_beside_an_open_time_are_not_decided() -> None:
    hidden = of_inserts(1.012, spread=8)
    assert result(hidden).code == 0, "noise alone hides nothing that is known"
    found = result(hidden, counted=counts(1000.0, 1108.0))
    assert found.code == 2
    assert first_line(found).startswith(
        "Not decided, because instructions grew by 10.8 % in 1 step of open time"
    )
    assert "1.108 times the instructions" in as_text(found)
    within = result(hidden, counted=counts(1000.0, 1015.0))
    assert within.code == 0, "by less than the margin"


def test_the_units_of_a_step_are_taken_together() -> None:
    one, two = counts(1000.0, 1010.0).units, counts(3000.0, 2990.0).units
    both = Counted(pl.concat([one, two]), counts(1.0, 1.0).moved)
    assert result(fixed({"insert": 1.1}), counted=both).effects["instructions"].to_list() == [1.0]
    lacking = pl.concat([one, two.with_columns(ratio=None)], how="vertical_relaxed")
    found = result(fixed({"insert": 1.1}), counted=Counted(lacking, both.moved))
    assert found.effects["instructions"].to_list() == [None]


def test_instructions_explain_a_step_by_its_estimate_and_not_by_the_end_of_its_interval() -> None:
    row = {"ratio": 1.04, "low": 1.002, "high": 1.08, "instructions": 1.003, "verdict": "slower"}
    effects = pl.DataFrame([row | {"allowance": 0.05, "blocks_needed": None, "margin": 0.02}])
    assert doubted(effects, is_fixed=True)["doubt"].to_list() == ["layout not excluded"]
    by_the_end = effects.with_columns(ratio="low")
    assert doubted(by_the_end, is_fixed=True)["doubt"].to_list() == [None]
    less = effects.with_columns(instructions=pl.lit(0.9))
    assert doubted(less, is_fixed=True)["doubt"].to_list() == ["layout not excluded"]


def test_a_time_that_differs_beside_equal_instructions_is_said_to_be_unexplained() -> None:
    equal = counts(1000.0, 1000.5)
    note = "\n    same instructions; placement, caches or waits\n"
    beyond = result(fixed({"insert": 1.1, "select": 1.0}), counted=equal)
    assert note in as_text(beyond)
    assert beyond.code == 1, "it is beyond what links move it by"
    found = result(fixed({"insert": 1.045, "select": 1.0}), counted=equal)
    assert note in as_text(found)
    assert found.code == 2
    assert "only the time differs, and not the instructions, of 1 step" in first_line(found)
    drawn = of_inserts(1.045)
    relinked = result(drawn, counted=equal)
    assert note in as_text(relinked)
    assert relinked.code == 1
    assert note not in as_text(result(drawn, counted=counts(1000.0, 1050.0)))
    assert note not in as_text(result(well(), counted=equal))


LUCK = 0.01
"""The standard deviation of what one link moves a step by, and of the noise of a block."""

COMPARISONS, STEPS, BLOCKS = 20, 12, 9


def simulated(
    seed: int, *, links: int, slower: float = 1.0, comparisons: int = COMPARISONS
) -> pl.DataFrame:
    """Effects of comparisons of a made-up server, each a study.

    Every program has ``links``, one for all blocks or one for each.  Nothing differs but them,
    except that the candidate's step 0 takes ``slower`` times as long.
    """
    rng = np.random.default_rng(seed)
    steps = (comparisons, STEPS)
    shape = (len(SIDES), *steps, BLOCKS)
    layouts = rng.normal(0, LUCK, (len(SIDES), *steps, links))
    if links == 1:
        layouts[1] = layouts[0]  # a copy of one program
    log = np.broadcast_to(layouts, shape) + rng.normal(0, LUCK, shape)
    log[SIDES.index(CANDIDATE), :, 0] += math.log(slower)
    side, study, step, block = (axis.ravel() for axis in np.indices(shape))
    same = {"of": "heap", "case": "", "metric": "duration_s"}
    times = pl.DataFrame(
        {"study": study.astype(str), "step": step.astype(str), "block": block + 1}
        | {"arm": np.array(SIDES)[side], "value": np.exp(log).ravel(), "unit": "s", **same}
    ).with_columns(copy_of=pl.when(arm=COPY).then(pl.lit(BASELINE)))
    by = [*PLACE, "metric"]
    return pl.concat([effects_by_names(of, by=by) for of in times.partition_by("study")])


def share(effects: pl.DataFrame, step: str | None = None) -> float:
    """Of the comparisons, those that call a step, or this one, slower or faster."""
    differs = pl.col("verdict").is_in(["slower", "faster"])
    if step is not None:
        effects = effects.filter(step=step)
    calls = effects.group_by("study").agg(differs.any())
    return float(calls["verdict"].mean())  # type: ignore[arg-type]


def judged(effects: pl.DataFrame) -> pl.DataFrame:
    """As two programs are judged that were not relinked."""
    return doubted(
        effects.with_columns(
            instructions=pl.lit(None, pl.Float64), allowance=pl.lit(allowance(TIME, STEPS))
        ),
        is_fixed=True,
    )


@pytest.mark.timeout(900)
def test_where_layout_alone_differs_a_step_is_called_in_at_most_one_comparison_of_twenty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(layout.LINKS, TIME, math.sqrt(2) * LUCK)  # both links are of one kind
    alone = simulated(1, links=1)
    assert share(alone) > 0.5, "an interval over blocks does not hold what is fixed for a side"
    assert share(judged(alone)) <= 0.05
    drawn = simulated(2, links=BLOCKS)
    assert share(drawn) <= 0.05


@pytest.mark.timeout(900)
def test_a_tenth_more_is_found_whatever_the_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(layout.LINKS, TIME, math.sqrt(2) * LUCK)
    alone = simulated(3, links=1, slower=1.1, comparisons=10)
    assert share(judged(alone), step="0") >= 0.9
    drawn = simulated(4, links=BLOCKS, slower=1.1, comparisons=10)
    assert share(drawn, step="0") >= 0.95
