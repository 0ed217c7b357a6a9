"""The file of claims agrees with the posts' numbers, and is what the notebooks judge by."""

from __future__ import annotations

import ast
import re
from itertools import combinations
from typing import TYPE_CHECKING, get_args

import polars as pl
import pytest

from pgapps.execution.plan import plan, profiles_of, studies
from pgservers import paths
from pgservers.errors import StudyError
from pgservers.programs.extensions import NAMES
from pgservers.programs.releases import is_release
from pgservers.servers.base import Right
from pgstudies.analysis.agreement import Claim
from pgstudies.analysis.claims import all_claims, claim_marks, claims, origins, requirements, rules
from pgstudies.analysis.intervals import MINIMUM_BLOCKS
from pgstudies.analysis.published import published
from pgstudies.measuring.requirements import COLD
from pgstudies.rooms import find_room
from tests.made_up import copied_rooms

if TYPE_CHECKING:
    from pathlib import Path

    from pgservers.servers.managed import ManagedServer

ONE = """
anchor = "claims"
places = { arm = "two", last = 10 }

[[claim]]
id = "twice"
name = "twice in short"
text = "Two are twice as many as one."
source = "arithmetic, at iteration {last}"
kind = "count"
direction = "more"
published_ratio = 2.0
judged_by = "rows"
comparison = { candidate = "{arm}", iteration = "{last}", baseline = "{last!s}" }
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of one claim that a test may spoil."""
    rooms = copied_rooms(tmp_path, "swept")
    monkeypatch.setattr(paths, "NOTEBOOKS", (rooms,))
    path = rooms / "swept" / "claims.toml"
    path.write_text(ONE)
    return path


# ---- reading


@pytest.mark.usefixtures("file")
def test_what_depends_on_the_run_is_filled_in_and_keeps_its_type() -> None:
    (claim,) = claims("swept", places={"arm": "2", "last": 7}, published={"twice": 3.0})
    assert claim == Claim(
        "twice",
        "Two are twice as many as one.",
        "arithmetic, at iteration 7",
        "more",
        3.0,
        "rows",
        {"candidate": "2", "iteration": 7, "baseline": "7"},
        kind="count",
    )


@pytest.mark.usefixtures("file")
def test_the_frame_of_all_claims_is_that_of_the_posts_own_size() -> None:
    row = all_claims().row(0, named=True)
    assert row["source"] == "arithmetic, at iteration 10"
    assert (row["study"], row["claim"], row["published_ratio"]) == ("swept", "twice", 2.0)
    assert (row["baseline"], row["candidate"], row["step"]) == ("10", "two", None)
    assert (row["kind"], row["judged_by"], row["threshold"]) == ("count", "rows", None)


def test_a_claim_may_name_a_threshold(file: Path) -> None:
    file.write_text(ONE.replace("judged_by", "threshold = 1.5\njudged_by"))
    (claim,) = claims("swept", places={"arm": "2", "last": 7})
    assert claim.threshold == all_claims()["threshold"].item() == 1.5
    assert not claim.is_side


def test_a_claim_without_a_figure_is_of_a_direction_alone(file: Path) -> None:
    file.write_text(ONE.replace("published_ratio = 2.0\n", ""))
    (claim,) = claims("swept", places={"arm": "2", "last": 7})
    assert claim.is_side
    file.write_text(ONE)
    (claim,) = claims("swept", places={"arm": "2", "last": 7}, published={"twice": None})
    assert not claim.is_side  # the post has a figure, at another size


def test_a_claim_may_be_not_tested_or_lack_a_published_ratio(file: Path) -> None:
    places = {"arm": "two", "last": 1}
    (claim,) = claims("swept", places=places, published={"twice": None}, not_tested="no arm")
    assert (claim.published_ratio, claim.not_tested) == (None, "no arm")
    file.write_text(f'{ONE}not_tested = "it is gone"\n')
    (claim,) = claims("swept", places=places)
    assert claim.not_tested == "it is gone"


