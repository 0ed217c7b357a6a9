"""What a file of settings or a stranger's report may ask for, and what it may not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import to_builtins
from msgspec.structs import replace

from pgapps.compare.command import _for_others
from pgapps.compare.design import Comparison, Side
from pgapps.compare.report import request_in
from pgapps.compare.request import (
    Request,
    check_settings,
    reason_too_old,
    share_cores_alike,
    side,
    typed,
    without_rejected,
)
from pgapps.execution.plan import _still_taken, plan
from pgservers.errors import StudyError
from pgservers.programs import installations
from pgservers.programs.installations import find_binaries, optimization, require_alike_builds
from pgservers.servers.serve import serve
from pgservers.servers.settings import read_settings, refused, require_wellformed
from pgstudies.rooms import find_room

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pgservers.servers.managed import ManagedServer

BUILDING = ("hash_index", "sync_scans", "dead_tuples", "mvcc_catalog")

DANGEROUS = [
    *("archive_command", "restore_command", "archive_cleanup_command", "recovery_end_command"),
    *("ssl_passphrase_command", "archive_library", "shared_preload_libraries"),
    *("session_preload_libraries", "local_preload_libraries", "dynamic_library_path"),
    *("extension_control_path", "jit_provider", "oauth_validator_libraries", "external_pid_file"),
    *("log_directory", "log_filename", "data_directory", "hba_file", "hosts_file"),
    *("ident_file", "config_file"),
    *("ssl_ca_file", "ssl_key_file", "ssl_crl_dir", "krb_server_keyfile", "stats_temp_directory"),
    *("unix_socket_directories", "unix_socket_group", "unix_socket_permissions", "include"),
    *("include_dir", "include_if_exists", "temp_tablespaces", "default_tablespace"),
    *("listen_addresses", "port", "primary_conninfo", "promote_trigger_file", "bonjour"),
    *("logging_collector", "log_destination", "plperl.on_init", "plv8.start_proc"),
    *("basebackup_to_shell.command", "Archive_Command"),
    *("zero_damaged_pages", "Ignore_Checksum_Failure", "allow_system_table_mods"),
]


def refusal(act: Callable[[], object]) -> str:
    """The sentence in which it was refused, if it was; any other error fails the test."""
    try:
        act()
    except StudyError as error:
        return str(error)
    return ""


def test_parameters_have_the_types_that_records_have() -> None:
    """As text they equal no record's, and a comparison looks for its own by them."""
    given = {"rows": "20_000", "variants": "cold,trigger", "direct_io": "true"}
    request = typed(replace(WELL, parameters=given))
    taken = {"rows": 20_000, "variants": ["cold", "trigger"], "direct_io": True}
    assert request.parameters == taken
    assert Request.from_dict(json.loads(json.dumps(to_builtins(request)))) == request
    for wrong, said in (({"rows": "many"}, "whole number"), ({"no": "1"}, "no parameter no")):
        assert said in refusal(lambda wrong=wrong: typed(replace(WELL, parameters=wrong)))  # type: ignore[misc]


WELL = Request(Side("embedded"), Side("17", {"jit": "on"}), ("cluster_order",), blocks=7)


def report(place: Path, values: object) -> Path:
    text = json.dumps(values).replace("</", "<\\/")
    file = place / "report.html"
    file.write_text(f'<script type="application/json" id="pgstudies-comparison">{text}</script>')
    return file


def asked(**changed: Any) -> dict[str, Any]:
    return {**to_builtins(WELL), **changed}


@pytest.mark.parametrize("name", DANGEROUS)
def test_no_report_sets_what_reaches_out_of_a_server(name: str, tmp_path: Path) -> None:
    values = asked(candidate={"server": "embedded", "settings": {name: "x"}})
    with pytest.raises(StudyError, match=f"candidate sets {name.lower()}, which a report may not"):
        request_in(report(tmp_path, values))


def test_what_a_server_does_within_itself_may_be_set(managed: ManagedServer) -> None:
    harmless = ["work_mem", "search_path", "jit", "max_files_per_process", "log_line_prefix"]
    harmless += ["temp_file_limit", "file_copy_method", "io_method", "planted.work"]
    harmless += ["log_temp_files"]
    assert refused(harmless) == []
    query = "SELECT name FROM pg_settings WHERE name ~ '(command|library|libraries|directory)$'"
    with managed.connect() as c:
        names = [name for (name,) in c.execute(query).fetchall()]
    assert sorted(refused(names)) == sorted(names)


