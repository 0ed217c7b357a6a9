"""The command line: its help, its lists, its sentences and its exit codes."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
import typer

from pgapps import cli
from pgapps.doctor.listing import parameters
from pgapps.execution.run import Executed
from pgservers import paths
from pgservers.errors import ServerError, SpaceError
from pgservers.files import write_file
from pgservers.programs.cached import finish
from pgservers.programs.releases import find_release
from pgservers.tools import installing
from pgstudies.records.samples import SAMPLES_SCHEMA
from pgstudies.records.writing import write_whole
from tests.made_up import ROOMS, copied_rooms, info, swept_record, timeline

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pgapps.compare.request import Request
    from pgapps.execution.plan import PlannedRun

    Command = Callable[..., "Outcome"]

cli._applications()
COMMANDS = sorted(typer.main.get_group(cli.app).commands)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with copies of two notebooks, and a home without records."""
    monkeypatch.setattr(paths, "NOTEBOOKS", (copied_rooms(tmp_path, "no_parameters", "well"),))
    build = tmp_path / "_build"
    for name, place in (
        *(("STUDIES", tmp_path / "studies"), ("REFERENCE_RECORDS", tmp_path / "reference")),
        *(("BUILD", build), ("HTML", build / "html"), ("JUDGED", build / "judged")),
    ):
        monkeypatch.setattr(paths, name, place)
    monkeypatch.setenv("PGSTUDIES_RECORDS", str(tmp_path / "records"))
    for name in ("SERVER", "REPLAY", "FRESH"):
        monkeypatch.delenv(f"PGSTUDIES_{name}", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@dataclass
class Outcome:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


@pytest.fixture
def pgstudies(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line, run in this process by its own ``main``."""
    monkeypatch.setattr("signal.signal", lambda *_: None)  # of the tests' own process

    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["pgstudies", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert isinstance(ended.value.code, int)
        return Outcome(ended.value.code, *capsys.readouterr())

    return run


def record(base: Path, study: str, second: int, **told: Any) -> Path:
    started = datetime(2026, 11, 21, 4, 31, second, tzinfo=UTC)
    path = base / study / f"{started:%Y%m%dT%H%M%SZ}-host-abcdef"
    known = {
        "host": {"hostname": "db7.example"},
        "started_at": started.isoformat(),
        "server": {"version_text": "18.6 (Debian 18.6-1)"},
        "timeline": timeline(1, 1, 2),
    }
    write_whole(path, info(study, **known | told), pl.DataFrame(schema=SAMPLES_SCHEMA))
    return path


# Help


def test_help_names_the_usual_course_and_the_exit_codes(pgstudies: Command) -> None:
    shown = pgstudies("--help")
    assert shown.code == 0
    lines = [line.strip() for line in shown.out.splitlines()]
    assert "pgstudies run all    measure every study at quick size" in lines
    assert "3    the server cannot be found, started, reached or used" in lines
    assert "130  interrupted; run the same command to continue" in lines
    assert max(map(len, shown.out.splitlines())) <= 80


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_within_80_columns(command: str, pgstudies: Command) -> None:
    shown = pgstudies(command, "--help")
    assert shown.code == 0
    assert max(map(len, shown.out.splitlines())) <= 80
    assert f"Examples:\n    pgstudies {command}" in shown.out


def test_help_is_shown_without_loading_what_it_does_not_need() -> None:
    code = """
import sys
from pgapps import cli
sys.argv = ["pgstudies", "--help"]
try:
    cli.main()
finally:
    print(*sys.modules)
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"FORCE_COLOR": "1"},
    )
    loaded = set(run.stdout.splitlines()[-1].split())
    assert "typer" in loaded
    assert loaded.isdisjoint({"polars", "papermill", "altair", "psycopg", "scipy", "nbformat"})
    assert "\x1b" not in run.stdout


def test_version_and_an_unknown_option(pgstudies: Command) -> None:
    assert pgstudies("--version").out == "pgstudies 1.1.0\n"
    shown = pgstudies("run", "well", "--profil", "quick")
    assert shown.code == 2
    assert "No such option" in shown.err


# Running


def ended(study: str) -> str:
    """What a run of a study without claims prints at its end."""
    page = f"_build/html/book/studies/{study}.html"
    return f"{study}: studies/{study}.ipynb\n  Its page, which `pgstudies book` builds: {page}\n"


