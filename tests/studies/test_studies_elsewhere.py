"""Every study finishes on a server of others, without what cannot be had there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pgapps.doctor.doctor import foreseen
from pgapps.execution.plan import studies
from pgapps.execution.run import run_study
from pgservers.errors import SpaceError, StudyError
from pgservers.paths import BOOK, records_dir
from pgservers.servers.instance import SUPERUSER
from pgservers.servers.serve import serve
from pgstudies.analysis.agreement import NOT_JUDGED, NOT_TESTED
from pgstudies.analysis.claims import origins
from pgstudies.parameters import declared
from pgstudies.rooms import find_room
from tests.servers_at_hand import BUILDER, LESSER, MAKER, dsn_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pgapps.execution.run import Executed
    from pgservers.servers.managed import ManagedServer

SMALL = {
    "blocks": 1,
    "buffers_mb": 1,
    "at_once": 10,
    "dead": [2],
    "iterations": 3,
    "legs": 2,
    "memory_kb": [65536],
    "objects": 20,
    "prepared": [3],
    "offsets": [0.0],
    "per_turn": 1_000,
    "releases": [],
    "rows": 20_000,
    "scans": [2],
    "selects": 2,
    "sessions": [3, 9],
    "starts": 10,
    "statements": 20,
    "table_mb": 40,
    "transactions": 10,
    "turns": 2,
    "queries": 20,
    "widths": [7],
}
"""Parameters that make a run small; a study is given those that it has."""

LEFT_OUT = {
    "cluster_order": "no extension is built for an external server",
    "hash_index": "the files of an external server cannot be reached",
    "dead_tuples": "no extension is built for an external server",
    "sync_scans": "an external server cannot be given a slow disk or a small memory",
    "mvcc_catalog": "the files of an external server cannot be reached",
    "instrument": "the files of an external server cannot be reached",
    "releases": "a server that is already running cannot be run under valgrind",
}
"""What each page must say about what cannot be had on an external server."""

NOT_IN_A_SCHEMA = ["mvcc_catalog"]
"""Studies that need a database of their own, and say so if they cannot have one."""

NEEDS_A_RESTART = {"io_method": "setting io_method needs a restart of the server"}
"""Studies whose baseline has a setting that needs a restart, and the reason that they give."""

RUNS_WHAT_OTHERS_WROTE = {"workload"}
"""Studies that want a role with CREATEDB and CREATEROLE."""

pytestmark = pytest.mark.usefixtures("private")

NOT_ASKED_FOR = {"no release before 17 was measured", "release 9.3 was not run"}
"""Why claims are not judged by a run as small as these, whatever the server."""


def one_of(names: Sequence[str]) -> list[Any]:
    """The studies, of which ``make test`` runs one: each step of any shows what a role may do."""
    thorough = pytest.mark.thorough
    return [n if n == "cluster_order" else pytest.param(n, marks=thorough) for n in names]


def small_run(study: str, dsn: str, directory: Path) -> Executed:
    has = {parameter.name for parameter in declared(find_room(study).notebook)}
    small = {name: value for name, value in SMALL.items() if name in has}
    return run_study(study, server=dsn, parameters=small, output=directory / "page.ipynb")


@pytest.fixture
def log(stranger: ManagedServer) -> Callable[[], str]:
    """What the server has logged since the test began."""
    file = Path(stranger.data_directory).parent / "log"
    before = file.stat().st_size
    return lambda: file.read_bytes()[before:].decode(errors="replace")


@pytest.mark.parametrize("study", one_of(studies()))
def test_a_role_without_special_rights_gets_a_page(
    study: str, dsn: str, log: Callable[[], str], tmp_path: Path
) -> None:
    gets_a_page(study, dsn, tmp_path)
    assert "ERROR: " not in log()


def gets_a_page(study: str, dsn: str, tmp_path: Path) -> None:
    if study in NOT_IN_A_SCHEMA and f"//{LESSER}:" in dsn:
        with pytest.raises(StudyError, match="the role may not create databases"):
            small_run(study, dsn, tmp_path)
        return
    if study in RUNS_WHAT_OTHERS_WROTE:
        with pytest.raises(StudyError, match=r"may not make both on .*: connect as a role"):
            small_run(study, dsn, tmp_path)
        dsn = re.sub(f"//({BUILDER}|{LESSER}):", f"//{MAKER}:", dsn)
    if study in NEEDS_A_RESTART:
        with pytest.raises(StudyError, match=NEEDS_A_RESTART[study]):
            small_run(study, dsn, tmp_path)
        with serve(dsn) as server:
            assert all(reason for _, reason in foreseen(study, server))
        return
    done = small_run(study, dsn, tmp_path)
    text = done.notebook.read_text(encoding="utf-8")
    assert LEFT_OUT.get(study, "") in text
    assert "w0rd" not in text
    assert ": NO\\n" not in text
    if study in origins():
        assert done.verdicts is not None
        verdicts = dict(done.verdicts.select("claim", "verdict").iter_rows())
        require_what_was_foreseen(study, dsn, verdicts)


def require_what_was_foreseen(study: str, dsn: str, verdicts: dict[str, str]) -> None:
    """The doctor's N of M: the claims it says can be judged are, the others are not, and why."""
    with serve(dsn) as server:
        found = foreseen(study, server)
    assert [claim.id for claim, _ in found] == list(verdicts)
    for claim, reason in found:
        kind, _, why = verdicts[claim.id].partition(": ")
        if why in NOT_ASKED_FOR or why.startswith("of a warm turn only"):
            continue  # not the server's doing: the run is too small, or too short to warm up
        assert (kind in {NOT_TESTED, NOT_JUDGED}) is (reason is not None), (claim.id, why)
        assert reason is None or claim.size or why == reason


