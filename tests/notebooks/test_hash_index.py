"""The modules beside hash_index: its arms, and the reasons and answers that its page gives."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

import pgstudies as pg
from pgapps.builds.served import NO_REPOSITORY
from pgservers.errors import StudyError
from pgstudies.analysis.agreement import judge
from pgstudies.analysis.claims import claims, origins
from pgstudies.analysis.published import published
from pgstudies.rooms import study_module
from tests import made_up

ARMS = study_module("hash_index", "arms")
CHARTS = study_module("hash_index", "charts")
READING = study_module("hash_index", "reading")
TABLES = study_module("hash_index", "tables")
POST = TABLES.POST
COMMITS = list(ARMS.COMMITS)


def samples(*rows: tuple[Any, ...]) -> pl.DataFrame:
    """Samples of block 0: arm, case, step, metric and value of each."""
    names = ["arm", "case", "step", "metric", "value"]
    return pl.DataFrame(rows, schema=names, orient="row").with_columns(block=pl.lit(0))


def arms(**how: Any) -> dict[str, pg.Arm]:
    how = {"rows": 2_000_000, "widths": [], "collations": False, "releases": []} | how
    found = ARMS.arms(few_buffers=64, repo="", **how)
    return {arm.name: arm for arm in found}


def test_arms_share_a_state_unless_they_have_more_than_the_posts_tables() -> None:
    found = arms(widths=[20], releases=["9.6"])
    more = [name for name, arm in found.items() if arm.state == "more tables"]
    assert more == ["btree", "hash"]
    assert list(found)[-2:] == ["btree, 9.6", "hash, 9.6"]


def test_the_indexes_of_2008_are_measured_in_two_locales_and_todays_in_all() -> None:
    found = arms(widths=[20], collations=True)
    assert found["code"].options["tables"] == [*POST, "wide0"]
    assert found["hash"].options["tables"] == [*POST, "text20", "wide0", "wide1", "wide2"]
    assert TABLES.case_of("wide0") == "wide, en_US.UTF-8"
    assert TABLES.case_of("text20") == "text20"


def test_without_a_clone_the_commits_are_not_run() -> None:
    found = [arms(widths=[20], collations=True)[name] for name in COMMITS]
    assert [arm.not_run for arm in found] == 3 * [NO_REPOSITORY]
    before, after = "commit-440b3384b0", "commit-4adc2f72a4"
    assert [arm.server for arm in found] == [before, after, before]
    assert [arm.options["index"] for arm in found] == ["hash", "hash", "btree"]
    assert {(arm.state, *arm.options["tables"]) for arm in found} == {("tables", *POST)}


def test_claims_that_the_commit_judges_name_arms_that_there_are() -> None:
    asked = claims("hash_index", places=origins()["hash_index"].places)
    judging = {claim.id: claim.by_commit for claim in asked if claim.by_commit}
    assert len(judging) == 12
    assert not judging.keys() & {"other locales", "build unsorted", "presorting", "building"}
    for claim in judging.values():
        assert claim.commit == ARMS.AFTER
        assert {claim.comparison[side] for side in ("baseline", "candidate")} < {*COMMITS}
        assert claim.comparison.get("release") in {"8.4devel", None}
        assert "hash_2008" not in claim.requires


@pytest.mark.parametrize(("contrib", "query"), [({"pg_prewarm"}, "PREWARM"), ((), "PROBE_ALL")])
def test_without_pg_prewarm_every_row_is_looked_up(contrib: Any, query: str) -> None:
    said: list[str] = []
    can = SimpleNamespace(has=lambda _: True, contrib=contrib)
    TABLES.read_in(
        SimpleNamespace(server=SimpleNamespace(capabilities=can), execute=said.append), "wide"
    )
    assert said == [TABLES.on("wide", getattr(TABLES, query))]


def test_a_statement_names_one_table_and_its_index() -> None:
    text = "CREATE INDEX {index} ON {table} WITH (of = {of}) -- {name}, {index_name}"
    assert TABLES.on("Wide", text, of=1) == (
        """CREATE INDEX "Wide_f2" ON "Wide" WITH (of = 1) -- 'Wide', 'Wide_f2'"""
    )


def test_only_the_indexes_of_2008_need_the_extension() -> None:
    needing = {name for name, arm in arms().items() if arm.extension}
    assert needing == {name for name in arms() if name.startswith(("value", "code"))}
    assert len(needing) == 5


def test_the_cache_lies_between_the_two_indexes_as_it_did_in_2008() -> None:
    found = arms()
    cache = {name: arm.settings["effective_cache_size"] for name, arm in found.items()
             if "few buffers" in name}  # fmt: skip
    assert list(cache.values()) == ["131072kB", "131072kB", "32768kB"]
    assert found["value, few buffers"].settings["shared_buffers"] == "512kB"


@pytest.mark.parametrize("rows", [2_000, 100_000, 280_000, 1_000_000, 2_000_000, 3_000_001])
def test_by_the_rule_values_are_sorted_first_and_codes_are_not(rows: int) -> None:
    def buckets(of_bucket: int) -> int:
        wanted = rows / of_bucket
        return 1 << max(1, (int(wanted) - 1).bit_length()) if wanted > 2 else 2

    cache = ARMS.cache_of_2008(rows)
    assert buckets(307) < cache <= buckets(139)
    assert cache // 4 <= buckets(307)


def test_space_is_for_rows_and_index_in_two_copies() -> None:
    assert TABLES.bytes_needed(["wide"], rows=10, widths=[]) == 20 * 400
    assert TABLES.bytes_needed(["narrow"], rows=10, widths=[20]) == 20 * 220


def test_texts_stand_by_their_width_and_only_measured_ones() -> None:
    measured = pl.DataFrame({"case": ["collision", "text200", "wide", "text20", "narrow"]})
    found = READING.cases_of(measured, [200, 20, 50], ["ICU"])
    assert found == ["narrow", "text20", "wide", "text200", "collision"]


def test_the_posts_ratios_are_of_cost_so_fewer_transactions_are_above_one() -> None:
    numbers = published("hash_index")
    ratios = READING.claimed_ratios(numbers)
    assert ratios["wide cold"] == 26.9 / 41.9
    assert ratios["hash beats btree"] == 31.5 / 41.9
    assert ratios["old hash, warm"] == 4749 / 4185
    assert len(ratios) == 10
    slow = READING.patch_ratios(numbers).filter(step="slow disk", case="collision")
    assert slow["published_ratio"].to_list() == [49.9 / 37.2]


def test_warm_claims_need_warm_turns_of_what_they_compare() -> None:
    hits = {"wide": 1.0, "narrow": 0.9991, "collision": None, "wide, en_US": 0.972}
    turns = pl.DataFrame({"case": list(hits), "least_hits": list(hits.values())})
    step = {"step": "warm", "baseline": "value", "candidate": "code"}
    for case in POST:
        assert READING.reason_not_warm(turns, step | {"case": case}) is None
    locales = {"step": "warm", "baseline": "wide", "candidate": "wide, en_US"}
    assert "97.2% of pages" in READING.reason_not_warm(turns, locales)


def test_cold_claims_need_a_run_as_short_for_its_table_as_the_posts() -> None:
    assert READING.reason_not_cold(3000, 2_000_000) is None
    assert "151 transactions on 100,000 rows" in READING.reason_not_cold(151, 100_000)


def test_cold_times_are_medians_of_what_pgbench_tells_in_microseconds() -> None:
    told = [("hash", "wide", "cold", "duration_s", s) for s in (2e-6, 4e-6, 9e-6)]
    told += [("hash", "wide", "cold", "p99_s", 5e-5), ("hash", "wide", "warm", "median_s", 1e-6)]
    assert READING.cold_times(samples(*told)).to_dicts() == [
        {"step": "cold", "case": "wide", "arm": "hash", "mean": 4.0, "median": None, "99 %": 50.0}
    ]


def test_data_must_be_the_same_and_collide_where_it_should() -> None:
    def answers(*sums: float, collide: float = 1000) -> list[bool]:
        rows = [("btree", "wide", "load", "checksum", value) for value in sums]
        rows.append(("btree", "narrow", "load", "colliding", 0.0))
        rows.append(("btree", "collision", "load", "colliding", collide))
        return list(READING.answers_of_data(samples(*rows), 1000).values())

    assert answers(7.0, 7.0) == [True, True]
    assert answers(7.0, 8.0, collide=900.0) == [False, False]


def test_sizes_are_compared_where_the_table_is_large() -> None:
    pages = {
        ("hash", "wide"): 100, ("hash", "narrow"): 104, ("btree", "wide"): 301,
        ("value", "wide"): 400, ("code", "wide"): 100,
        **{(arm, case): 100 for arm in ("value", "code") for case in ("narrow", "collision")},
    }  # fmt: skip

    def answers(rows: int, **changed: int) -> list[bool | None]:
        found = pages | {tuple(place.split("_")): size for place, size in changed.items()}
        table = [(arm, case, size) for (arm, case), size in found.items() if size]
        sizes = pl.DataFrame(table, schema=["arm", "case", "size_bytes"], orient="row")
        return list(READING.answers_of_sizes(sizes, rows).values())

    assert answers(100_000) == [True] * 4
    assert answers(99_999) == [True, None, None, None]
    changed = answers(10**6, btree_wide=1, value_wide=100, code_narrow=101)
    assert changed == [False, False, True, False]
    assert answers(10**6, value_narrow=0) == [None, None, True, True]


def test_reads_are_not_judged_where_nothing_was_read_cold() -> None:
    by_index = {
        **{"hash": (3.0, 3.0, 4.1), "value": (4.0, 3.0, 3.0), "code": (3.0, 3.0, 4.1)},
        **{"btree": (3.4, 3.0, 3.0), "btree (again)": (3.5, 3.0, 3.0)},
    }
    reads = pl.DataFrame(
        [(index, case, n) for index, found in by_index.items()
         for case, n in zip(POST, found, strict=True)],
        schema=["index", "case", "reads"], orient="row",
    )  # fmt: skip

    def answers(reads: pl.DataFrame) -> list[bool | None]:
        return list(READING.answers_of_reads(reads, "btree (again)").values())

    assert answers(reads) == [True, True, True, False]
    assert answers(reads.filter(pl.col("index") != "value")) == [True, None, None, False]
    raised = pl.when(pl.col("case") == "collision").then(2.0).otherwise(0.0)
    more = reads.with_columns(reads=pl.col("reads") + raised)
    assert answers(more) == [True, False, False, False]
    assert set(answers(reads.clear())) == {None}


def test_builds_are_judged_where_the_server_has_the_buffers_that_it_was_given() -> None:
    def answers(rows: int, unmet: dict[str, str], **of_arms: int) -> list[bool | None]:
        places = {
            "little": ("hash", "little memory"),
            "much": ("hash", "much memory"),
            "value": ("value, few buffers", "few buffers"),
            "code": ("code, few buffers", "few buffers"),
            "sorted": ("code, few buffers, sorted", "few buffers"),
        }
        told = [(*places[k], "build, wide", "presorted", v) for k, v in of_arms.items()]
        return list(READING.answers_of_builds(samples(*told), rows, unmet).values())

    as_claimed = {"little": 1, "much": 0, "value": 1, "code": 0, "sorted": 1}
    assert answers(100_000, {}, **as_claimed) == [True, True]
    assert answers(100_000, {}, **as_claimed | {"much": 1, "code": 1}) == [False, False]
    assert answers(100_000, {}, little=1, much=0) == [True, None]
    assert answers(100_000, {"shared_buffers": "128MB"}, **as_claimed) == [None, True]
    assert answers(99_999, {}, **as_claimed) == [None, True]


# The indexes of 2008


def effects_of(*arms_measured: str) -> list[pl.DataFrame]:
    values = pl.DataFrame(
        [(arm, block, 1.0 + 0.1 * n, None) for n, arm in enumerate(arms_measured)
         for block in range(1, 9)],
        schema={"arm": pl.String, "block": pl.Int64, "value": pl.Float64, "copy_of": pl.String},
        orient="row",
    ).with_columns(round=pl.lit("1"), case=pl.lit("wide"), unit=pl.lit("pages"))  # fmt: skip
    found: list[pl.DataFrame] = READING.compared(values, "value", ["code"], by=["case"])
    return found


def test_codes_are_compared_with_values_where_both_were_measured() -> None:
    (table,) = effects_of("value", "code", "hash")
    assert table["candidate"].to_list() == ["code"]
    assert table["ratio"].to_list() == pytest.approx([1.1])
    assert effects_of("code", "hash") == effects_of("value", "hash") == []


def test_pages_are_those_that_the_index_was_found_to_have() -> None:
    counts = {"index_bytes": 3 * 8192, "entries": 250, "buckets": 2, "overflow_pages": 0,
              "longest_chain": 1}  # fmt: skip
    built = samples(*(("value", "wide", "build", name, float(n)) for name, n in counts.items()))
    (row,) = READING.pages_of_indexes(built).to_dicts()
    assert (row["pages"], row["buckets"], row["full"]) == (3, 2, 125.0)
    of_another = samples(("code", "wide", "build", "index_bytes", 8192.0))
    assert READING.pages_of_indexes(of_another).is_empty()


def test_the_posts_throughput_stands_beside_both_indexes_of_values() -> None:
    names = ["value", "before", "code", "after", "btree", "btree, before", "hash"]
    read = [(arm, "wide", "old disk", metric, value) for arm in names
            for metric, value in (("disk_s", 0.02), ("read_bytes", 8192.0))]  # fmt: skip
    of_first = samples(*read).with_columns(copy_of=pl.lit(None, pl.String))
    found = READING.on_old_disk(of_first, published("hash_index"))
    tps = [26.9, 26.9, 41.9, 41.9, 31.5, 31.5, None]
    assert dict(found.select("arm", "tps in the post").rows()) == dict(zip(names, tps, strict=True))


# The very commits

AGAIN = "btree (again)"
READS = {
    **{"btree": 3.4, AGAIN: 3.4, "hash": 3.0, "value": 4.0, "code": 3.0},
    **{"before": 4.0, "after": 2.5, "btree, before": 3.2},
}
"""Pages that a cold lookup of a wide key reads, by arm."""


def run_of(*names: str) -> Any:
    """A run of six blocks of these arms: cold and warm lookups, and one size."""
    read = {name: [READS[name]] * 6 for name in names}
    took = {name: [READS[name] / 1e6] * 6 for name in names}
    same = {name: [8192.0] * 6 for name in names}
    wide: dict[str, Any] = {"case": "wide", "iteration": 0}
    size: dict[str, Any] = {"case": "collision", "iteration": 0, "step": "build"}
    found = [
        made_up.samples(read, "pages", metric="buffers_read", step="cold", **wide),
        made_up.samples(took, metric="cpu_s", step="warm", **wide),
        made_up.samples(same, "bytes", metric="index_bytes", **size),
    ]
    index = {name: commit[1] for name, commit in ARMS.COMMITS.items()} | {AGAIN: "btree"}
    versions = ["PostgreSQL 8.4devel" if name in COMMITS else "PostgreSQL 18.6" for name in names]
    described = [
        {
            "name": name,
            "copy_of": "btree" if name == AGAIN else None,
            "options": {"index": index.get(name, name)},
        }
        for name in names
    ]
    record = SimpleNamespace(
        samples=pl.concat(found),
        parameters={"widths": [], "rows": 2_000_000, "transactions": 500},
        arms=pl.DataFrame({"name": [*names], "server": versions}),
        repeat=AGAIN,
        info={"server": {"version_text": "PostgreSQL 18.6"}, "arms": described},
    )
    return READING.run_of(SimpleNamespace(record=record))


def compared(run: Any) -> list[pl.DataFrame]:
    """Hash against btree, codes against values, and values against btree."""
    rounds = READING.rounds_of(run)
    pair = rounds.filter(pl.col("arm").is_in(["btree", "hash", AGAIN]))
    effects = pg.paired_effects(pair, baseline="btree", by=READING.BY)
    here = rounds.filter(run.is_own | READING.OF_COMMIT)
    codes, old = (
        READING.of_pairs(here, effects, pairs)
        for pairs in (
            [("value", "code"), ("before", "after")],
            [("btree", "value"), ("btree, before", "before")],
        )
    )
    return [effects, codes, old]


def verdicts_of(run: Any) -> dict[str, dict[str, Any]]:
    told = READING.claimed_ratios(published("hash_index"))
    asked = claims("hash_index", places={"own": run.own}, published=told)
    building = READING.building_effects(run.samples, READING.QUANTITIES)
    rows = judge(asked, pl.concat([*compared(run), *building], how="diagonal_relaxed"))
    return {row["claim"]: row for row in rows.iter_rows(named=True)}


def test_the_commit_judges_where_it_was_measured_and_the_extension_stands_beside_it() -> None:
    run = run_of(*READS)
    found = verdicts_of(run)
    cold = found["wide cold"]
    assert (cold["commit"], cold["verdict"]) == (ARMS.AFTER, "holds")
    assert (cold["baseline"], cold["candidate"]) == ("before", "after")
    assert (cold["ratio"], cold["stood_in"]) == (pytest.approx(0.625), pytest.approx(0.75))
    old = found["old hash, cold"]
    assert (old["baseline"], old["candidate"]) == ("btree, before", "before")
    assert (old["ratio"], old["stood_in"]) == (pytest.approx(1.25), pytest.approx(4 / 3.4))
    assert found["wide warm"]["commit"] == found["narrow size"]["commit"] == ARMS.AFTER
    of_today = found["hash beats btree"]
    assert (of_today["commit"], of_today["ratio"]) == (None, pytest.approx(3 / 3.4))
    effects, codes, _ = compared(run)
    assert set(effects["release"]) == {"18.6"}
    shown = codes.filter(READING.is_shown(run.samples)).sort(run.step)
    assert shown["candidate"].to_list() == ["code", "after"] * 2
    reads = READING.pages_read(run.samples)
    assert dict(reads.select("arm", "reads").iter_rows()) == pytest.approx(READS)


def test_without_the_commit_the_extension_judges() -> None:
    run = run_of(*(name for name in READS if name not in COMMITS))
    found = verdicts_of(run)
    assert {row["commit"] for row in found.values()} == {None}
    assert found["wide cold"]["ratio"] == pytest.approx(0.75)
    assert set(compared(run)[1]["candidate"]) == {"code"}


# The map of effects

EFFECTS = pl.DataFrame(
    {
        "case": ["wide", "wide", "narrow", "narrow"],
        "cache": ["cold", "warm", "cold", "warm"],
        "ratio": [0.5, 0.9, 1.1, None],
        "low": [0.4, 0.8, 0.9, None],
        "high": [0.6, 1.0, 1.2, None],
        "verdict": ["faster", "faster", "inconclusive", "not comparable"],
        "server": ["18", "18", "10", "10"],
    }
)


def test_every_ratio_has_a_cell_in_the_order_given_and_both_directions_the_same_span() -> None:
    how = {"x": "cache", "y": "case", "description": "A map."}
    spec = CHARTS.effect_map(EFFECTS, **how).to_dict()
    (data,) = spec["datasets"].values()
    assert [row["text"] for row in data] == ["0.50", "0.90", "(1.10)"]
    assert spec["layer"][0]["encoding"]["y"]["sort"] == ["wide", "narrow"]
    assert spec["description"] == "A map."
    assert spec["layer"][0]["encoding"]["color"]["scale"]["domain"] == [0.5, 1, 2]
    chosen = CHARTS.effect_map(EFFECTS, step="server", **how).to_dict()
    assert chosen["params"][0]["bind"]["options"] == ["18", "10"]
    with pytest.raises(StudyError, match="without rows"):
        CHARTS.effect_map(EFFECTS.filter(pl.col("ratio").is_null()), **how)