@pytest.mark.usefixtures("file")
def test_unknown_studies_ids_and_places_are_named() -> None:
    with pytest.raises(StudyError, match="There is no study absent; the studies are: swept"):
        claims("absent")
    with pytest.raises(StudyError, match="no claim 'thrice'; its claims are: twice"):
        claims("swept", places={"arm": "two", "last": 1}, published={"thrice": 3.0})
    with pytest.raises(StudyError, match="'twice' has a place for last"):
        claims("swept", places={"arm": "two"})


CLAIM = ONE[ONE.index("[[claim]]") :]
TWICE = f"\n{CLAIM}[[claim]]\n"


@pytest.mark.parametrize(
    ("said", "instead", "problem"),
    [
        ("\n[[claim]]\n", TWICE, "it has the claim 'twice' twice"),
        ("[[claim]]", "[[claim", "claims.toml cannot be read"),
        ("[[claim]]", "[claim]", "claims.toml is invalid: claim must be a list, and it is a table"),
        ('anchor = "claims"\n', "", "invalid: it has no anchor"),
        ("places", "place", "invalid: it has 'place', which is none of anchor, places, stand_ins"),
        ('direction = "more"', 'direction = "bigger"', "direction must be one of alike, faster"),
        ('direction = "more"\n', "", "claim 'twice' has no direction"),
        ('direction = "more"', "directions = 1", "'directions', which is none of id, name, text"),
        ("published_ratio = 2.0", "published_ratio = -2.0", "published_ratio must be a number > 0"),
        ("judged_by", "not_tested = 1\njudged_by", "not_tested must be text, and it is a whole"),
        ('id = "twice"', "id = 2", "claim 1, id must be text, and it is a whole number"),
        ("comparison = {", "comparison = 1 # {", "comparison must be a table, and it is a whole"),
        ('kind = "count"', 'kind = "guess"', "kind must be one of alike, count, direction, thresh"),
        ('kind = "count"', 'kind = "alike"', "alike in its kind or its direction, but not in both"),
        ('kind = "count"', 'kind = "threshold"', "has no threshold, which its kind needs"),
        ("judged_by", 'requires = "files"\njudged_by', "requires must be a list, and it is text"),
        ("judged_by", "requires = [1]\njudged_by", "requires 1 must be text, and it is a whole"),
        ("judged_by", "threshold = 0.5\njudged_by", "is not on its direction's side of 1"),
        ("judged_by", "threshold = 1\njudged_by", "is not on its direction's side of 1"),
        ("comparison = {", 'comparison = { metric = "rows",', "is the key judged_by"),
        ("[[claim]]", 'headlines = ["a"]\n[[claim]]', "headlines 1 must be a table, and it is"),
        ("[[claim]]", 'headlines = [{ claim = "a", text = "" }]\n[[claim]]', "no such claim"),
        (
            "[[claim]]",
            'headlines = [{ claim = "twice", text = "{no}" }]\n[[claim]]',
            "a headline of the claim 'twice' that may have no other places than {published}, {now}",
        ),
        (
            "[[claim]]",
            'headlines = [{ claim = "twice", text = "{now_times_as_fast}" }]\n[[claim]]',
            "may have no other places than .*{high_percent_more}\\.$",
        ),
    ],
)
def test_a_mistake_in_the_file_is_told_in_a_sentence(
    file: Path, said: str, instead: str, problem: str
) -> None:
    file.write_text(ONE.replace(said, instead, 1))
    with pytest.raises(StudyError, match=problem):
        all_claims()


@pytest.mark.parametrize("text", ["a {x:y}", "{", "{0}", "{last.nothing}", "{last!z}"])
def test_braces_that_are_no_place_are_told(file: Path, text: str) -> None:
    file.write_text(ONE.replace('source = "', f'source = "{text} '))
    with pytest.raises(StudyError, match="The claim 'twice' has"):
        claims("swept", places={"arm": "two", "last": 1})


def test_a_ratio_may_be_a_whole_number(file: Path) -> None:
    before = rules("swept")
    file.write_text(ONE.replace("published_ratio = 2.0", "published_ratio = 2"))
    assert rules("swept") == before


# ---- the file


def test_every_study_that_judges_has_claims_and_no_other_has() -> None:
    judging = {name for name in studies() if "study.judge(" in find_room(name).notebook.read_text()}
    assert set(origins()) == judging == set(all_claims()["study"])


