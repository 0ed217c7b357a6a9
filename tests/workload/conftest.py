"""A workload of one table and one script, and an empty database to load one into."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from pgapps.workload.loading import Tables, load
from pgservers.servers.managed import ManagedServer
from pgservers.servers.serve import serve
from pgstudies.measuring.arms import Arm
from pgstudies.measuring.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    Loaded = Callable[[Tables], AbstractContextManager[Trial]]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    home = tmp_path / "shop"
    home.mkdir()
    (home / "schema.sql").write_text("CREATE TABLE t (i int);\n")
    (home / "one.sql").write_text("SELECT 1;\n")
    return home


@pytest.fixture(scope="module")
def guarded(run_base: Path) -> Iterator[ManagedServer]:
    """A server on which workloads are loaded by a role without rights."""
    assert run_base.exists()
    with serve("embedded", settings={"fsync": "off"}, unprivileged=True) as server:
        assert isinstance(server, ManagedServer)
        yield server


@pytest.fixture
def loaded(guarded: ManagedServer) -> Loaded:
    """A trial in a new database, into which tables are loaded."""

    @contextmanager
    def loaded_into(tables: Tables) -> Iterator[Trial]:
        guarded.restore("empty", lambda: None)
        with Trial(guarded, Arm("plain"), block=1) as trial:
            load(trial, tables)
            yield trial

    return loaded_into
