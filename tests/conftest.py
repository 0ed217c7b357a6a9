"""What the tests share: servers, of which one is reached like somebody else's, and a browser."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote

import polars as pl
import psutil
import pytest
from playwright.sync_api import sync_playwright

from pgstudies.errors import CannotRun
from pgstudies.measuring._arms import Arm
from pgstudies.measuring._trial import Trial
from pgstudies.programs.extensions import build
from pgstudies.programs.installations import find_binaries
from pgstudies.records.reading import SAMPLES_SCHEMA
from pgstudies.records.writing import write_whole
from pgstudies.servers._serve import serve
from pgstudies.servers.owned import OwnedServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import psycopg
    from playwright.sync_api import Browser, Page, Request

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

BUILDER = "dba"
LESSER = "lesser"
PASSWORD = "a password: p@ss/w0rd"
SWEPT = {"server": "embedded", "pause_s": 0.0, "twice": True, "sizes": [1, 2], "seed": 1}
"""The parameters of the study ``swept``, but for its blocks."""


def pytest_report_header() -> str:
    binaries = find_binaries("embedded")
    return f"server: PostgreSQL {binaries.version_text} ({binaries.source})"


@pytest.fixture(scope="session", autouse=True)
def run_base() -> Iterator[Path]:
    """A run directory apart from the user's, within reach of the servers' account.

    Not pytest's own: that one is closed to other accounts anew by every pytest that starts.
    """
    base = Path(tempfile.mkdtemp(prefix="pgstudies-tests-"))
    base.chmod(0o711)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGSTUDIES_RUN_DIR", str(base))
        patch.setenv("PGSTUDIES_HOST_LOCK", str(base / "host.lock"))  # no test waits for the user
        yield base
    shutil.rmtree(base, ignore_errors=True)


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records of one test are kept from those of the user."""
    monkeypatch.setenv("PGSTUDIES_RECORDS", str(tmp_path / "records"))
    for name in ("PGSTUDIES_SERVER", "PGSTUDIES_REPLAY", "PGSTUDIES_FRESH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pgstudies.paths.JUDGED", tmp_path / "judged")


def swept_record(
    base: Path,
    host: str,
    *,
    two: float | Sequence[float] = 2.0,
    blocks: int = 6,
    name: str = "",
    **info: Any,
) -> Path:
    """Write a record of the study ``swept``, in which arm one counts 1 and arm two ``two``.

    ``two`` is one number for all blocks or one for each; ``name`` is the directory below ``base``.
    """
    counts = [float(two)] * blocks if isinstance(two, float | int) else list(two)
    rows = [
        (block, position, arm, "", "count", None, "rows", value, "rows", None)
        for block, count in enumerate(counts, start=1)
        for position, (arm, value) in enumerate([("one", 1.0), ("two", count)], start=1)
    ]
    arms = [
        {"name": arm, "description": "", "baseline": arm == "one", "repeats": None}
        | {"server": None, "not_run": None}
        for arm in ("one", "two")
    ]
    known = {
        "format_version": 1,
        "study": "swept",
        "status": "complete",
        "started_at": "2026-11-21T12:00:00+00:00",
        "parameters": SWEPT | {"blocks": len(counts)},
        "arms": arms,
        "blocks": len(counts),
        "gate": [],
        "left_out": [],
        "timeline": [],
        "server": {"version_text": "18.6"},
        "host": {"hostname": host},
    }
    path = base / (name or host)
    samples = pl.DataFrame(rows, schema=SAMPLES_SCHEMA, orient="row")
    write_whole(path, known | info, samples)
    return path


def embedded(settings: dict[str, str]) -> OwnedServer:
    return OwnedServer(find_binaries("embedded"), spec="embedded", settings=settings)


@pytest.fixture(scope="session")
def owned(run_base: Path) -> Iterator[OwnedServer]:
    """An embedded server that several tests share; each starts from a state of its own."""
    assert run_base.exists()
    with embedded({"fsync": "off"}) as server:
        yield server


@contextmanager
def extended(name: str, run_base: Path) -> Iterator[OwnedServer]:
    """An embedded server with one of our extensions, built in a cache of the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGSTUDIES_CACHE", str(run_base / "cache"))
        try:
            built = build(name, find_binaries("embedded"))
        except CannotRun as reason:
            pytest.skip(str(reason))
        with embedded({"fsync": "off", **built.settings}) as server:
            with server.connect() as connection:
                connection.execute(f"CREATE EXTENSION {name}")
            yield server


@pytest.fixture(scope="session")
def stranger(run_base: Path) -> Iterator[OwnedServer]:
    """A server that plays somebody else's: passwords asked for, two roles, a user's own table."""
    assert run_base.exists()
    with embedded({"fsync": "off", "password_encryption": "scram-sha-256"}) as server:
        with server.connect() as c:
            c.execute(f"CREATE ROLE {BUILDER} LOGIN CREATEDB PASSWORD '{PASSWORD}'")
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
def dsn(request: pytest.FixtureRequest, stranger: OwnedServer) -> str:
    """The DSN of a role that is not a superuser, with and without the right to make databases."""
    return dsn_of(stranger, request.param)


@pytest.fixture
def elsewhere(stranger: OwnedServer) -> Iterator[Trial]:
    """A trial on a server that is not ours, with the role that may make databases."""
    with (
        serve(dsn_of(stranger, BUILDER)) as server,
        Trial(server, Arm("plain"), block=1, position=1) as trial,
    ):
        yield trial


def dsn_of(server: OwnedServer, role: str, password: str = PASSWORD) -> str:
    host = quote(server.environment()["PGHOST"], safe="")
    return f"postgresql://{role}:{quote(password, safe='')}@{host}:5432/pgstudies"


def make_table(connection: psycopg.Connection[Any], name: str, rows: int) -> None:
    """A frozen table of one row to a page, keys from 1."""
    connection.execute(f"CREATE TABLE {name}(i int, d text)")
    connection.execute(f"ALTER TABLE {name} ALTER d SET STORAGE PLAIN")
    connection.execute(
        f"INSERT INTO {name} SELECT i, repeat('x', 7000) FROM generate_series(1, {rows}) i"
    )
    connection.execute(f"VACUUM (FREEZE, ANALYZE) {name}")


def wait_until_dead(processes: Sequence[psutil.Process], timeout_s: float = 20) -> bool:
    """Whether all of them end in time; one that nobody has waited for yet is dead, too."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if not any(map(is_alive, processes)):
            return True
        time.sleep(0.02)
    return False


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def skip_but_not_in_ci(reason: str) -> NoReturn:
    """Skip a test for what is missing here; in CI nothing may be missing."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        skip_but_not_in_ci(
            "chromium is not installed: apt-get install --no-install-recommends chromium"
        )
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