def test_a_file_of_settings_is_read_as_postgresql_conf(tmp_path: Path) -> None:
    file = tmp_path / "my.conf"
    file.write_text("# mine\nwork_mem = 64MB  # more\n\nJIT on\nsearch_path = '\"$user\", it''s'\n")
    assert read_settings(file) == {"work_mem": "64MB", "jit": "on", "search_path": '"$user", it\'s'}
    for text in ("work_mem\n", "datestyle = iso, mdy\n", "log_line_prefix = 'open\n"):
        file.write_text(text)
        with pytest.raises(StudyError, match=r"my\.conf, line 1: write settings"):
            read_settings(file)
    file.write_text("work_mem = 'a\x01b'\n")
    with pytest.raises(StudyError, match="must be one line"):
        read_settings(file)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("x = 4MB# 4 would do", "4MB"),
        ("x=1.1\t\t\t# (change requires restart)", "1.1"),
        ("x '%m [%p] %q%u@%d '   # special values:", "%m [%p] %q%u@%d "),
        ("x = 'it\\'s'", "it's"),
        ("x = 'it''s # no comment'", "it's # no comment"),
        ("x = 'a\\\\b\\101\\8'", "a\\bA8"),
        ("x = ''", ""),
    ],
)
def test_a_value_is_read_as_the_server_reads_it(tmp_path: Path, line: str, value: str) -> None:
    file = tmp_path / "my.conf"
    file.write_text(f"{line}\n")
    assert read_settings(file) == {"x": value}


def test_a_side_is_a_server_a_file_or_both(tmp_path: Path) -> None:
    file = tmp_path / "my.conf"
    file.write_text("jit = on\n")
    assert side("17", otherwise="embedded") == Side("17")
    assert side(str(file), otherwise="17") == Side("17", {"jit": "on"})
    assert side(f"16+{file}", otherwise="17") == Side("16", {"jit": "on"})
    assert side(str(tmp_path), otherwise="17") == Side(str(tmp_path))
    with pytest.raises(StudyError, match=r"There is no file other\.conf of settings or SQL"):
        side("16+other.conf", otherwise="17")
    with pytest.raises(StudyError, match="there must be no password"):
        side("postgresql://me:secret@host/db", otherwise="17")


def test_a_side_has_sql_of_its_own(tmp_path: Path) -> None:
    script, file = tmp_path / "index.sql", tmp_path / "my.conf"
    script.write_text("-- pays?\nCREATE INDEX ON t\n\t(i);\nSELECT 1;\n")
    file.write_text("work_mem = 1MB\n")
    found = side(f"18+{file}+{script}", otherwise=None)
    assert found.sql == ("-- pays?", "CREATE INDEX ON t", "        (i);", "SELECT 1;")
    assert str(found) == "18 with work_mem = 1MB, CREATE INDEX ON t (i); SELECT 1;"
    assert side(str(script), otherwise="embedded") == Side("embedded", sql=found.sql)
    with pytest.raises(StudyError, match="one file of settings"):
        side(f"18+{script}+{script}", otherwise=None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("-- nothing\n", "has no statement"),
        ("SELECT 1;\n\\i /etc/passwd\n", r"line 2: \\i is psql's"),
        ("COPY t FROM STDIN;\n1\n", "line 1: COPY takes rows"),
        ("SELECT 1;\nDROP DATABASE shop;\n", "line 2: DROP DATABASE reaches beyond"),
        ("SELECT 'a;\n", "in the middle of a string"),
    ],
)
def test_sql_of_a_side_is_statements_alone(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "own.sql").write_text(text)
    with pytest.raises(StudyError, match=why):
        side(str(tmp_path / "own.sql"), otherwise="embedded")


def test_no_report_has_sql() -> None:
    request = to_builtins(Request(Side("18"), Side("18", sql=("SELECT 1;",)), ("workload",)))
    with pytest.raises(StudyError, match="candidate has SQL of its own"):
        Request.from_dict(request)


def test_an_honest_file_names_all_that_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "production.conf"
    file.write_text(
        "listen_addresses = '*'\nport = 5433\nwork_mem = 64MB\n"
        "archive_command = 'cp %p /backup/%f'\nlog_directory = '/var/log/pg'\n"
        "include_dir = 'conf.d'\n"
    )
    sentence = "sets listen_addresses, port, include_dir, archive_command, log_directory, which"
    with pytest.raises(StudyError, match=sentence):
        side(str(file), otherwise="17")
    assert side(str(file), otherwise="17", tell=print) == Side("17", {"work_mem": "64MB"})
    file.write_text("port = 5433\n")
    with pytest.raises(StudyError, match="no settings but those left out"):
        side(str(file), otherwise="17", tell=print)