def with_open_claims(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The study ``swept`` alone, with two claims more, which are open; returns its record."""
    for study in ("no_parameters", "well"):
        shutil.rmtree(place / "notebooks" / study)
    rooms = copied_rooms(place, "swept")
    monkeypatch.setenv("PGSTUDIES_NOTEBOOKS", str(rooms))
    claims = rooms / "swept" / "claims.toml"
    claim = claims.read_text().partition("[[claim]]")[2]
    for name in ("kept", "kept, too"):
        more = claim.replace('"twice"', f'"{name}"').replace('"two are twice as many"', f'"{name}"')
        with claims.open("a") as file:
            file.write(f'\n[[claim]]{more}not_tested = "nothing was kept"\n')
    return swept_record(place / "kept", "db1", name="swept/one")


def test_a_run_ends_with_what_became_of_its_claims(
    place: Path, pgstudies: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = with_open_claims(place, monkeypatch)
    shown = pgstudies("run", "swept", "--replay", str(record))
    assert shown.out.splitlines() == [
        "swept: studies/swept.ipynb",
        "  3 claims: 1 holds; 2 open.",
        "  Open: kept; kept, too (not tested: nothing was kept).",
        "  Its page, which `pgstudies book` builds: _build/html/book/studies/swept.html",
    ]


def test_a_mistake_in_its_claims_is_told_before_a_study_is_run(
    place: Path, pgstudies: Command
) -> None:
    claims = copied_rooms(place, "swept") / "swept" / "claims.toml"
    text = 'headlines = [{ claim = "twice", text = "{now_percent_less}" }]'
    claims.write_text(f"{text}\n{claims.read_text()}")
    shown = pgstudies("run", "swept", "--replay", str(swept_record(place / "kept", "db1")))
    assert shown.code == 2
    assert "a headline of the claim 'twice'" in shown.err
    assert not (place / "studies").exists()


def run_all(
    pgstudies: Command, monkeypatch: pytest.MonkeyPatch, *options: str, stops_in: str = ""
) -> tuple[list[str], Outcome]:
    """The studies that a run of all measures, with empty pages, and how it ends."""
    measured: list[str] = []

    def run_planned(planned: PlannedRun, **_: object) -> Executed:
        study = planned.study
        if study == stops_in:
            raise KeyboardInterrupt
        measured.append(study)
        page = paths.STUDIES / f"{study}.ipynb"
        write_file(page, json.dumps({"metadata": {}}))
        return Executed(page, None, None)

    monkeypatch.setattr("pgapps.execution.run.run_planned", run_planned)
    return measured, pgstudies("run", "all", *options)


@pytest.fixture
def three(place: Path) -> list[str]:
    """Three studies, in the order of a run of all."""
    copied_rooms(place, "swept")
    return ["no_parameters", "swept", "well"]


def test_a_run_of_all_goes_on_with_the_study_in_which_it_was_interrupted(
    three: list[str], pgstudies: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, stopped = run_all(pgstudies, monkeypatch, stops_in="well")
    assert (measured, stopped.code) == (three[:2], 130), stopped.err
    measured, shown = run_all(pgstudies, monkeypatch)
    assert (measured, shown.code) == (three[2:], 0)
    assert "no_parameters, swept: measured before the interruption; --fresh starts" in shown.err
    measured, _ = run_all(pgstudies, monkeypatch)  # which is a new run, as the last one has ended
    assert measured == three


def test_a_run_of_all_goes_on_with_nothing_that_was_asked_for_otherwise(
    three: list[str], pgstudies: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal of names alone would skip what nobody has measured."""
    run_all(pgstudies, monkeypatch, stops_in="well")
    (paths.STUDIES / "swept.ipynb").unlink()
    measured, _ = run_all(pgstudies, monkeypatch, stops_in="well")
    assert measured == ["swept"]
    measured, _ = run_all(pgstudies, monkeypatch, "--server", "16", stops_in="well")
    assert measured == ["swept"]  # the first of the three needs no server
    measured, _ = run_all(pgstudies, monkeypatch, "--fresh")
    assert measured == three


def test_the_next_command_removes_what_a_killed_run_left_beside_the_pages(
    place: Path, pgstudies: Command
) -> None:
    left = place / "studies" / ".pgstudies-abcdefgh"
    left.mkdir(parents=True)
    (left / "owner.lock").touch()
    pgstudies("records")
    assert not left.exists()


def test_a_run_of_all_ends_with_the_sum_of_the_scorecard(
    place: Path, pgstudies: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_open_claims(place, monkeypatch)
    shown = pgstudies("run", "all", "--replay", str(place / "kept"))
    assert shown.out.splitlines()[0] == "swept: studies/swept.ipynb"
    assert shown.out.splitlines()[-1] == "3 claims: 1 holds; 2 not tested. 1 of 3 decided."


def test_a_run_says_where_the_notebook_is(place: Path, pgstudies: Command) -> None:
    shown = pgstudies("run", "well", "-p", "rows=3_000", "-p", "starts=1,2")
    assert (shown.code, shown.out) == (0, ended("well"))
    assert shown.err == "well: 3/3\n"
    metadata = json.loads((place / "studies" / "well.ipynb").read_text())["metadata"]
    assert metadata["pgstudies"]["parameters"]["rows"] == 3000
    assert metadata["pgstudies"]["parameters"]["starts"] == [1, 2]


def test_a_run_says_beforehand_what_it_is_and_how_long_it_took(
    place: Path, pgstudies: Command
) -> None:
    notebook = place / "notebooks" / "well" / "well.ipynb"
    notebook.write_text(notebook.read_text().replace("iterations", "blocks"))
    file = place / "notebooks" / "well" / "sizes.toml"
    file.write_text('[standard]\nabout = "A large table: an hour."\nblocks = 8\nrows = 3000\n')
    ends = [f"2026-11-21T04:{end}+00:00" for end in ("31:30", "33:30", "35:40")]
    blocks = [
        entry | {"started_at": f"{end[:17]}00+00:00", "finished_at": end}
        for entry, end in zip(timeline(1, 2, 3), ends, strict=True)
    ]
    samples = pl.DataFrame(schema=SAMPLES_SCHEMA)
    told = info("well", profile="standard", timeline=blocks, blocks=3)
    write_whole(place / "records" / "well" / "one", told, samples)
    shown = pgstudies("run", "well", "--profile", "standard")
    assert shown.err.splitlines()[:2] == [
        "well, standard: A large table: an hour.",
        "well, standard: 8 blocks: about 16 minutes where the newest record of this size was made",
    ]


def test_a_server_of_libpq_that_is_not_measured_is_told(
    pgstudies: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGHOST", "db.example")
    monkeypatch.delenv("PGSTUDIES_SERVER", raising=False)
    assert "Ignoring PGHOST and measuring the embedded server" in pgstudies("run", "well").err
    assert "PGHOST" not in pgstudies("run", "well", "--server", "embedded").err


def test_all_goes_on_after_a_notebook_that_fails(place: Path, pgstudies: Command) -> None:
    copied_rooms(place, "broken")
    shown = pgstudies("run", "all", "--server", "embedded")
    assert shown.code == 4
    assert shown.out == ended("no_parameters") + ended("well")
    told = shown.err.splitlines()[1]
    assert told.startswith('pgstudies: broken stopped in cell 3, under "Verdict": ZeroDivision')
    assert told.endswith("_build/failed/broken.ipynb.")
    assert shown.err.splitlines()[-1] == "pgstudies: 1 of 3 studies failed."


def test_all_stops_at_a_server_that_is_not_there(place: Path, pgstudies: Command) -> None:
    refused = copied_rooms(place, "refused") / "refused"
    (refused / "refused.ipynb").rename(refused / "a.ipynb")
    refused.rename(refused.with_name("a"))
    shown = pgstudies("run", "all")
    assert (shown.code, shown.out) == (3, "")
    first_page, error = shown.err.splitlines()
    assert first_page.endswith("_build/first-page.html")
    assert error == "pgstudies: The server at nowhere does not answer."


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("wel", "There is no study wel; the studies are: no_parameters, well."),
        ("well -p rows", 'A parameter is set by -p name=value, and "rows" is not of that form.'),
        ("all -p rows=3000", "no_parameters has no parameters, so rows cannot be set."),
    ],
)
def test_a_wrong_request_is_refused_in_one_sentence(
    words: str, sentence: str, place: Path, pgstudies: Command
) -> None:
    shown = pgstudies("run", *words.split())
    assert (shown.code, shown.out, shown.err) == (2, "", f"pgstudies: {sentence}\n")
    assert not (place / "studies").exists()


# Errors that no command expects


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (ServerError("It does not answer."), 3, "It does not answer."),
        (OSError(errno.ENOSPC, "", "/x.ipynb"), 5, "No space left while writing to /x.ipynb"),
        (OSError(errno.EROFS, "Read-only", "/book"), 5, "Cannot write to /book (Read-only)"),
        (OSError(errno.EACCES, "Denied", "/book"), 5, "Cannot write to /book (Denied)"),
        (LookupError("nothing there"), 1, "this is an error in pgstudies itself"),
    ],
)
def test_each_kind_of_error_has_its_exit_code(
    error: Exception,
    code: int,
    sentence: str,
    pgstudies: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: str | None) -> Path:
        raise error

    monkeypatch.setattr("pgapps.book.build.build", fail)
    shown = pgstudies("book")
    *trace, last = shown.err.splitlines()
    assert (shown.code, last[: len(sentence) + 11]) == (code, f"pgstudies: {sentence}")
    assert trace[:1] == (["Traceback (most recent call last):"] if code == 1 else [])


