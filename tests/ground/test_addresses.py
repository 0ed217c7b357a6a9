"""DSNs: shown without secrets, and explained in one sentence when they do not work."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from pgstudies.addresses import explain, is_dsn, parse_dsn, without_password
from pgstudies.errors import ServerError


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgresql://u:se%20cret@h:5433/db", "postgresql://u@h:5433/db"),
        ("postgres://h", "postgresql://h/"),
        ("postgresql://u:secret@[::1]:5432/db", "postgresql://u@[::1]:5432/db"),
        ("host=h dbname=db password='se cret' user=u", "postgresql://u@h/db"),
        (
            "postgresql://u:secret@%2Frun%2Fpg/db?sslmode=disable",
            "postgresql://u@/db?host=/run/pg&sslmode=disable",
        ),
        ("postgresql://u@h/db?sslpassword=secret", "postgresql://u@h/db"),
        ("embedded", "embedded"),
        ("/usr/lib/postgresql/15", "/usr/lib/postgresql/15"),
    ],
)
def test_secrets_are_left_out(dsn: str, shown: str) -> None:
    assert without_password(dsn) == shown


def test_what_is_shown_names_the_same_server() -> None:
    dsn = "postgresql://us%40er:secret@h1:1,h2:2/d%2Fb?connect_timeout=3"
    parts = conninfo_to_dict(dsn)
    del parts["password"]
    assert conninfo_to_dict(without_password(dsn)) == parts


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://u:secret@[::1/db",
        "postgresql://h/db?no_such=secret",
        "host=h password='secret",
        "postgresql://u:x@secret@h/db",
    ],
)
def test_a_dsn_that_cannot_be_read_is_not_repeated(dsn: str) -> None:
    with pytest.raises(ServerError, match="cannot be read") as error:
        parse_dsn(dsn)
    assert "secret" not in str(error.value)
    assert error.value.__cause__ is None


@pytest.mark.parametrize(
    ("spec", "yes"),
    [
        ("postgresql://h", True),
        ("postgres://h", True),
        ("dbname=x", True),
        ("embedded", False),
        ("/opt/pg=16/bin", False),
    ],
)
def test_what_is_a_dsn(spec: str, yes: bool) -> None:
    assert is_dsn(spec) is yes


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("fe_sendauth: no password supplied", "it asks for a password"),
        ('FATAL:  role "x" does not exist', "it has no such user"),
        ("FATAL:  sorry, too many clients already", "it has too many connections"),
        ('FATAL:  too many connections for database "x"', "it has too many connections"),
        ('FATAL:  no pg_hba.conf entry for host "::1"', "does not let this user in from here"),
        ("FATAL:  the database system is starting up", "it is starting or stopping"),
        ("connection timeout expired", "it does not answer in time"),
        ('could not translate host name "x" to address', "there is no host of that name"),
        ("something new\nin two lines", "in two lines"),
    ],
)
def test_complaints_become_one_sentence(said: str, sentence: str) -> None:
    error = explain(psycopg.OperationalError(said), "postgresql://h/db")
    assert str(error).startswith("No connection to postgresql://h/db: ")
    assert sentence in str(error)
    assert "\n" not in str(error)
