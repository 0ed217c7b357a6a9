"""Servers that are silent or lie: ``plans`` says so in a sentence, within a limit."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pgapps.plans import empty_copy
from pgapps.plans.queries import queries_in
from pgapps.plans.source import opened
from pgservers.errors import ServerError, StudyError
from tests.silent_servers import endless_rows, lying, serving, silent_at_the_first_query

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.silent_servers import Line


@pytest.fixture(autouse=True)
def little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "2")  # libpq's least


@pytest.mark.parametrize("behaviour", [silent_at_the_first_query, endless_rows])
def test_a_silent_server_is_asked_with_a_limit(behaviour: Callable[[Line], None]) -> None:
    with (
        serving(behaviour) as address,
        pytest.raises(ServerError, match="it does not answer in time"),
        opened(address),
    ):
        pass


@pytest.mark.parametrize(("columns", "values"), [(0, 0), (2, 2), (3, 2)])
def test_a_server_that_lies_ends_in_a_sentence(columns: int, values: int) -> None:
    with (
        serving(lying(columns, values)) as address,
        pytest.raises(StudyError) as ended,
        opened(address),
    ):
        pass
    assert not isinstance(ended.value.__cause__, AssertionError)


def test_the_dump_of_a_plan_names_no_file() -> None:
    assert "--format=custom" in empty_copy._DUMP


def test_a_fifo_among_queries_is_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "q.sql")
    with pytest.raises(StudyError, match="it is no regular file"):
        queries_in(tmp_path)
