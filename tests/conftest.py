"""What the tests share: servers, of which one is reached like somebody else's, and a browser."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import sync_playwright
from xdist.scheduler import LoadScopeScheduling

from pgservers.files import spread
from pgservers.programs.installations import find_binaries
from pgservers.servers.serve import serve
from pgservers.tools import TOOLS, installing
from pgstudies.measuring.arms import Arm
from pgstudies.measuring.trial import Trial
from tests.servers_at_hand import (
    BUILDER,
    LESSER,
    MAKER,
    PASSWORD,
    dsn_of,
    embedded,
    skip_but_not_in_ci,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page, Request

    from pgservers.servers.managed import ManagedServer

CHROMIUM = next(tool.path for tool in TOOLS if tool.name == "chromium")

TOGETHER = {
    "tests/book/test_built.py": "book",
    "tests/book/test_pages.py": "book",
    "tests/compare/test_servers.py": "compare",
    "tests/counting/test_counter.py": "counter",
    "tests/fleet/test_sweep.py": "sweep",
    "tests/programs/test_cluster_heap.py": "cluster_heap",
    "tests/programs/test_hash_2008.py": "hash_2008",
    "tests/programs/test_tidbench.py": "tidbench",
}
"""Files whose tests share what was made once, and so run on one worker, in their order."""


class Distribution(LoadScopeScheduling):  # type: ignore[misc]
    """Every test on whichever worker is free, but for those of ``TOGETHER``.

    xdist's own mark for this, ``xdist_group``, does nothing, and does not say so, from pytest 9.2
    on: https://github.com/pytest-dev/pytest-xdist/issues/1386.
    """

    def _split_scope(self, nodeid: str) -> str:
        return TOGETHER.get(nodeid.partition("::")[0], nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Distribution | None:
    return Distribution(config, log) if config.getvalue("dist") == "loadscope" else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--book",
        action="store_true",
        help="replay the reference records and build the book, of which the pages are tested",
    )


NEEDS_ROOT = "needs root: `make test-root`"

ALLOWED_IN_CI = re.compile(
    rf"{re.escape(NEEDS_ROOT)}|the processor's counters|there is one core|no server newer"
)
"""What a test may be skipped for where everything is installed that README asks for."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip(NEEDS_ROOT)


def skipped(reporter: pytest.TerminalReporter) -> Counter[str]:
    """How many tests were skipped, by cause; those that differ in a number alone are one."""
    causes: Counter[str] = Counter()
    for report in reporter.stats.get("skipped", []):
        reason = str(report.longrepr[2]).removeprefix("Skipped: ")
        causes[re.sub(r"\b\d[\w.]*", "N", reason)] += 1
    return causes


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for cause, tests in sorted(skipped(terminalreporter).items()):
        more = "" if is_allowed(cause) else ", which is an error in CI"
        terminalreporter.write_line(f"skipped {tests}: {cause}{more}")


def is_allowed(cause: str) -> bool:
    return os.environ.get("CI") != "true" or ALLOWED_IN_CI.match(cause) is not None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI nothing is skipped that README promises."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or session.exitstatus != 0:
        return
    if not all(map(is_allowed, skipped(reporter))):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_report_header() -> str:
    binaries = find_binaries("embedded")
    return f"server: PostgreSQL {binaries.version_text} ({binaries.source})"


@pytest.fixture(scope="session", autouse=True)
def run_base() -> Iterator[Path]:
    """A run directory apart from the user's, within reach of the servers' account.

    In memory where there is enough, as it takes longer to remove a server's files from a disk than
    to use them.  Not pytest's own directory: that one is closed to other accounts anew by every
    pytest that starts.
    """
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 4 << 30
    with own_base(memory if roomy else None) as base, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGSTUDIES_RUN_DIR", str(base))
        patch.setenv("PGSTUDIES_HOST_LOCK", str(base / "host.lock"))  # no test waits for the user
        yield base


