"""Instructions of both sides of a comparison, in its text and its report."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
import pytest

from pgapps.compare import counted as counting
from pgapps.compare.counted import Counted, counted, instructions
from pgapps.compare.design import Side
from pgapps.compare.report import write_report
from pgapps.compare.request import Request
from pgapps.compare.text import as_text
from pgapps.compare.wording import COLUMNS
from pgapps.counting.units import Unit
from pgapps.counting.valgrind import reason_no_valgrind
from pgservers.errors import CannotRun
from tests.compare.test_compare import of_inserts, result, well, words
from tests.servers_at_hand import skip_but_not_in_ci

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

WORK = """
DO $$BEGIN
    FOR i IN 1..current_setting('pgstudies.n')::int * current_setting('planted.work')::int LOOP
        PERFORM md5('x');
    END LOOP;
END$$
"""
PLANTED = Unit("one planted thing", (WORK,), settings={"planted.work": "2"})
IMPOSSIBLE = Unit("one impossible thing", ("SELECT * FROM nothing",))


SLEEP = "SELECT pg_catalog.pg_sleep(100000)"
ENDLESS = Unit("one endless thing", (SLEEP,))


@pytest.fixture(autouse=True)
def cache(run_base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = reason_no_valgrind()
    if reason:
        skip_but_not_in_ci(reason)
    monkeypatch.setenv("PGSTUDIES_CACHE", str(run_base / "counted"))


@pytest.mark.timeout(120)
def test_a_count_that_takes_longer_than_its_time_is_ended() -> None:
    request = Request(Side("embedded"), Side("embedded"), ("made_up",), instructions=True)
    found = counted(request, [ENDLESS, PLANTED], seconds=10)
    assert found.units["reason"].to_list() == ["no time was left, see --minutes"] * 2


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "unit", [ENDLESS, Unit("one unready thing", ("SELECT 1",), prepare=(SLEEP,))]
)
def test_an_interruption_ends_a_count(unit: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        time.sleep(5)  # both backends run by then, or are not begun
        raise KeyboardInterrupt

    monkeypatch.setattr(counting, "wait", interrupted)
    request = Request(Side("embedded"), Side("embedded"), ("made_up",), instructions=True)
    with pytest.raises(KeyboardInterrupt):
        counted(request, [unit])


def test_planted_work_is_found_to_the_digit_with_its_functions(tmp_path: Path) -> None:
    candidate = Side("embedded", {"planted.work": "3"})
    request = Request(Side("embedded"), candidate, ("made_up",), instructions=True)
    found = counted(request, [PLANTED, IMPOSSIBLE])
    planted, impossible = found.units.iter_rows(named=True)
    assert planted["ratio"] == pytest.approx(1.5, rel=0.001)
    assert 'relation "nothing" does not exist' in impossible["reason"]
    assert 0 < found.moved.height <= 10
    assert "_SPI_execute_plan" in set(found.moved["function"])

    compared = replace(result(well()), counted=found)
    assert "Instructions of 1 of 1 units differ: 1.500 to 1.500." in words(compared)
    text = "\n".join(instructions(found))
    assert max(map(len, text.splitlines())) <= COLUMNS
    assert "  one planted thing" in text
    assert f"  {planted['ratio']:.4f}" in text
    assert "changed most: " in text
    assert "not run (one impossible thing): a statement fails" in " ".join(text.split())
    page = write_report(compared, request, text, tmp_path / "report.html").read_text()
    assert "<h2>Instructions</h2>" in page
    assert '"instructions": true' in page


def test_without_valgrind_every_unit_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise CannotRun("there is no valgrind on PATH")

    monkeypatch.setattr("pgapps.counting.counter.valgrind_version", missing)
    request = Request(Side("embedded"), Side("embedded"), ("mvcc_catalog",), instructions=True)
    found = counted(request)
    assert found.units["reason"].to_list() == ["there is no valgrind on PATH"] * 3


def of_units(ratios: Mapping[str, float], changes: Sequence[tuple[str, str, float]]) -> Counted:
    """Units by name, and the functions that changed: unit, function, instructions."""
    rows = [
        {"study": "made_up", "unit": n, "baseline": 1000.0, "candidate": 1000 * r, "ratio": r}
        | {"arm": "", "steps": ["insert"]}
        for n, r in ratios.items()
    ]
    units = pl.DataFrame(rows).with_columns(reason=pl.lit(None, pl.String()))
    moved = pl.DataFrame(changes, schema=["unit", "function", "change"], orient="row")
    return Counted(units, moved)


def test_of_many_units_those_that_changed_most_are_told() -> None:
    ratios = {f"unit {n}": 1 + 0.01 * n if n % 2 else 1 - 0.00001 * n for n in range(40)}
    counts = of_units(ratios, [("unit 39", f"f{n}", 9.0) for n in range(10)])
    text = "\n".join([*instructions(counts), ""])
    told = [name for name in ratios if f"  {name} " in text]
    assert told == [f"unit {number}" for number in range(17, 40, 2)]
    assert "  8 more changed less, 20 by no more than 0.1 %: see the report.\n" in text
    assert "changed most: f0 +9, f1 +9, f2 +9, f3 +9, f4 +9, all others +345\n" in text


def test_a_step_has_the_instructions_and_functions_of_its_work_beside_its_time() -> None:
    counts = of_units({"one": 1.2}, [("one", "scan", 150.0), ("one", "probe", 20.0)])
    found = result(of_inserts(1.1), counted=counts)
    text = as_text(found)
    assert "  insert          1.100 (1.097-1.103)  1.200   500 -> 550 ms\n" in text
    assert "    changed most: scan +150, probe +20, all others +30\n" in text


@pytest.mark.parametrize(("largest", "hinted"), [("(no name) in postgres", 1), ("scan", 0)])
def test_where_code_without_a_name_leads_the_text_says_once_what_to_install(
    largest: str, hinted: int
) -> None:
    functions = {largest: 40.0, "(no name) in libc": 10.0}
    units = {"one": 1.5, "two": 1.5}
    changes = [(unit, name, change) for unit in units for name, change in functions.items()]
    text = "\n".join(instructions(of_units(units, changes)))
    assert "changed most: (no name)" in text or not hinted
    assert text.count("postgresql-N-dbgsym") == hinted
