"""A workload from a server's log: its formats, its queries, and hostile logs."""

from __future__ import annotations

import gzip
import io
import json
import time
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from pgapps.workload.loading import tables_of
from pgapps.workload.logs.entries import Entry, entries
from pgapps.workload.logs.scripts import (
    _GIVEN,
    Call,
    _read,
    alike,
    call_of,
    statement_of,
    write_scripts_of_log,
)
from pgapps.workload.scripts import read_workload
from pgapps.workload.steps import steps_of
from pgapps.workload.turns import Turn
from pgapps.workload.writing import UnknownError, tables_named
from pgservers.errors import StudyError
from tests.servers_at_hand import embedded

if TYPE_CHECKING:
    from pathlib import Path

    from tests.workload.conftest import Loaded

SCHEMA = """
CREATE TABLE t (id int PRIMARY KEY, name text, at timestamptz);
INSERT INTO t SELECT i, 'o''n:ame ' || i, '2026-01-01' FROM generate_series(1, 500) i;
"""

PLAIN = {
    "SELECT * FROM t WHERE id = 7": 3,
    "SELECT *\n\tFROM t -- it's\nWHERE name = 'o''n:ame 5'": 2,
    "SELECT count(*) FROM t WHERE at < '2026-01-01 12:30:00+00'": 1,
    "SELECT * FROM t WHERE id IN (1, 2, 3)": 1,
    "SELECT * FROM t WHERE id IN (1, 2)": 1,
}

GIVEN = "SELECT * FROM t WHERE id > %s AND name <> %s"

FORMATS = {"stderr": "log", "csvlog": "csv", "jsonlog": "json"}