def test_a_file_of_settings_is_taken_line_by_line_with_a_reason_for_what_is_left(
    tmp_path: Path,
) -> None:
    file = tmp_path / "postgresql.conf"
    file.write_text(
        "# DB Version: 17\n# OS Type: linux\nmax_connections = 50\nshared_buffers = 9000TB\n"
        "ssl = maybe\nwork_mem = 8MB  # each\nno_such_setting = 1\nport = 5433\n"
        "archive_command = 'cp %p /x'\nthis is not one\nauto_explain.log_min_duration = 1s\n"
        "include_if_exists = 'tuned.conf'\n"
    )
    said: list[str] = []
    found = side(f"embedded+{file}", otherwise=None, tell=said.append)
    taken = without_rejected(found, said.append)
    assert taken.settings == {
        "max_connections": "50",
        "work_mem": "8MB",
        "auto_explain.log_min_duration": "1s",
    }
    for name, why in (
        ("port", "a managed server is placed and reached in its own way"),
        ("archive_command", "it names a program"),
        ("include_if_exists", "other files are not read"),
        ("line 10", "it is no setting"),
        ("ssl = maybe", 'parameter "ssl" requires a Boolean value'),
        ("no_such_setting = 1", 'unrecognized configuration parameter "no_such_setting"'),
        ("shared_buffers = 9000TB", "less memory"),
    ):
        (line,) = [line for line in said if f" {name}: " in line]
        assert why in line
    assert len(said) == 7


def test_settings_of_a_workload_that_a_side_does_not_know_are_told() -> None:
    both = Request(Side("embedded"), Side("embedded"), studies=("workload",))
    settings = {"work_mem": "8MB", "made_up_one": "1"}
    ((name, releases),) = check_settings(settings, both).items()
    assert name == "made_up_one"
    assert releases.startswith("PostgreSQL 18")
    with pytest.raises(StudyError, match="work_mem = much is not taken by PostgreSQL 18"):
        check_settings({"work_mem": "much"}, both)


@pytest.mark.parametrize("server", ["/home/me/patched", "postgresql://h/d", "./x", "host=h", "99"])
def test_a_report_chooses_no_programs_and_no_address(server: str, tmp_path: Path) -> None:
    told = request_in(
        report(tmp_path, asked(candidate={"server": server, "settings": {"jit": "on"}}))
    )
    with pytest.raises(StudyError, match="name the server yourself, by --candidate SERVER"):
        told.with_servers(None, None)
    assert told.with_servers(None, "16").candidate == Side("16", {"jit": "on"})
    file = tmp_path / "my.conf"
    file.write_text("jit = off\n")
    assert told.with_servers(None, f"16+{file}").candidate == Side("16", {"jit": "off"})
    with pytest.raises(StudyError, match="Name the server of"):
        told.with_servers(None, str(file))


