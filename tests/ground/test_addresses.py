"""Addresses: shown without secrets, refused in one sentence, and nobody's password repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import psycopg
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgapps.compare.request import side
from pgservers.addresses import Address, explain
from pgservers.errors import ServerError, StudyError
from pgservers.servers.serve import serve

if TYPE_CHECKING:
    from pathlib import Path

PASSWORDS = st.text(st.sampled_from("abcXYZ0189 @:/?#%&=+'\\\"é$"), min_size=9, max_size=16).filter(
    lambda password: not password[0].isspace() and not password[-1].isspace()
)
OTHERS = ["jdbc:postgresql", "postgresql+psycopg", "postgres+asyncpg", "psql", "pg", "mysql"]
USERS = ["postgresql", "postgres", "POSTGRESQL", "Postgres", *OTHERS, "", "psql postgresql"]


def in_uri(scheme: str, password: str, escaped: bool, form: int) -> str:
    """An address as a URI, or what somebody may take for one."""
    said = quote(password, safe="") if escaped else password
    forms = [
        f"{scheme}://me:{said}@db.invalid:5432/x",
        f"{scheme}://db.invalid/x?user=me&password={said}",
        f" {scheme}://me:{said}@db.invalid/x ",
        f"{scheme}:me:{said}@db.invalid/x",
        f"//me:{said}@db.invalid/x",
        f"me:{said}@db.invalid/x",
        f"'{scheme}://me:{said}@db.invalid/x'",
    ]
    return forms[form % len(forms)]


def in_words(name: str, password: str, quoted: bool, form: int) -> str:
    """An address of ``key=value``, or what somebody may take for one."""
    said = make_conninfo(password=password).partition("=")[2] if quoted else password
    forms = [
        f"host=db.invalid {name}={said}",
        f" HOST = db.invalid {name} = {said} user=me",
        f"{name}={said}",
        f"host=db.invalid, {name}={said}",
        f"/run/postgresql {name}={said}",
        f"dbname='host=db.invalid {name}={password}'",
        f"{name}: {said}",
        f"host=db.invalid;{name}={said.replace(' ', '')}",
        f"user=me;{name}={said.replace(' ', '')} host=db.invalid",
    ]
    return forms[form % len(forms)]


ADDRESSES = st.tuples(
    PASSWORDS,
    st.one_of(
        st.tuples(st.just(in_uri), st.sampled_from(USERS)),
        st.tuples(
            st.just(in_words),
            st.sampled_from(["password", "PASSWORD", "Password", "sslpassword", "passwd"]),
        ),
    ),
    st.booleans(),
    st.integers(0, 8),
)


@given(ADDRESSES)
@example(("hunter2hunter2", (in_uri, "postgresql+psycopg"), False, 0))
@example(("@0000000/", (in_uri, "postgresql"), False, 0))
def test_no_message_and_no_repr_repeats_a_password(
    drawn: tuple[str, tuple[object, str], bool, int],
) -> None:
    password, (write, word), proper, form = drawn
    text = write(word, password, proper, form)  # type: ignore[operator]
    said = []
    for read in (Address.parse, lambda text: side(text, otherwise="embedded")):
        try:
            found = read(text)
            said += [repr(found), str(found), found.public if isinstance(found, Address) else ""]
        except StudyError as error:
            said.append(str(error))
    try:
        is_dsn = Address.parse(text).is_dsn
    except ServerError:
        is_dsn = False
    if not is_dsn:  # a server would be looked for
        with pytest.raises(StudyError) as caught:
            serve(text)
        said.append(str(caught.value))
    for spelling in (password, quote(password, safe=""), quote(password, safe="/")):
        assert all(spelling not in sentence for sentence in said)


@pytest.mark.parametrize(
    "text",
    [
        "postgresql+psycopg://me:hidden@db/x",
        "jdbc:postgresql://db/x?user=me&password=hidden",
        "PASSWORD=hidden host=db",
        " HOST = db",
        "me:hidden@db/x",
        "db:5432/x",
        "/run/postgresql password=hidden",
        "dbname=postgresql://me:hidden@db/x",
        "colour=red",
        "postgresql://u:secret@[::1/db",
        "host=h password='secret",
        "host=127.0.0.1;Password=hidden",
        "user=me;Pwd=hidden host=db",
        "host=db port=5432 application_name=x;PASSWORD=hidden",
    ],
)
def test_what_is_nearly_an_address_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ServerError, match="write postgresql://user@host:5432/database, ") as caught:
        Address.parse(text)
    assert "hidden" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "text", ["POSTGRESQL://me:pw@db/x", " postgres://me:pw@db/x\n", " host=db user=me dbname=x"]
)
def test_case_of_the_scheme_and_space_around_do_not_matter(text: str) -> None:
    address = Address.parse(text)
    assert address.is_dsn
    assert address.public == "postgresql://me@db/x"
    assert conninfo_to_dict(address.text) == dict(address.parts)


def test_equal_texts_are_equal_addresses() -> None:
    assert {Address.parse("host=db"), Address.parse(" host=db")} == {Address.parse("host=db")}


def test_only_a_directory_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pg19").mkdir()
    assert Address.parse("pg19").absolute().text == str(tmp_path / "pg19")
    assert Address.parse("./pg=20/bin").absolute().text == str(tmp_path / "pg=20" / "bin")
    for text in ("", "embedded", "16", "host=db", "postgresql://db/x", "~nobody_at_all", "x" * 999):
        assert Address.parse(text).absolute().text == text


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
    assert Address.parse(dsn).public == shown


def test_what_is_shown_names_the_same_server() -> None:
    dsn = "postgresql://us%40er:secret@h1:1,h2:2/d%2Fb?connect_timeout=3"
    parts = conninfo_to_dict(dsn)
    del parts["password"]
    assert conninfo_to_dict(Address.parse(dsn).public) == parts


def test_what_is_a_dsn() -> None:
    for text in ("postgresql://h", "postgres://h", "dbname=x"):
        assert Address.parse(text).is_dsn
    at_home = ("/opt/pg=16/bin", "/opt/homebrew/opt/postgresql@17/bin", "~/pg:dev/bin")
    for text in ("embedded", "16.11", *at_home):
        assert not Address.parse(text).is_dsn


@pytest.mark.parametrize(
    ("text", "secrets"),
    [
        ("", set()),
        ("embedded", set()),
        ("/opt/pg19/bin", set()),
        ("postgresql://me@db/x", set()),
        ("postgresql://me:pw@db/x", {"pw"}),
        ("postgresql://db/x?user=me&password=pw", {"pw"}),
        ("host=db password=pw sslpassword=key", {"pw", "key"}),
        ("host=db passfile=/home/me/.pgpass", set()),
    ],
)
def test_the_secrets_in_an_address_are_known(text: str, secrets: set[str]) -> None:
    assert Address.parse(text).secrets == secrets


def test_an_address_that_would_cut_a_password_in_two_is_refused() -> None:
    """In the same words for each: none of them has a part of a password."""
    said = set()
    for address in (
        *("postgresql://me:pass@word@db/x", "postgresql://me:pass/word@db/x"),
        *("postgresql://me:12/word@db/x", "postgresql://me:pass@db:word/x"),
        *("POSTGRES://u:x@word@h/db", "host=u:x@word"),
    ):
        with pytest.raises(ServerError, match="%40 for an @") as caught:
            Address.parse(address)
        said.add(str(caught.value))
    assert len(said) == 1


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