HARMLESS = re.compile(
    r"(SELECT|WITH|SHOW|SET|RESET|BEGIN|COMMIT|ROLLBACK|CHECKPOINT|DEALLOCATE)\b"
    r"|(CREATE|DROP|ALTER|COMMENT ON|REVOKE CONNECT, TEMPORARY ON) DATABASE (IF EXISTS )?"
    r"\"pgstudies_",
    re.IGNORECASE,
)
"""What a run may send while it is in a database that is not its own."""

FORBIDDEN = re.compile(
    r"\bPROGRAM\b|ALTER SYSTEM|(CREATE|ALTER|DROP) (ROLE|USER|TABLESPACE|SERVER)|pg_reload_conf"
    r"|pg_(read|write|stat)_(binary_)?file|lo_export|evict_all"
    # Looked for, it may be called for our databases and for statements that name them.
    r"|pg_stat_\w*reset(?!'|\"\((0::oid, oid|userid)::oid)",
    re.IGNORECASE,
)
"""What a run may send nowhere."""


@pytest.mark.parametrize(
    "study", one_of([s for s in studies() if s not in {*NEEDS_A_RESTART, *RUNS_WHAT_OTHERS_WROTE}])
)
def test_a_superusers_run_stays_in_its_own_database(
    study: str, stranger: ManagedServer, log: Callable[[], str], tmp_path: Path
) -> None:
    """Every statement is in the server's log."""
    reset, reload = b"ALTER SYSTEM RESET ALL", b"SELECT pg_reload_conf()"
    with stranger.connect() as connection:
        connection.execute(b"ALTER SYSTEM SET log_statement = 'all'")
        connection.execute(b"ALTER SYSTEM SET log_line_prefix = '<%d> '")
        connection.execute(reload)
    try:
        small_run(study, dsn_of(stranger, SUPERUSER), tmp_path)
    finally:
        with stranger.connect() as connection:
            connection.execute(reset)
            connection.execute(reload)
    sent = re.findall(r"(?m)^<(\w*)> LOG:  (?:statement|execute [^:]*): (.*(?:\n\t.*)*)", log())
    assert "ERROR: " not in log()
    ours = [(base, text) for base, text in sent if text.encode() not in {reset, reload}]
    assert any(base.startswith("pgstudies_") for base, _ in ours)
    outside = [text for base, text in ours if not base.startswith("pgstudies_")]
    assert [text for text in outside if not HARMLESS.match(text.strip())] == []
    assert [text for _, text in ours if FORBIDDEN.search(text)] == []
    page = (BOOK / "on-your-server.md").read_text(encoding="utf-8")
    assert {kind for kind in map(kind_of, ours) if f"`{kind}" not in page} == set()