@pytest.mark.parametrize(
    ("study", "parameters"),
    [
        ("releases", {"releases": ["/home/me/bin"]}),
        ("releases", {"releases": ["9.6", "./x"]}),
        ("releases", {"releases": "16, ~/x"}),
        ("releases", {"releases": ["postgresql://h/d"]}),
        ("releases", {"releases": ["bin"]}),
        ("workload", {"directory": "/home/me/private"}),
        ("workload", {"directory": "16"}),
        *((study, {"repo": "/home/me/postgresql"}) for study in BUILDING),
    ],
)
def test_a_report_chooses_no_programs_and_no_directory_by_a_parameter(
    study: str, parameters: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    (name,) = parameters
    told = request_in(report(tmp_path, asked(studies=[study], parameters=parameters)))
    with pytest.raises(StudyError, match=rf"^The report's {name} has '.*use `pgstudies compare -p"):
        told.with_servers(None, None)
    monkeypatch.setattr("pgapps.compare.request._require_harmless", lambda *_: None)
    assert told.with_servers(None, None).parameters == parameters


@pytest.mark.parametrize("study", BUILDING)
def test_a_record_names_no_repository_to_build_from(study: str) -> None:
    told = {"repo": "/home/me/postgresql", "server": "/home/me/bin", "blocks": 7}
    assert _still_taken(find_room(study), told) == {"blocks": 7}


def test_a_report_may_name_releases_by_a_parameter_and_a_user_anything(tmp_path: Path) -> None:
    parameters = {"releases": ["9.6", "16", "embedded"]}
    told = request_in(report(tmp_path, asked(studies=["releases"], parameters=parameters)))
    assert told.with_servers(None, None).parameters == parameters
    own = plan("releases", parameters={"releases": "9.6,/home/me/bin"}).parameters["releases"]
    assert own == ["9.6", "/home/me/bin"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"studies": []}, "studies must be a list of length >= 1"),
        ({"studies": "cluster_order"}, ""),
        ({"studies": [1]}, ""),
        ({"studies": ["a\x1b[2J"]}, "a text that is not one line"),
        ({"arms": ["a\x1b[2J"]}, "a text that is not one line"),
        ({"baseline": "embedded"}, ""),
        ({"baseline": {"settings": {}}}, "baseline has no server"),
        ({"baseline": {"server": 17}}, ""),
        ({"baseline": {"server": "embedded", "settings": []}}, ""),
        ({"baseline": {"server": "embedded", "settings": {"jit": 1}}}, ""),
        ({"baseline": {"server": "embedded", "settings": {"a b": "1"}}}, ""),
        ({"baseline": {"server": "embedded", "settings": {"listen-addresses": "*"}}}, ""),
        ({"baseline": {"server": "embedded", "settings": {"jit": "a\0b"}}}, ""),
        ({"baseline": {"server": "17", "more": 1}}, "baseline has 'more', which is none of server"),
        ({"parameters": [1]}, ""),
        ({"parameters": {"rows": {"deep": 1}}}, "parameters, a value must be true or false or a"),
        ({"parameters": {"rows": float("nan")}}, "parameters, a value must be a number >= -1"),
        ({"margin": float("nan")}, "margin must be a number >= 0.001"),
        ({"margin": "0.1"}, ""),
        ({"blocks": 0}, "blocks must be a whole number >= 1"),
        ({"blocks": 2.5}, ""),
        ({"blocks": True}, ""),
        ({"minutes": float("inf")}, ""),
        ({"copies": "yes"}, ""),
        ({"case": 5}, "case must be text, and it is a whole number"),
        ({"profile": None}, ""),
        ({"unheard_of": 1}, "it has 'unheard_of', which is none of baseline, candidate, studies"),
    ],
)
def test_what_is_wrong_in_a_report_is_named_in_one_sentence(
    changed: dict[str, Any], said: str, tmp_path: Path
) -> None:
    told = refusal(lambda: request_in(report(tmp_path, asked(**changed))))
    assert told
    assert told.isprintable()
    assert said in told


@pytest.mark.parametrize("values", [{}, {"baseline": {"server": 1}}, {"baseline": 5}])
def test_a_comparison_that_is_none_is_a_sentence(values: dict[str, Any]) -> None:
    assert refusal(lambda: Comparison.from_dict(values)).startswith("A comparison is invalid: ")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(asked())), JSON, max_size=3) | JSON)
