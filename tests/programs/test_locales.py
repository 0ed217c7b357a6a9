"""Locales of the C library: the system's, else one made for servers of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pgservers.programs import locales
from pgservers.programs.locales import locale_environment, reason_no_locale
from pgservers.tools import installing
from tests.servers_at_hand import embedded

if TYPE_CHECKING:
    from pathlib import Path

NAME = "en_US.UTF-8"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PGSTUDIES_CACHE", str(tmp_path))
    monkeypatch.setattr(locales, "_on_system", set)
    return tmp_path


@pytest.mark.usefixtures("cache")
def test_a_server_started_afterwards_sorts_by_it(
    run_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSTUDIES_CACHE", str(run_base / "cache"))  # which servers can read
    reason = reason_no_locale(NAME)
    if reason:
        pytest.skip(reason)
    with embedded({"fsync": "off"}) as server, server.connect() as connection:
        connection.execute(f"CREATE COLLATION english (locale = '{NAME}')")
        query = "SELECT 'b' > 'B' COLLATE \"C\", 'a' < 'B' COLLATE english, 'a' < 'B' COLLATE \"C\""
        assert connection.execute(query).fetchone() == (True, True, False)


def test_it_is_made_once(cache: Path) -> None:
    reason = reason_no_locale(NAME)
    if reason:
        pytest.skip(reason)
    made = cache / "locales" / NAME
    before = made.stat().st_mtime_ns
    assert reason_no_locale(NAME) is None
    assert made.stat().st_mtime_ns == before
    assert [entry.name for entry in made.parent.iterdir()] == [NAME]
    assert locale_environment() == {"LOCPATH": str(made.parent)}


def test_one_that_the_system_has_is_not_made_nor_told_of(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert locale_environment() == {}
    monkeypatch.setattr(locales, "_on_system", lambda: {"en_us.utf8"})
    assert reason_no_locale(NAME) is None
    assert locale_environment() == {}
    assert not (cache / "locales").exists()


@pytest.mark.usefixtures("cache")
def test_one_without_a_source_says_what_to_install() -> None:
    assert installing("sources of locales") in str(reason_no_locale("xx_YY.UTF-8"))