@pytest.fixture(scope="module")
def logs(run_base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The logs of a server by their format."""
    assert run_base.exists()
    settings = {
        "logging_collector": "on",
        "log_destination": ",".join(FORMATS),
        "log_line_prefix": "%m [%p] %q%u@%d/%a ",
        "log_min_duration_statement": "0",
        "session_preload_libraries": "auto_explain",
    }
    with embedded(settings) as server:
        with server.connect() as c:
            c.execute(SCHEMA.encode())
            for text, times in PLAIN.items():
                for _ in range(times):
                    c.execute(text.encode())
            c.execute(GIVEN.encode(), [499, "it's"])
            c.execute("SET auto_explain.log_min_duration = 0; SET log_min_duration_statement = -1")
            for kind in ("text", "json", "xml"):
                c.execute(f"SET auto_explain.log_format = {kind}".encode())
                c.execute(b"SELECT max(name)\nFROM t WHERE id > 9")
                c.execute(b"SELECT min(id) FROM t WHERE name > %s", ["5"])
            c.execute("SET auto_explain.log_format = text")
            c.execute("SELECT 'the last one'")
        place = server.data_directory / "log"
        end = time.monotonic() + 20
        while time.monotonic() < end and not all(
            "the last one" in file.read_text() for file in place.iterdir()
        ):
            time.sleep(0.05)
        home = tmp_path_factory.mktemp("logs")
        for kind, suffix in FORMATS.items():
            (found,) = place.glob(f"*.{suffix}")
            (home / kind).write_bytes(found.read_bytes())
    return {kind: home / kind for kind in FORMATS}


@pytest.mark.parametrize("kind", FORMATS)
def test_a_log_of_every_format_has_the_same_queries(
    logs: dict[str, Path], loaded: Loaded, kind: str, tmp_path: Path
) -> None:
    home = tmp_path / "shop"
    said = "\n".join(write_scripts_of_log(home, logs[kind], 40, [], lambda _: None))
    texts = [file.read_text() for file in sorted(home.glob("*.sql"))]
    calls = {"\n".join(text.split("\n")[2:]).strip(): text for text in texts}
    assert len(texts) == 7, texts
    assert ": 3 calls, " in calls["SELECT * FROM t WHERE id = 7;"]
    assert ": 2 calls, " in calls["SELECT *\n\tFROM t  \nWHERE name = E'o\\x27n\\x3aame 5';"]
    assert "SELECT count(*) FROM t WHERE at < '2026-01-01 12:30:00+00';" in calls
    (alikes,) = (text for text in texts if "id IN (1, 2" in text)
    assert ": 2 calls, " in alikes
    assert ": 2 calls, " in calls["SELECT max(name)\nFROM t WHERE id > 9;"]
    assert "SELECT * FROM t WHERE id > '499' AND name <> 'it''s';" in calls
    assert "SELECT min(id) FROM t WHERE name > '5';" in calls
    assert "with a plan in XML or YAML, which are not read" in said
    assert "that name no table but the catalogs" in said
    # The scripts run as they are, once the tables are there.
    (home / "schema.sql").write_text(SCHEMA)
    workload = read_workload(home)
    how: dict[str, Any] = {"clients": 1, "protocol": "prepared", "variables": {"scale": 1}}
    with loaded(tables_of(workload, 1, ())) as trial:
        assert len(steps_of(workload)) == len(texts)
        for seed, step in enumerate(steps_of(workload)):
            step.run(trial, step.name, Turn(2, []), seed=seed, **how)


def test_roles_are_known_of_csvlog_and_jsonlog(logs: dict[str, Path], tmp_path: Path) -> None:
    with logs["jsonlog"].open("rb") as file:
        role = next(e.role for e in entries(file) if e.message.startswith("duration"))
    for kind in ("csvlog", "jsonlog"):
        assert write_scripts_of_log(tmp_path / kind, logs[kind], 40, [role], lambda _: None)
        with pytest.raises(StudyError, match="no time of a query of nobody"):
            write_scripts_of_log(tmp_path / "x", logs[kind], 40, ["nobody"], lambda _: None)
    with pytest.raises(StudyError, match="only of csvlog and jsonlog is known who ran"):
        write_scripts_of_log(tmp_path / "x", logs["stderr"], 40, [role], lambda _: None)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n",
        b"not a log\n",
        b"\x00\xff\xfe" * 1000,
        b"a,b\rc" * 20,
        b'{"message": 5}\n',
        b"[" * 100_000,
        b'{"message": "duration: 1.0 ms  statement: ' + b"[" * 1000,
        b"2026-01-01 LOG:  duration: 1.000 ms\n",
        b'"' + b"," * 30 + b"\n" * 3,
        b"x" * 3_000_000,
    ],
)
def test_what_is_no_log_ends_in_a_sentence(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(content)
    with pytest.raises(StudyError, match="has no time of a query: it is no log of PostgreSQL in"):
        write_scripts_of_log(tmp_path / "shop", tmp_path / "log", 40, [], lambda _: None)
    assert not (tmp_path / "shop").exists()
    with pytest.raises(StudyError, match=r"nothing cannot be read as a log: No such file"):
        write_scripts_of_log(tmp_path / "shop", tmp_path / "nothing", 40, [], lambda _: None)


def test_lines_that_a_client_has_sent_are_no_entries() -> None:
    text = (
        b"2026 LOG:  duration: 1.500 ms  execute a:b: SELECT '\n"
        b"\t2026 LOG:  duration: 9.000 ms  statement: DROP TABLE t' FROM t\n"
        b"2026 DETAIL:  Parameters: $1 = '\n"
        b"\t2026 LOG:  duration: 8.000 ms  statement: x'\n"
        b"2026 ERROR:  no LOG:  duration: 7.000 ms  statement: SELECT 1\n"
    )
    told = [call_of(entry) for entry in entries(io.BytesIO(text))]
    assert told == [
        (
            "statement",
            Call(
                1.5,
                "SELECT '\n2026 LOG:  duration: 9.000 ms  statement: DROP TABLE t' FROM t",
                "$1 = '\n2026 LOG:  duration: 8.000 ms  statement: x'",
            ),
        )
    ]


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ("Query Text: SELECT 1 FROM t\nSeq", "cut off"),
        ('{"Query Text": "SELECT', "cut off"),
        ('{"Query Text": 5}', "without its query"),
        ("{" * 100_000, "cut off"),
        ('Query Text: "SELECT 1"\nPlan: ', "XML or YAML"),
        ("<explain>", "XML or YAML"),
    ],
)
def test_a_plan_that_cannot_be_read_says_why(message: str, why: str) -> None:
    entry = json.dumps({"message": f"duration: 1.0 ms  plan:\n{message}"}).encode()
    (found,) = entries(io.BytesIO(entry))
    with pytest.raises(UnknownError, match=why):
        call_of(found)


@pytest.mark.parametrize(
    ("text", "given", "written"),
    [
        ("SELECT $1, '$1', \"$1\" -- $1", "$1 = 'a$2', $2 = NULL", "SELECT 'a$2', '$1', \"$1\""),
        ("SELECT $2", "$1 = 'x', $2 = NULL", "SELECT NULL"),
        ("SELECT '--a' /* ' */;", "", "SELECT '--a'"),
        ("SELECT 'a\n\\! id'", "", "SELECT E'a\\x0a\\x5c\\x21 id'"),
        ("SELECT 'a:b', a::int", "", "SELECT E'a\\x3ab', a::int"),
        ("SELECT $$\n\\! id\n$$", "", "SELECT E'\\x0a\\x5c\\x21 id\\x0a'"),
        ("SELECT E'a\n-- name: b'", "", "SELECT E'a\\x0a-- name\\x3a b'"),
    ],
)
def test_a_statement_has_the_values_of_its_call(text: str, given: str, written: str) -> None:
    assert statement_of(Call(1, text, given)) == written


@pytest.mark.parametrize(
    ("text", "given", "why"),
    [
        ("SELECT $1", "", r"the log has no value of \$1"),
        ("SELECT $1", "$1 = 'abc...'", r"cut off the value of \$1"),
        ("SELECT $1", "$1 = 'abc", "its parameters cannot be read"),
        ("SELECT 1; DROP TABLE t", "", "several statements"),
        ("SELECT 1\n\\! id", "", "pgbench would read"),
        ("SELECT E'\\'' :name", "", "pgbench would read"),
        ("SELECT :name", "", "pgbench would read"),
        ("SELECT '\x1b[0m'", "", "cannot be printed"),
        ("SELECT '\ufffd'", "", "cannot be printed"),
    ],
)
def test_a_statement_that_cannot_be_written_says_why(text: str, given: str, why: str) -> None:
    with pytest.raises(UnknownError, match=why):
        statement_of(Call(1, text, given))


@pytest.mark.parametrize(
    ("text", "tables"),
    [
        ("SELECT 1 FROM a JOIN ONLY s.b ON x IS DISTINCT FROM a.c", ["a", "b"]),
        ("SELECT 1 FROM unnest('{1}'::int[]) AS x JOIN pg_catalog.pg_class ON true", []),
        ("INSERT INTO a (b) VALUES (1)", ["a"]),
        ("DELETE FROM a USING b WHERE a.i = b.i", ["a", "b"]),
        ('SELECT 1 FROM "A b", c', ["A b"]),
    ],
)
def test_functions_and_catalogs_are_no_tables(text: str, tables: list[str]) -> None:
    assert tables_named(text) == tables


def test_calls_of_one_query_are_known_whatever_their_values() -> None:
    one = alike("SELECT a1 FROM t WHERE b = 1.5e3 AND c IN (1, 'x''y', $3) -- z")
    assert one == alike("select a1  from t where b = $1 and c in ($2);")
    assert one != alike("SELECT a2 FROM t WHERE b = 1 AND c IN (1)")
    assert alike("INSERT INTO t VALUES (1, 2), (3, 4)") == alike("INSERT INTO t VALUES (5, 6)")


@pytest.mark.parametrize("part", ["$a$ $b", "/* ", "'", "e'\\'", '"', "(((", "$1 = ", "? , ", "--"])
def test_a_hostile_text_is_read_in_one_pass(part: str) -> None:
    # As long as a text may be: what looked back at every place would take hours.
    text = f"SELECT {part * (400_000 // len(part))} FROM t"
    told = call_of(Entry(f"duration: 1.0 ms  statement: {text}", f"parameters: {text}"))
    assert told is not None
    alike(told[1].text)
    with pytest.raises(UnknownError):
        statement_of(told[1])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('"a\n-- name: other\n"', "a name in it is not one line"),
        ('"a', "a name in it does not end"),
        ('"', "a name in it does not end"),
        ("'a", "a string in it does not end"),
        ("E'a", "a string in it does not end"),
        ("E'a''", "a string in it does not end"),
        ("$x$a", "a string in it does not end"),
        ("$$", "a string in it does not end"),
    ],
)
def test_no_quoted_text_splits_a_script_or_leaves_it_open(text: str, reason: str) -> None:
    with pytest.raises(UnknownError, match=reason):
        statement_of(Call(1.0, f"SELECT * FROM t WHERE name = {text}"))


def test_what_is_kept_of_a_log_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit includes the first call of each query, and the queries themselves."""
    monkeypatch.setattr("pgapps.workload.logs.scripts._MOST_CHARACTERS", 100_000)
    value = "x'';" * 2_500
    found = _read(
        (
            Entry(f"duration: 1.000 ms  statement: SELECT * FROM t{number} WHERE name = '{value}'")
            for number in range(50)
        ),
        [],
    )
    assert len(found.calls) == 9
    assert found.left_out == {"too long to be kept beside the others": 41}


def test_a_row_of_csv_that_does_not_end_is_left() -> None:
    endless = b'a,"b\n",' * 300_000
    whole = b",".join(b"x" for _ in range(23)) + b"\n"
    found = list(entries(io.BytesIO(whole + endless + b"\n" + whole)))
    assert found[0] == Entry("x", "x", "x", "x")


def test_a_value_takes_no_memory_for_each_of_its_characters() -> None:
    given = f"$1 = '{'x' * 4_000_000}'"
    tracemalloc.start()
    try:
        assert _GIVEN.fullmatch(given)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(given)  # a quantifier that backtracks takes many bytes for each


ONE = "SELECT name FROM account\nWHERE boss = $1\n\tORDER BY name"

SYSLOG = "Nov  3 09:14:05 db1 postgres[812]: [21-{}] "

STDERR = ["LOG:  duration: 1.500 ms  execute a: SELECT name FROM account", "\tWHERE boss = $1"]
STDERR += ["\t\tORDER BY name", "DETAIL:  Parameters: $1 = '17'"]


def wrapped(kind: str) -> str:
    """One entry of stderr in four lines, as others wrap it."""
    if kind == "syslog":
        lines = [line.replace("\t", "#011") for line in STDERR]
        parts = [SYSLOG.format(n) + line for n, line in enumerate(lines[:3], start=1)]
        return "\n".join([*parts, f"{SYSLOG.format(1).replace('21', '22')}2026 {lines[3]}"])
    if kind == "Cloud SQL":
        texts = ["\n".join(STDERR[:3]), STDERR[3]]
        return "[\n" + ",\n".join(json.dumps({"textPayload": text}) for text in texts) + "\n]\n"
    if kind == "Docker":
        split = [STDERR[0][:50], STDERR[0][50:] + "\n", *(f"{line}\n" for line in STDERR[1:])]
        return "\n".join(json.dumps({"log": text, "stream": "stderr"}) for text in split)
    if kind == "CloudNativePG":
        record = {"message": "duration: 1.500 ms  execute a: " + ONE, "user_name": "me"}
        record["detail"] = "Parameters: $1 = '17'"
        return json.dumps({"level": "info", "msg": "record", "record": record})
    before = {
        "journald": "Nov 03 09:14:05 db1 postgres[812]: ",
        "Compose": "db-1  | ",
        "kubectl": "[pod/db-0/postgres] ",
    }
    return "\n".join(f"{before[kind]}{line}" for line in STDERR)


KINDS = ["syslog", "Cloud SQL", "Docker", "CloudNativePG", "journald", "Compose", "kubectl"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_others_put_around_a_line_is_taken_off(kind: str) -> None:
    found = [call_of(e) for e in entries(io.BytesIO(wrapped(kind).encode()))]
    assert [call for call in found if call] == [("statement", Call(1.5, ONE, "$1 = '17'"))]


@pytest.mark.parametrize(
    "lines",
    [
        [STDERR[0], "WHERE boss = $1"],
        [STDERR[0], "unknown prefix: \tWHERE boss = $1", STDERR[3]],
        [SYSLOG.format(1) + STDERR[0], SYSLOG.format(3) + "#011ORDER BY name"],
        [SYSLOG.format(1) + STDERR[0], SYSLOG.replace("812", "9").format(2) + "#011WHERE a"],
    ],
    ids=["no prefix", "another prefix", "a part is missing", "of another process"],
)
def test_a_statement_whose_rest_may_be_lost_becomes_no_script(lines: list[str]) -> None:
    (found,) = entries(io.BytesIO("\n".join(lines).encode()))
    assert found.is_cut
    with pytest.raises(UnknownError, match="which may be a part of it"):
        call_of(found)


def test_a_packed_log_is_read_and_one_that_is_cut_off_as_far_as_it_goes(tmp_path: Path) -> None:
    log = tmp_path / "log.gz"
    packed = gzip.compress(b"LOG:  duration: 1.500 ms  statement: SELECT 1 FROM t\n" * 99)
    for content, said in ((packed, "99 calls"), (packed[:-4], "99 calls")):
        log.write_bytes(content)
        home = tmp_path / str(len(content))
        assert said in "".join(write_scripts_of_log(home, log, 40, [], lambda _: None))
    log.write_bytes(packed[:9])
    with pytest.raises(StudyError, match="cannot be unpacked: gunzip it first"):
        write_scripts_of_log(tmp_path / "x", log, 40, [], lambda _: None)