def test_the_direction_is_that_of_the_ratio() -> None:
    for row in all_claims().iter_rows(named=True):
        if row["direction"] != "alike" and row["published_ratio"] is not None:
            above = row["direction"] in ("slower", "more")
            assert (row["published_ratio"] > 1) == above, row["claim"]


@pytest.mark.parametrize("study", origins())
def test_what_claims_require_of_a_server_is_known(study: str, managed: ManagedServer) -> None:
    with managed.connect() as connection:
        settings = {name for (name,) in connection.execute("SELECT name FROM pg_settings")}
    known = {*get_args(Right), *NAMES, COLD, *settings}
    assert [r for r in requirements(study) if r not in known and not is_release(r)] == []
    sizes = {claim.size for claim in claims(study, places=origins()[study].places)}
    assert sizes <= {None, *profiles_of(find_room(study))}


@pytest.mark.parametrize("profile", ["standard", "published"])
@pytest.mark.parametrize("study", origins())
def test_a_larger_size_has_the_blocks_that_its_claims_take(study: str, profile: str) -> None:
    if profile not in profiles_of(find_room(study)):
        pytest.skip(f"{study} has no {profile} size")
    assert plan(study, profile=profile).parameters["blocks"] >= MINIMUM_BLOCKS


def test_published_ratios_are_those_of_the_posts_numbers() -> None:
    expected = {**of_cluster_order(), **of_hash_index(), **of_dead_tuples(), **of_mvcc_catalog()}
    told = all_claims().select("study", "claim", "published_ratio").rows()
    found = {(study, claim): ratio for study, claim, ratio in told}
    assert {key: found[key] for key in expected} == pytest.approx(expected, rel=5e-4)


def of_cluster_order() -> dict[tuple[str, str], float]:
    seconds = {
        (r["arm"], r["step"], r["iteration"]): r["seconds"]
        for r in published("cluster_order").iter_rows(named=True)
    }
    insert = {a: sum(seconds[a, "insert", i] for i in range(2, 11)) for a in ("head", "patched")}
    last = seconds["head", "select range", 10]
    return {
        ("cluster_order", "decay"): last / seconds["head", "select range", 2],
        ("cluster_order", "own decay"): seconds["patched", "select range", 10]
        / seconds["patched", "select range", 2],
        ("cluster_order", "patched decay"): seconds["patched", "select range", 10] / last,
        ("cluster_order", "patched insert"): insert["patched"] / insert["head"],
    }


NAMES_OF = {("narrow", "cold"): "narrow cold, time"}
"""Claims that are not named for the post's case and cache alone."""


def of_hash_index() -> dict[tuple[str, str], float]:
    value = {
        (r["case"], r["cache"], r["arm"]): r["value"]
        for r in published("hash_index").iter_rows(named=True)
    }
    cases = [(c, s, cache) for c in ("wide", "narrow", "collision")
             for s, cache in (("cold", "cold"), ("warm", "warm"))]  # fmt: skip
    return {
        ("hash_index", NAMES_OF.get((case, step), f"{case} {step}")): value[
            case, cache, "hash_head"
        ]
        / value[case, cache, "hash_patched"]
        for case, step, cache in cases
    } | {
        ("hash_index", name): value["wide", cache, "btree"] / value["wide", cache, "hash_patched"]
        for name, cache in (("hash beats btree", "cold"), ("hash as btree", "warm"))
    }


def of_dead_tuples() -> dict[tuple[str, str], float]:
    of = {(r["case"], r["structure"]): r for r in published("dead_tuples").iter_rows(named=True)}
    told = all_claims().filter(pl.col("study") == "dead_tuples", pl.col("claim") != "vacuum")
    fields = {("lookup", "cpu_s"): "lookup_ms", ("load", "cpu_s"): "load_ms"}
    fields |= {("load", "size"): "size_bytes"}
    ratios = {}
    for row in told.iter_rows(named=True):
        field = fields[row["step"], row["judged_by"]]
        ratio = of[row["case"], row["candidate"]][field] / of[row["case"], "array"][field]
        ratios["dead_tuples", row["claim"]] = ratio
    return ratios


