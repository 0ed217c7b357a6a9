"""Queries from files: names, parameters, and what is no query."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pgapps.plans.queries import Query, queries_in
from pgapps.plans.statements import names_only_catalogs, plannable, rows_of
from pgservers.errors import StudyError

if TYPE_CHECKING:
    from pathlib import Path


def written(directory: Path, **files: str) -> Path:
    for name, text in files.items():
        (directory / f"{name}.sql").write_text(text)
    return directory


def test_a_file_is_a_query_or_one_for_each_name(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("nothing")
    written(tmp_path, b="-- of b\nSELECT 2;\n", a="-- name: one\nSELECT 1;\n-- name: two\nTABLE t;")
    assert queries_in(tmp_path) == [
        Query("one", "SELECT 1"),
        Query("two", "TABLE t"),
        Query("b", "SELECT 2"),
    ]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("SELECT :b, :a, :b", "SELECT $1, $2, $1"),
        ("SELECT x::int, ':no', \":no\" -- :no", "SELECT x::int, ':no', \":no\" -- :no"),
        ("SELECT a[1:2], $3", "SELECT a[1:2], $3"),
        ("SELECT 'it''s :no', /* :no */ :yes", "SELECT 'it''s :no', /* :no */ $1"),
        ("SELECT :'b', date :'a', :b", "SELECT $1, date $2, $1"),
    ],
)
def test_variables_become_parameters(tmp_path: Path, text: str, read: str) -> None:
    (query,) = queries_in(written(tmp_path, q=text))
    assert query.text == read


def test_what_is_no_query_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="has no file"):
        queries_in(tmp_path)
    with pytest.raises(StudyError, match="No such file"):
        queries_in(tmp_path / "nowhere")
    for text, why in (
        (b"\\i tables.sql\nSELECT :x", r"\\i is a command"),
        (b"SELECT '\xff'", "not UTF-8"),
        (b'SELECT * FROM :"t"', r'q.sql: :"t" stands for a name'),
    ):
        (tmp_path / "q.sql").write_bytes(text)
        with pytest.raises(StudyError, match=why):
            queries_in(tmp_path)


@pytest.mark.parametrize(
    ("text", "only"),
    [
        ("SELECT $1 FROM pg_class c JOIN pg_catalog.pg_namespace n ON c.a = n.b", True),
        ("SELECT pg_catalog.set_config($1, 'from mine', $3)", True),
        ('SELECT * FROM "information_schema".tables -- from mine', True),
        ("SELECT * FROM pg_class JOIN mine USING (oid)", False),
        ("SELECT extract($1 FROM now()) FROM pg_class WHERE a IS DISTINCT FROM b", True),
        ("UPDATE ONLY mine SET a = 1", False),
        ('SELECT $1 FROM (SELECT 1 FROM "Mine") x', False),
    ],
)
def test_statements_about_catalogs_alone_are_known_by_their_text(text: str, only: bool) -> None:
    assert names_only_catalogs(text) == only


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("now() - interval $1", "now() - CAST($1 AS interval)"),
        ("timestamp with time zone $12 > a", "CAST($12 AS timestamp with time zone) > a"),
        ("a AT TIME ZONE $1", "a AT TIME ZONE $1"),
        ("EXTRACT($1 FROM a)", "pg_catalog.date_part($1::pg_catalog.text, a)"),
        ("'date $1', \"date $1\" -- date $1", "'date $1', \"date $1\" -- date $1"),
        ("a.update $1", "a.update $1"),
        ("COPY (SELECT a FROM t) TO STDOUT", "SELECT a FROM t"),
        ("copy t to stdout", "copy t to stdout"),
        ("CREATE TEMP TABLE x (a) ON COMMIT DROP AS SELECT 1 AS b", "SELECT 1 AS b"),
        ("-- AS\nCREATE MATERIALIZED VIEW m AS (TABLE t) WITH NO DATA", "(TABLE t)"),
        ("CREATE TABLE t AS TABLE u WITH DATA", "TABLE u"),
        ("CREATE TABLE t (a int)", "CREATE TABLE t (a int)"),
        ("DECLARE c CURSOR FOR SELECT 1", "DECLARE c CURSOR FOR SELECT 1"),
    ],
)
def test_the_query_in_a_statement_is_found_and_rewritten_for_the_grammar(
    text: str, read: str
) -> None:
    assert plannable(text) == read


SCRIPT = """\\set id random(1, 9)
BEGIN;
-- the first
UPDATE t SET a = ';' WHERE id = :id;
SELECT a FROM t WHERE id = :id \\gset
\\if :a
INSERT INTO u VALUES (:a) RETURNING b \\gset
\\endif
END;
"""


def test_a_script_of_pgbench_is_its_queries(tmp_path: Path) -> None:
    written(tmp_path, script=SCRIPT, schema="CREATE TABLE t ()")
    assert queries_in(tmp_path) == [
        Query("script", "UPDATE t SET a = ';' WHERE id = $1"),
        Query("script 2", "SELECT a FROM t WHERE id = $1"),
        Query("script 3", "INSERT INTO u VALUES ($1) RETURNING b"),
    ]
    written(tmp_path, script=r"SELECT 1 \; SELECT 2")
    assert [query.text for query in queries_in(tmp_path)] == ["SELECT 1", "SELECT 2"]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (
            "UPDATE ONLY a.t AS x SET b = $1, c = $2 IS DISTINCT FROM d WHERE e = $3 RETURNING *",
            "SELECT x.ctid FROM ONLY a.t AS x WHERE e = $1",
        ),
        (
            'update "T" set b = u.b from u join v using (i) where "T".i = u.i',
            'SELECT "T".ctid FROM "T", u join v using (i) where "T".i = u.i',
        ),
        ("UPDATE t SET b = 1", "SELECT t.ctid FROM t"),
        ("UPDATE t SET b = (SELECT 1)", None),
        ("DELETE FROM a.t RETURNING x", "SELECT t.ctid FROM a.t"),
        (
            "/* c */ DELETE FROM t USING u WHERE t.i = u.i AND (u.x = $2 OR u.y = $2)",
            "/* c */ SELECT t.ctid FROM t, u WHERE t.i = u.i AND (u.x = $1 OR u.y = $1)",
        ),
        (
            "WITH w AS (SELECT 'UPDATE') DELETE FROM t WHERE i IN (TABLE w)",
            "WITH w AS (SELECT 'UPDATE') SELECT t.ctid FROM t WHERE i IN (TABLE w)",
        ),
        (
            "INSERT INTO t (a, b) SELECT $2, b FROM u JOIN v ON u.i = v.i ON CONFLICT DO NOTHING",
            "SELECT $1, b FROM u JOIN v ON u.i = v.i",
        ),
        ("INSERT INTO t VALUES ($1, DEFAULT) RETURNING a", "VALUES ($1, NULL)"),
        ("INSERT INTO t DEFAULT VALUES", "VALUES (NULL)"),
        (
            "SELECT * FROM t WHERE i = $1 FOR NO KEY UPDATE OF t SKIP LOCKED LIMIT 1",
            "SELECT * FROM t WHERE i = $1 LIMIT 1",
        ),
        ("SELECT * FROM t", None),
        ("WITH w AS (DELETE FROM t) SELECT 1", None),
        ("MERGE INTO t USING u ON true WHEN MATCHED THEN DELETE", None),
        ("INSERT INTO t (SELECT 1)", None),
        ("UPDATE", None),
        ("DELETE t", None),
    ],
)
def test_of_what_writes_the_query_of_its_rows_is_known(text: str, rows: str | None) -> None:
    assert rows_of(text) == rows