@pytest.mark.parametrize("study", studies())
def test_no_study_has_a_statement_that_may_be_sent_nowhere(study: str) -> None:
    """This includes steps and arms that no test runs."""
    code = find_room(study).code
    assert [found[0] for text in code for found in FORBIDDEN.finditer(text)] == []


EVERYTHING = re.compile(
    r'(execute|timed)\(("\w+", )?"(VACUUM|ANALYZE|CLUSTER|REINDEX)'
    r'( \([^)]*\)| FULL| FREEZE| VERBOSE| ANALYZE)*"'
)
"""Statements that work on all tables of a database, also on its users' where ours is a schema."""


@pytest.mark.parametrize("study", [s for s in studies() if s not in NEEDS_A_RESTART])
def test_a_study_cleans_no_tables_but_its_own(study: str) -> None:
    assert [found[0] for text in find_room(study).code for found in EVERYTHING.finditer(text)] == []


def kind_of(sent: tuple[str, str]) -> str:
    """The first words of a statement, as the page on what is sent has them."""
    first, *more = sent[1].upper().replace(";", " ").split()
    return f"{first} {more[0]}" if first in {"CREATE", "ALTER", "DROP", "COMMENT"} else first


def test_tables_that_the_disk_cannot_take_are_refused_before_they_are_loaded() -> None:
    too_much = {"rows": 100_000_000, "widths": [2_000], "blocks": 1}
    with pytest.raises(SpaceError, match=r"needs [\d.]+ [GT]B for the study's tables and has"):
        run_study("hash_index", server="embedded", parameters=too_much)
    assert list((records_dir() / "hash_index").iterdir()) == []


@pytest.mark.parametrize(
    ("study", "parameters", "said"),
    [
        ("mvcc_catalog", {"releases": ["8.4"]}, r"releases must be 9\.3, 9\.6, .* and 8\.4 is not"),
        (
            "sync_scans",
            {"table_mb": 4, "buffers_mb": 16},
            "4 MB is not scanned in step with 16 MB of shared buffers: .* more than 4",
        ),
        ("sync_scans", {"table_mb": 90_000_000}, r"needs [\d.]+ [GT]B for four copies"),
    ],
)
def test_what_cannot_be_had_is_refused(
    study: str, parameters: dict[str, object], said: str
) -> None:
    with pytest.raises(StudyError, match=said):
        run_study(study, server="embedded", parameters={"blocks": 1, **parameters})


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("study", "parameters", "said"),
    [
        (
            "mvcc_catalog",
            {"sessions": [5000], "releases": []},
            r"5000 sessions do not fit: .* has \d+",
        ),
        (
            "sync_scans",
            {"scans": [500], "table_mb": 40, "buffers_mb": 1},
            "500 sessions do not fit: the server has",
        ),
        ("sync_scans", {"table_mb": 8, "buffers_mb": 1}, "it takes a table of 33 MB"),
    ],
)
def test_what_a_server_of_others_cannot_have_is_refused_with_what_it_takes(
    study: str, parameters: dict[str, object], said: str, stranger: ManagedServer
) -> None:
    server = dsn_of(stranger, BUILDER)
    with pytest.raises(StudyError, match=said):
        run_study(study, server=server, parameters={"blocks": 1, **parameters})
