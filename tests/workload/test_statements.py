"""How a script is read: where a statement, a row or a command begins and ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgapps.workload.statements import Command, Lines, Statement
from pgservers.errors import StudyError

ATOMIC = "create function f() returns int begin atomic select case when x then 1 end; y; end"
PROCEDURE = "create or replace procedure p() begin atomic x; end"
RULE = "create rule r as on insert to t do (x; y)"


def read(text: str) -> list[str]:
    """Statements as they are, commands with a backslash, rows in angle brackets."""
    lines = Lines(text.encode().splitlines(keepends=True), Path("x.sql"))
    found = []
    for item in lines:
        if isinstance(item, Command):
            found.append(f"\\{item.name} {item.rest}".strip())
        else:
            found.append(item.text.decode())
            if item.takes_rows:
                found.append(f"<{b''.join(lines.rows()).decode()}>")
    return found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("select 1; select 2", ["select 1", "select 2"]),
        (r"select 1 \; select 2; x", [r"select 1 \; select 2", "x"]),
        (r"select 1 \; \! id", [r"\! id", "select 1 \\;"]),
        ("select ';', 'it''s;'; x", ["select ';', 'it''s;'", "x"]),
        (r"select E'\';', e'\\'; x", [r"select E'\';', e'\\'", "x"]),
        (r"select '\'; \q", [r"select '\'", r"\q"]),
        ('select 1 "a;""b"; x', ['select 1 "a;""b"', "x"]),
        ("select U&'\\'; x", ["select U&'\\'", "x"]),
        ("select $$;$$, $a$ $b$ ; $a$; x", ["select $$;$$, $a$ $b$ ; $a$", "x"]),
        ("select a$b$c; d$b$", ["select a$b$c", "d$b$"]),
        ("-- c;\n /* ; /* ; */ ; */ select 1; x", ["select 1", "x"]),
        ("select 1 -- ;\n;x", ["select 1 -- ;", "x"]),
        ("select 1 -- 'a'\n; x", ["select 1 -- 'a'", "x"]),
        ("select 1 /* ; */; x", ["select 1 /* ; */", "x"]),
        ("/* a\n; */ /* b */;;\nx;", ["x"]),
        (f"{RULE}; x", [RULE, "x"]),
        (f"{ATOMIC}; x", [ATOMIC, "x"]),
        (f"{PROCEDURE}; x", [PROCEDURE, "x"]),
        ("begin; x; end; z", ["begin", "x", "end", "z"]),
        ("copy t (a) from stdin;\n1\n\\N\n\\.\nx;", ["copy t (a) from stdin", "<1\n\\N\n>", "x"]),
        ("COPY t FROM stdin WITH csv;\n\\.\nx;", ["COPY t FROM stdin WITH csv", "<>", "x"]),
        ("\\copy t from 'x y.csv' csv\nx", ["\\copy t from 'x y.csv' csv", "x"]),
        ("\ufeffselect 1", ["select 1"]),
        # A string with escapes goes on after a new line, and its escapes with it.
        ("select E'a'\n'\\' ' \\! id '", [r"\! id '", "select E'a'\n'\\' '"]),
        ("select E'a'\n -- c\n'\\'; \\! id ';", ["select E'a'\n -- c\n'\\'; \\! id '"]),
        ("select 'a'\n'\\'; x", ["select 'a'\n'\\'", "x"]),
    ],
)
def test_statements_end_where_psql_ends_them(text: str, found: list[str]) -> None:
    assert read(text) == found


@pytest.mark.parametrize(
    "text",
    ["select 1;\\! id", "select 1 \\! id", "/* x */ \\! id", "-- x\n\\!\tid", "\\   ! id"],
)
def test_a_command_is_found_wherever_it_stands(text: str) -> None:
    assert "\\! id" in read(text)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("select 'x", "in the middle of a string"),
        ("select 1; /* x", "in the middle of a string or a comment"),
        ("do $$ x", "in the middle of a string"),
        ("copy t from stdin;\n1\n2", "in the middle of its rows"),
        ("--\n-- PostgreSQL database dump\n--\n\nselect 1;\n", "before its last line"),
    ],
)
def test_a_file_that_is_cut_off_is_told(text: str, where: str) -> None:
    with pytest.raises(StudyError, match=rf"x\.sql ends {where}.*: it has been cut off"):
        read(text)


def test_lines_are_those_of_the_first_word() -> None:
    text = "\n-- c\nselect\n1;\ncopy t from stdin;\n1\n\\.\n\n  x;"
    lines = Lines(text.encode().splitlines(keepends=True), Path("x.sql"))
    found = []
    for item in lines:
        assert isinstance(item, Statement)
        found.append((item.line, item.text.decode().split()[0]))
        if item.takes_rows:
            list(lines.rows())
    assert found == [(3, "select"), (5, "copy"), (9, "x")]
