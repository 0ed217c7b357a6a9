"""Settings: spellings that mean the same, and values that survive the way to the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pgservers.servers.settings import merged, same_value, startup_options

if TYPE_CHECKING:
    from pgservers.servers.managed import ManagedServer


@pytest.mark.parametrize(
    ("wanted", "actual", "vartype", "unit"),
    [
        ("80MB", "10240", "integer", "8kB"),
        ("10240", "10240", "integer", "8kB"),
        ("81920kB", "10240", "integer", "8kB"),
        ("1GB", "64", "integer", "16MB"),
        ("5min", "300", "integer", "s"),
        ("0.5s", "500", "integer", "ms"),
        ("1.0", "1", "real", None),
        ("1e3", "1000", "real", None),
        ("TRUE", "on", "bool", None),
        ("0", "off", "bool", None),
        ("Replica", "replica", "enum", None),
        ("C", "C", "string", None),
    ],
)
def test_spellings_of_one_value(wanted: str, actual: str, vartype: str, unit: str | None) -> None:
    assert same_value(wanted, actual, vartype, unit)


@pytest.mark.parametrize(
    ("wanted", "actual", "vartype", "unit"),
    [
        ("80MB", "10241", "integer", "8kB"),
        ("80", "10240", "integer", "8kB"),
        ("on", "off", "bool", None),
        ("c", "C", "string", None),
        ("many", "1", "integer", None),
    ],
)
def test_different_values(wanted: str, actual: str, vartype: str, unit: str | None) -> None:
    assert not same_value(wanted, actual, vartype, unit)


def test_the_later_of_two_wins_however_it_is_written() -> None:
    assert merged({"DateStyle": "ISO", "jit": "on"}, {"JIT": "off"}) == {
        "datestyle": "ISO",
        "jit": "off",
    }


@pytest.mark.parametrize(
    "value", ["plain", "two words", "back\\slash", "a 'quote'", "", "tab\t\\ "]
)
def test_a_value_survives_startup_options(managed: ManagedServer, value: str) -> None:
    with managed.connect(options=startup_options({"my.value": value})) as c:
        assert c.execute("SHOW my.value").fetchone() == (value,)