@contextmanager
def own_base(place: Path | None) -> Iterator[Path]:
    base = Path(tempfile.mkdtemp(prefix="pgstudies-tests-", dir=place))
    base.chmod(0o711)
    spread(base)
    yield base
    shutil.rmtree(base, ignore_errors=True)


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run directory from which a server's files can be read from a device."""
    with own_base(None) as base:
        monkeypatch.setenv("PGSTUDIES_RUN_DIR", str(base))
        yield base


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records of one test are kept from those of the user."""
    monkeypatch.setenv("PGSTUDIES_RECORDS", str(tmp_path / "records"))
    for name in ("PGSTUDIES_SERVER", "PGSTUDIES_REPLAY", "PGSTUDIES_FRESH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pgservers.paths.JUDGED", tmp_path / "judged")


@pytest.fixture(scope="session")
def managed(run_base: Path) -> Iterator[ManagedServer]:
    """An embedded server that several tests share; each starts from a state of its own."""
    assert run_base.exists()
    with embedded({"fsync": "off"}) as server:
        yield server


@pytest.fixture(scope="session")
def managed_on_disk() -> Iterator[ManagedServer]:
    """The same with its files on a disk, for tests of what is read from a device."""
    with own_base(None) as base:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PGSTUDIES_RUN_DIR", str(base))
            server = embedded({"fsync": "off"})
        with server:
            yield server


@pytest.fixture(scope="session")
def stranger(run_base: Path) -> Iterator[ManagedServer]:
    """A server that plays somebody else's: passwords asked for, three roles, a user's own table."""
    assert run_base.exists()
    with embedded({"fsync": "off", "password_encryption": "scram-sha-256"}) as server:
        with server.connect() as c:
            c.execute(f"CREATE ROLE {BUILDER} LOGIN CREATEDB PASSWORD '{PASSWORD}'")
            c.execute(f"CREATE ROLE {MAKER} LOGIN CREATEDB CREATEROLE PASSWORD '{PASSWORD}'")
            c.execute(f"CREATE ROLE {LESSER} LOGIN PASSWORD '{PASSWORD}'")
            c.execute(f"GRANT CREATE ON DATABASE pgstudies TO {LESSER}")
            c.execute(
                "CREATE TABLE public.testtab AS SELECT i AS mine FROM generate_series(1, 99) i"
            )
            c.execute("GRANT SELECT, INSERT, DELETE, TRUNCATE ON public.testtab TO PUBLIC")
            found = c.execute("SHOW hba_file").fetchone()
            assert found
            ours = Path(found[0]).read_text()
            Path(found[0]).write_text(f"{ours}local all all scram-sha-256\n")
            c.execute("SELECT pg_reload_conf()")
        yield server


@pytest.fixture(params=[BUILDER, LESSER])
def dsn(request: pytest.FixtureRequest, stranger: ManagedServer) -> str:
    """The DSN of a role that is not a superuser, with and without the right to make databases."""
    return dsn_of(stranger, request.param)


@pytest.fixture
def elsewhere(stranger: ManagedServer) -> Iterator[Trial]:
    """A trial on a server that is not ours, with the role that may make databases."""
    with (
        serve(dsn_of(stranger, BUILDER)) as server,
        Trial(server, Arm("plain"), block=1) as trial,
    ):
        yield trial


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        skip_but_not_in_ci(f"chromium is not installed: {installing('chromium')}")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def options() -> dict[str, object]:
    """What the page's context is made with; ``parametrize`` it to change that."""
    return {}


@pytest.fixture
def page(browser: Browser, options: dict[str, object]) -> Iterator[Page]:
    """A page that must neither complain nor ask for anything that is not on this disk."""
    context = browser.new_context(**options)  # type: ignore[arg-type]
    page = context.new_page()
    problems: list[str] = []

    def note(request: Request) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            problems.append(f"asks for {request.url}")

    page.on("request", note)
    if options.get("java_script_enabled", True):  # else the scripts, which it leaves, "fail"
        page.on("requestfailed", lambda request: problems.append(f"cannot load {request.url}"))
    page.on("pageerror", lambda error: problems.append(f"script: {error}"))
    page.on(
        "console", lambda m: problems.append(m.text) if m.type in {"error", "warning"} else None
    )
    yield page
    context.close()
    assert problems == []