def test_any_request_is_read_or_refused(values: Any) -> None:
    whole = asked(**values) if isinstance(values, dict) else values
    assert "\n" not in refusal(lambda: Request.from_dict(whole))


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 10_000, "{", "[]", "null", '"\\ud800"'])
def test_what_is_no_request_at_all_is_one_sentence(text: str, tmp_path: Path) -> None:
    file = report(tmp_path, 1)
    file.write_text(file.read_text().replace(">1<", f">{text}<"))
    with pytest.raises(StudyError):
        request_in(file)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (os.mkfifo, "it is no regular file"),
        (os.mkdir, "it is no regular file"),
        (lambda _: None, "cannot be read"),
        (lambda file: file.write_text("<html></html>"), "is not a report of `pgstudies compare`"),
    ],
    ids=["fifo", "directory", "missing", "page"],
)
def test_what_is_no_report_is_refused_and_not_waited_for(
    make: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    make(tmp_path / "report.html")
    with pytest.raises(StudyError, match=said):
        request_in(tmp_path / "report.html")


@pytest.mark.parametrize("text", ["~nobody_of_that_name/x", "x" * 5000, "17+" + "x" * 5000, "a\0b"])
def test_a_side_that_cannot_be_looked_up_is_one_sentence(text: str) -> None:
    with pytest.raises(StudyError):
        serve(side(text, otherwise="17").server)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pgapps", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_report_may_not_choose_the_scripts_that_are_loaded(tmp_path: Path) -> None:
    of_workload = asked(studies=["workload"], parameters={"directory": str(tmp_path)})
    done = command("rerun", str(report(tmp_path, of_workload)), "--yes")
    assert done.returncode == 3
    assert "The report is of a workload, and its directory is not in it" in done.stderr


def test_a_rerun_shows_what_it_would_run_and_waits_for_a_yes(tmp_path: Path) -> None:
    done = command("rerun", str(report(tmp_path, asked())))
    assert done.returncode == 3
    assert done.stdout.splitlines() == [
        "Baseline: embedded",
        "Candidate: 17",
        "    jit = on",
        "Studies: cluster_order, at quick size",
    ]
    assert "Nothing was compared: pass --yes" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--minutes", "inf"], "should be less than or equal to 100000"),
        (["--blocks", "99999999"], "should be less than or equal to 10000"),
        (["--study", "scorecard"], "There is no study scorecard; the studies are: cluster_order,"),
        (["--workload", "nowhere"], "There is no workload in "),
        (["--baseline", "17", "--study", "io_method"], "it is about PostgreSQL 18 and later, and"),
        (["-p", "blocks=3"], "blocks is not a parameter: use --blocks."),
        (["--blocks", "8", "--until-decided"], "--until-decided chooses the number of blocks"),
        (["--baseline", "./nowhere", "--study", "hash_index"], "There is no directory"),
        (["--report", "x.txt"], "must be a file named *.html"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_starts(
    arguments: list[str], said: str
) -> None:
    done = command("compare", "--candidate", "17", *arguments)
    assert done.returncode == (2 if "should be" in said else 3)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


WORDS = st.text(max_size=12) | st.sampled_from(["0", "on", "-1", "64MB", "x", "1e9", "'", "%p"])
BOUND_S = 15


@pytest.mark.usefixtures("private")
def test_any_setting_is_refused_in_a_sentence_or_taken(managed: ManagedServer) -> None:
    with managed.connect() as c:
        # One that holds sessions up would hold us up.
        query = "SELECT name FROM pg_settings WHERE name !~ 'delay|timeout'"
        known = [name for (name,) in c.execute(query).fetchall()]
    end = time.monotonic() + BOUND_S

    @settings(
        max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(st.dictionaries(st.sampled_from(known) | st.text(max_size=8), WORDS, max_size=2))
    def try_it(wanted: dict[str, str]) -> None:
        if time.monotonic() > end:
            return
        assert "\n" not in refusal(lambda: start(wanted))

    def start(wanted: dict[str, str]) -> None:
        taken = require_wellformed(wanted, "The file")
        if not refused(taken):
            managed.restart(taken)

    try_it()
    managed.restart()


def test_builds_that_differ_are_refused_with_a_pair_that_would_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(StudyError) as refused:
        require_alike_builds("17", "embedded")
    assert "17 is built with -Os and embedded with -O2" in str(refused.value)
    assert "17 and 18" in str(refused.value)
    place = find_binaries("embedded").program("postgres")
    assert place is not None
    monkeypatch.setattr(installations, "installed", lambda _: place.parent)
    with pytest.raises(StudyError, match=rf"alike: {place.parent} in place of 17, or 17 and 18"):
        require_alike_builds("17", "embedded")
    require_alike_builds("17", "18")
    require_alike_builds("embedded", "embedded")
    require_alike_builds("17", "postgresql://me@db/test")  # the guard will tell


def test_a_study_of_something_newer_than_a_side_is_left_out() -> None:
    new, old, unknown = Side("18"), Side("17"), Side("postgresql://me@db/test")
    told = "it is about PostgreSQL 18 and later, and 17 is older"
    assert reason_too_old("io_method", (old, new)) == told
    assert reason_too_old("io_method", (new, old)) == told
    assert reason_too_old("io_method", (new, unknown)) is None
    assert reason_too_old("hash_index", (old, new)) is None


def test_cores_are_not_shared_where_one_side_alone_has_workers() -> None:
    old, new = Side("14"), Side("18")
    assert not share_cores_alike(old, new)
    assert share_cores_alike(old, Side("18", {"io_method": "sync"}))
    assert share_cores_alike(new, Side("embedded"))
    assert not share_cores_alike(old, Side("postgresql://me@db/test"))  # it is not known


def test_a_directory_tells_how_it_was_built(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("postgres", "initdb", "pg_ctl"):
        program = tmp_path / "bin" / name
        program.write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 18.6'\n")
        program.chmod(0o755)
    assert optimization(str(tmp_path)) is None
    pg_config = tmp_path / "bin" / "pg_config"
    pg_config.write_text("#!/bin/sh\necho '-Wall -O2 -g -O3'\n")
    pg_config.chmod(0o755)
    assert optimization(str(tmp_path)) == "-O3"
    assert optimization("nowhere/at/all") is None


def test_the_command_in_a_mail_names_no_place() -> None:
    words = ["compare", "--repo", "/home/me/src/pg/", "--candidate", "x", "--workload", "../a b"]
    assert _for_others(words) == "pgstudies compare --repo pg --candidate x --workload 'a b'"
    assert _for_others(["compare", "--repo", "."]) == "pgstudies compare --repo ."
    assert _for_others(["rerun", "/home/me/a.html"]) == "pgstudies rerun a.html"