def test_a_comparison_that_cannot_be_run_is_skipped_by_git_bisect(pgstudies: Command) -> None:
    asked = ["compare", "--candidate", "/nowhere", "--study", "no_such_study"]
    assert pgstudies(*asked).code == 3
    shown = pgstudies(*asked, "--bisect-run")
    assert shown.code == 125
    assert "no_such_study" in shown.err


def test_a_full_disk_has_its_own_exit_code_in_a_comparison_by_checked_values_too(
    pgstudies: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(request: Request, **_: object) -> None:
        assert request.parameters == {"rows": 20_000}  # a value, and not what was typed
        raise SpaceError("No space left.")

    monkeypatch.setattr("pgapps.compare.run.compared", full)
    asked = ["compare", "--candidate", "embedded", "--study", "well", "-p", "rows=20_000"]
    shown = pgstudies(*asked)
    assert (shown.code, shown.err) == (5, "pgstudies: No space left.\n")
    assert pgstudies(*asked, "--bisect-run").code == 133


@pytest.mark.parametrize("value", ["[" * 100_000, "9" * 4_000, "x" * 100_000, "1," * 50_000])
@pytest.mark.parametrize("name", ["starts", "rows", "nothing"])
def test_a_value_of_a_hundred_kilobytes_is_not_repeated(
    name: str, value: str, pgstudies: Command
) -> None:
    shown = pgstudies("run", "well", "-p", f"{name}={value}")
    assert shown.code == 2
    assert len(shown.err) < 3000
    assert "Traceback" not in shown.err


UNMASKED = """
import os, pathlib, sys
from pgapps.cli import main
sys.argv[1:] = ["studies"]
try:
    main()
except SystemExit:
    pathlib.Path(os.environ["MADE"]).mkdir()
    pathlib.Path(os.environ["MADE"], "x").touch()
"""


def test_what_we_make_is_ours_to_use_whatever_the_umask(place: Path) -> None:
    subprocess.run(
        ["sh", "-c", 'umask 777; exec "$0" -c "$1"', sys.executable, UNMASKED],
        env=os.environ | {"MADE": str(place / "made")},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    assert (place / "made").stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_is_read_only_is_named(place: Path, pgstudies: Command) -> None:
    (place / "studies").mkdir(mode=0o500)
    shown = pgstudies("run", "no_parameters")
    assert shown.code == 5
    assert shown.err.startswith(f"pgstudies: Cannot write to {place / 'studies'}")
    assert "Permission denied" in shown.err


# Lists


def test_studies_are_listed_with_their_titles(pgstudies: Command) -> None:
    assert pgstudies("studies").out.splitlines() == [
        "no_parameters  A study without parameters",
        "well           A study that works",
    ]


def test_the_parameters_of_a_study_are_listed_with_their_limits(
    place: Path, pgstudies: Command
) -> None:
    file = place / "notebooks" / "well" / "sizes.toml"
    file.write_text("[standard]\nrows = 1_000_000\nstarts = [4, 5]\nmemory = 80\n")
    lines = pgstudies("studies", "well").out.splitlines()
    assert lines[0] == "well: A study that works"
    assert "fewer than" not in lines[1]
    assert lines[2:4] == [
        "-p rows=50_000  (standard 1_000_000)",
        "    rows in the table; at least 2000",
    ]
    assert "-p starts=1,2,3  (standard 4,5)" in lines
    assert "-p memory=80" in lines
    assert "-p cold=true" in lines
    assert "    shared_buffers; between 16 and 1024 MB" in lines
    assert "-p server=" in lines
    assert parameters("no_parameters") == "no_parameters: A study without parameters"


def test_a_study_says_how_many_blocks_its_claims_take(place: Path, pgstudies: Command) -> None:
    well = place / "notebooks" / "well"
    shutil.copy(ROOMS.parents[1] / "notebooks" / "mvcc_catalog" / "claims.toml", well)
    (well / "sizes.toml").write_text('title = "Well"\npost = "Nobody, 2026"\n')
    second = pgstudies("studies", "well").out.splitlines()[1]
    assert second == "With fewer than 6 blocks no claimed difference can be significant."


def test_servers_are_listed_with_what_is_here(
    place: Path, pgstudies: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = find_release("9.6")
    monkeypatch.setenv("PGSTUDIES_CACHE", str(place / "cache"))
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/mvn")
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    (cached.directory / "bin").mkdir(parents=True)
    (cached.directory / "bin" / "postgres").touch()
    finish(cached.directory)
    lines = pgstudies("servers").out.splitlines()
    assert lines[0].startswith("embedded  ")
    assert lines[0].split()[:3] == ["embedded", "18.6", "-O2"]
    assert "9.3       9.3.5   gcc 4.1.2, -O2  would be fetched (22.8 MB)" in lines
    assert "9.6       9.6.24  gcc 4.4.7, -O2  cached" in lines
    assert lines[-2].startswith("`pgstudies servers fetch all` would fetch 1")
    assert lines[-1] == "Releases are kept in ~/cache/releases."
    monkeypatch.setattr("shutil.which", lambda _: None)
    lines = pgstudies("servers").out.splitlines()
    assert "9.6       9.6.24  gcc 4.4.7, -O2  cached" in lines
    newest = find_release("16").version
    told = f"16        {newest}   gcc 7.5.0, -Os  cannot be fetched: there is no mvn on PATH "
    assert any(line.startswith(told) for line in lines)
    fetched = pgstudies("servers", "fetch", "9.6")
    assert (fetched.code, fetched.out) == (0, f"9.6: {cached.directory}\n")
    refused = pgstudies("servers", "fetch", "9.6", "16")
    assert refused.code == 3
    assert f"{newest} cannot be fetched: there is no mvn on PATH" in refused.err
    assert f"({installing('mvn')})" in refused.err


def test_a_fetch_of_an_unknown_release_is_refused_and_an_interrupted_one_says_so(
    pgstudies: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = pgstudies("servers", "fetch", "16", "8.4")
    assert (refused.code, refused.out) == (2, "")
    assert "There is no release '8.4'; there are 9.3, 9.6, " in refused.err

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pgservers.programs.fetching.fetch", interrupt)
    stopped = pgstudies("servers", "fetch", "all")
    assert (stopped.code, "9.3 was not fetched" in stopped.err) == (130, True)


def test_no_records_says_how_to_make_one(pgstudies: Command) -> None:
    assert "`pgstudies run all`" in pgstudies("records").out
    assert "`pgstudies run well`" in pgstudies("records", "well").out


def test_a_strangers_host_cannot_write_to_the_terminal(place: Path, pgstudies: Command) -> None:
    record(place / "records", "well", 1, host={"hostname": "\x1b[2J\r[red]x\n"})
    shown = pgstudies("records").out
    assert "\x1b" not in shown
    assert "\r" not in shown
    assert r"\x1b[2J" in shown
    assert len(shown.splitlines()) == 3


def test_records_are_listed_in_80_columns_with_their_directories(
    place: Path, pgstudies: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(place))
    wide: dict[str, Any] = {"host": {"hostname": "a-host-with-a-long-name"}, "blocks": 1000}
    wide |= {"server": {"version_text": "19devel-with-a-suffix"}, "status": "interrupted"}
    wide |= {"timeline": timeline(*range(1000))}
    paths = [
        record(place / "records", "well", 1),
        record(place / "reference", "well", 2, host={}, server={}, status="running"),
        record(place / "records", "a_study_with_a_long_name", 3, **wide),
    ]
    for path in paths:
        size = sum(file.stat().st_size for file in path.iterdir())
        (path / "more").write_bytes(b"\0" * (1_234_567 - size))
    lines = pgstudies("records").out.splitlines()
    assert lines == [
        "study          started (UTC)    host        server blocks   status      size",
        "well           2026-11-21 04:31 db7.example 18.6   2/6      complete    1.2 MB",
        "  ~/records/well/20261121T043101Z-host-abcdef",
        "well           2026-11-21 04:31 ?           ?      2/6      unfinished  1.2 MB",
        "  ~/reference/well/20261121T043102Z-host-abcdef",
        "a_study_with_… 2026-11-21 04:31 a-host-wit… 19dev… 1000/10… interrupted 1.2 MB",
        "  ~/records/a_study_with_a_long_name/20261121T043103Z-host-abcdef",
    ]
    assert max(map(len, lines)) <= 80
    assert len(pgstudies("records", "a_study_with_a_long_name").out.splitlines()) == 3
