"""Settings: spellings that mean the same, and values that survive the way to the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pgservers.servers.settings import merged, same_value, startup_options

if TYPE_CHECKING:
    from pgservers.servers.managed import ManagedServer


@pytest.mark.parametrize(
    ("wanted", "actual", "vartype", "unit", "same"),
    [
        ("80MB", "10240", "integer", "8kB", True),
        ("10240", "10240", "integer", "8kB", True),
        ("81920kB", "10240", "integer", "8kB", True),
        ("1GB", "64", "integer", "16MB", True),
        ("5min", "300", "integer", "s", True),
        ("0.5s", "500", "integer", "ms", True),
        ("1.0", "1", "real", None, True),
        ("1e3", "1000", "real", None, True),
        ("TRUE", "on", "bool", None, True),
        ("0", "off", "bool", None, True),
        ("Replica", "replica", "enum", None, True),
        ("C", "C", "string", None, True),
        ("80MB", "10241", "integer", "8kB", False),
        ("80", "10240", "integer", "8kB", False),
        ("on", "off", "bool", None, False),
        ("c", "C", "string", None, False),
        ("many", "1", "integer", None, False),
    ],
)
def test_spellings_of_one_value(
    wanted: str, actual: str, vartype: str, unit: str | None, same: bool
) -> None:
    assert same_value(wanted, actual, vartype, unit) is same


def test_the_later_of_two_wins_however_it_is_written() -> None:
    found = merged({"DateStyle": "ISO", "jit": "on"}, {"JIT": "off"})
    assert found == {"datestyle": "ISO", "jit": "off"}


@pytest.mark.parametrize(
    "value", ["plain", "two words", "back\\slash", "a 'quote'", "", "tab\t\\ "]
)
def test_a_value_survives_startup_options(managed: ManagedServer, value: str) -> None:
    with managed.connect(options=startup_options({"my.value": value})) as c:
        assert c.execute("SHOW my.value").fetchone() == (value,)
