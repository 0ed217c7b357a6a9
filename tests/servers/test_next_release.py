"""A release newer than those that are listed: what it needs before a jar of it exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgapps.counting.counter import Counter
from pgapps.counting.frames import EXACT, deviation
from pgapps.counting.units import Unit
from pgapps.counting.valgrind import reason_no_valgrind
from pgapps.doctor.checks import examine_extensions
from pgservers.errors import CannotRun
from pgservers.order import version_key
from pgservers.programs.releases import packaged, releases
from pgservers.programs.versions import parse_version
from pgservers.servers.managed import ManagedServer
from pgservers.servers.serve import serve
from pgstudies.measuring.requirements import reason_unmet

NEWEST = int(releases()[-1].name)
NEXT = next((str(n) for n in range(NEWEST + 3, NEWEST, -1) if packaged(str(n))), "")

pytestmark = pytest.mark.skipif(not NEXT, reason=f"no server newer than {NEWEST} is installed")


def test_its_name_means_the_installed_package_and_its_version_is_read() -> None:
    with serve(NEXT) as server:
        assert server.binaries
        assert server.binaries.source == f"installed in {packaged(NEXT)}"
        word = server.version_text.removeprefix("PostgreSQL ").split()[0]
        assert server.version // 10000 == parse_version(word) // 10000 == int(NEXT)
        assert version_key(str(NEWEST)) < version_key(word)


def test_every_extension_is_built_accepted_and_passes_its_self_test() -> None:
    with serve(NEXT) as server:
        checks = list(examine_extensions(server))
    assert [check.line for check in checks if not check.ok] == []
    assert checks[-1].name == "self-test"


def test_it_has_the_settings_that_studies_require_by_whatever_name() -> None:
    with serve(NEXT) as server:
        assert isinstance(server, ManagedServer)
        assert reason_unmet("io_method", server) is None
        server.restart({"io_method": "worker", "io_workers": "2"})
        with server.connect() as connection:
            names = "SELECT name, setting FROM pg_settings WHERE name ~ '^io_(max_)?workers$'"
            assert [value for _, value in connection.execute(names)] == ["2"]


def test_io_uring_reads_or_why_it_does_not_is_said() -> None:
    with serve(NEXT) as server:
        assert isinstance(server, ManagedServer)
        with server.connect() as connection:
            offered = connection.execute(
                "SELECT 'io_uring' = ANY (enumvals) FROM pg_settings WHERE name = 'io_method'"
            ).fetchone()
        assert offered is not None
        switch = Path("/proc/sys/kernel/io_uring_disabled")
        if not offered[0]:
            why = "Available values"
        elif switch.exists() and switch.read_text().strip() != "0":
            why = "could not setup io_uring queue"
        else:
            server.restart({"io_method": "io_uring"})
            with server.connect() as connection:
                assert connection.execute("SHOW io_method").fetchone() == ("io_uring",)
            return
        with pytest.raises(CannotRun, match=f"io_method=io_uring: .*{why}"):
            server.restart({"io_method": "io_uring"})


def test_two_counts_of_little_work_agree() -> None:
    """What it does at its start by the clock would be more than these twenty."""
    reason = reason_no_valgrind()
    if reason:
        pytest.skip(reason)
    n = "current_setting('pgstudies.n')::int"
    loop = f"DO $$BEGIN FOR i IN 1..{n} LOOP PERFORM md5('x'); END LOOP; END$$"
    with Counter(NEXT) as counter:
        found = counter.count(Unit("one text hashed", (loop,), sizes=(20, 40)), fresh=True)
    assert deviation(found) < EXACT