def of_mvcc_catalog() -> dict[tuple[str, str], float]:
    value = {
        (r["test"], r["connections"], r["arm"]): r["value"]
        for r in published("mvcc_catalog").iter_rows(named=True)
        if r["battery"] == 2
    }
    ratio = {
        (test, number): mvcc / value[test, number, "snapshot_now"]
        for (test, number, arm), mvcc in value.items()
        if arm == "mvcc"
    }
    tests = {"drop": "drop", "create": "create", "start": "startup"}
    return {
        ("mvcc_catalog", claim): ratio[test, 2000] / ratio[test, 250]
        for claim, test in tests.items()
    } | {("mvcc_catalog", "few"): ratio["create", 250]}


@pytest.mark.parametrize("study", origins())
def test_no_two_claims_judge_one_measurement(study: str) -> None:
    """Nor might they: two rows are one where all the columns that both claims name are alike."""
    tested = [c for c in claims(study, places=origins()[study].places) if not c.not_tested]
    for one, other in combinations(tested, 2):
        both = one.comparison.keys() & other.comparison.keys()
        is_one_row = all(one.comparison[name] == other.comparison[name] for name in both)
        assert one.judged_by != other.judged_by or not is_one_row, (one.id, other.id)


COUNTED_HERE = ("read_bytes", "buffers_read")


def test_a_claim_judged_by_what_is_read_says_so_where_the_post_has_a_time() -> None:
    told = all_claims().filter(pl.col("judged_by").is_in(COUNTED_HERE))
    assert told.height > 5
    for row in told.iter_rows(named=True):
        assert re.search(r"\b(pages|read|gains)\b", row["text"]), row["claim"]
        if row["published_ratio"] is not None and "offset" not in row["claim"]:
            assert "the post has the time of its disk" in row["text"], row["claim"]


# ---- the notebooks


@pytest.mark.parametrize("study", origins())
def test_a_notebook_takes_its_claims_from_the_file_and_fills_every_place(study: str) -> None:
    sources = find_room(study).code
    assert not any("pg.Claim(" in source for source in sources)
    given: ast.expr | None
    (given,) = [
        node.value
        for source in sources
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.keyword) and node.arg == "places"
    ]
    if isinstance(given, ast.Call):  # reading.places()
        reading = ast.parse((find_room(study).directory / "reading.py").read_text("utf-8"))
        (made,) = [f for f in reading.body if isinstance(f, ast.FunctionDef) and f.name == "places"]
        (given,) = [node.value for node in ast.walk(made) if isinstance(node, ast.Return)]
    assert isinstance(given, ast.Dict)
    names = {ast.literal_eval(key) for key in given.keys if key is not None}
    assert names == set(origins()[study].places)
    assert claims(study, places=dict.fromkeys(names, 1))


# ---- stand-ins


def test_a_stand_in_is_told_of_each_claim_that_requires_or_compares_it(file: Path) -> None:
    stand_ins = "stand_ins = { two = 'A twin stands for two.', copies = 'So do copies.' }\n"
    file.write_text(stand_ins + ONE)
    with pytest.raises(StudyError, match="a stand-in 'two', which no claim requires or compares"):
        all_claims()
    text = ONE.replace('"{arm}"', '"two"') + 'requires = ["copies"]\n' + OTHER
    file.write_text(text)
    before = claim_marks("swept")
    file.write_text(stand_ins + text)
    assert all_claims()["stand_in"].to_list() == ["A twin stands for two. So do copies.", None]
    assert claim_marks("swept") == before  # words for readers are no rules


OTHER = CLAIM.replace('"twice"', '"other"')


def test_every_claim_that_rests_on_an_extension_in_place_of_a_patch_bears_the_sign() -> None:
    known = all_claims()
    assert known.drop_nulls("stand_in").height > 20
    for row in known.iter_rows(named=True):
        needs = {r["id"]: r.get("requires", []) for r in rules(row["study"])}[row["claim"]]
        is_patch = {"cluster_heap", "hash_2008", "limits"} & {*needs}
        is_ours = row["candidate"] in {"radix", "tbm"}
        assert bool(row["stand_in"]) == bool(is_patch or is_ours), row["claim"]
