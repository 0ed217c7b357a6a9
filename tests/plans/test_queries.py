"""Queries from files: names, parameters, and what is no query."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pgapps.plans.queries import Query, names_only_catalogs, plannable, queries_in
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
    ],
)
def test_variables_become_parameters(tmp_path: Path, text: str, read: str) -> None:
    (query,) = queries_in(written(tmp_path, q=text))
    assert query.text == read


def test_what_is_no_query_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"has no file .*sql with a query in it"):
        queries_in(tmp_path)
    with pytest.raises(StudyError, match="cannot be read: No such file"):
        queries_in(tmp_path / "nowhere")
    written(tmp_path, q="\\set x 1\nSELECT :x")
    with pytest.raises(StudyError, match=r"\\set is a command of psql or pgbench, not a query"):
        queries_in(tmp_path)
    (tmp_path / "q.sql").write_bytes(b"SELECT '\xff'")
    with pytest.raises(StudyError, match="is not UTF-8"):
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
    ],
)
def test_what_the_grammar_takes_no_parameter_for_is_rewritten(text: str, read: str) -> None:
    assert plannable(text) == read
