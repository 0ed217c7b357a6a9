"""Commands that are killed after a finished block: nothing is lost, and nothing is left."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest

from tests.conftest import own_base
from tests.kills import faults, kills

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def base() -> Iterator[Path]:
    """Within reach of the servers' account."""
    with own_base(None) as directory:
        yield directory


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["run", "sweep"])
def test_a_command_that_is_killed_twice_loses_no_block_and_leaves_nothing(
    command: str, base: Path
) -> None:
    done = kills(command, 2, base=base, blocks=6, in_a_row=2)
    assert all(one.before for one in done)
    assert [asdict(one) for one in done if faults(one)] == []
