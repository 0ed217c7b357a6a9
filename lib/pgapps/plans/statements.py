"""What is planned for a statement: the query in it, or the query of the rows that it writes."""

from __future__ import annotations

import re
from typing import NamedTuple

_SKIPPED = (
    r"\b[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\$\$.*?\$\$"
    r"|--[^\n]*|/\*.*?\*/"
)

_TOKEN = re.compile(rf"{_SKIPPED}|([()\[\]])|(?<![.$\w])([A-Za-z_][\w$]*)", re.DOTALL)

_PARAMETER = re.compile(rf"{_SKIPPED}|\$(\d+)", re.DOTALL)

_NAME_AT_END = re.compile(r"(\"(?:[^\"]|\"\")*\"|[\w$]+)[\s*]*$")

# Strings and comments are passed over, and a FROM that names no table; quoted names are not.
_TARGET = re.compile(
    r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/|\bextract\s*\(\s*\S+\s+FROM\b|\bDISTINCT\s+FROM\b"
    r"|\b(?:FROM|JOIN|INTO|UPDATE)\s+(?:ONLY\s+)?([\w.\"$]+)",
    re.DOTALL | re.IGNORECASE,
)

# pg_stat_statements puts $1 where the grammar takes a constant only.
_TYPED = re.compile(
    rf"{_SKIPPED}|\b(interval|date|(?:time|timestamp)(?:\s+with(?:out)?\s+time\s+zone)?|timetz"
    r"|timestamptz|numeric|bool|boolean|text|uuid|inet|jsonb?|bytea|regclass)\s+\$(\d+)"
    r"|\bextract\s*\(\s*\$(\d+)\s+FROM\b",
    re.DOTALL | re.IGNORECASE,
)

_CATALOG = re.compile(r"(pg_catalog\.|information_schema\.|pg_)", re.IGNORECASE)


class _Word(NamedTuple):
    """A word in upper case, with its place in the text."""

    word: str
    start: int
    end: int


def _words(text: str) -> list[_Word]:
    """The words outside of brackets, strings, quoted names and comments."""
    depth, found = 0, []
    for token in _TOKEN.finditer(text):
        if token[1]:
            depth += 1 if token[1] in "([" else -1
        elif token[2] and depth == 0:
            found.append(_Word(token[2].upper(), *token.span(2)))
    return found


def first_word(text: str) -> str:
    """The first word of a statement outside of parentheses, in upper case."""
    words = _words(text)
    return words[0].word if words else ""


def plannable(text: str) -> str:
    """The query of a COPY or a CREATE TABLE AS, or the statement itself, as it can be planned.

    ``interval $1``, ``extract($1 FROM`` and the like are rewritten.
    """

    def rewritten(found: re.Match[str]) -> str:
        kind, number, field = found.groups()
        if field:
            return f"pg_catalog.date_part(${field}::pg_catalog.text,"
        return f"CAST(${number} AS {kind})" if kind else found[0]

    return _TYPED.sub(rewritten, _within(text))


def _within(text: str) -> str:
    words = _words(text)
    names = [word.word for word in words]
    if names[:2] == ["COPY", "TO"]:
        query = text[words[0].end : words[1].start].strip()
        return query[1:-1].strip() if query[:1] + query[-1:] == "()" else text
    if names[:1] == ["CREATE"] and {"TABLE", "MATERIALIZED"}.intersection(names) and "AS" in names:
        end = len(text)
        if names[-2:] == ["WITH", "DATA"] or names[-3:] == ["WITH", "NO", "DATA"]:
            end = words[len(names) - 1 - names[::-1].index("WITH")].start
        return text[words[names.index("AS")].end : end].strip()
    return text


def rows_of(text: str) -> str | None:
    """The query of the rows that a statement writes or locks; None if it cannot be derived.

    That is so for MERGE, and for an UPDATE with a query in its SET, whose plan is more than that.
    """
    words = _Clauses(text)
    if words.names[:1] in (["SELECT"], ["VALUES"], ["TABLE"]):
        found: str | None = words.without_locks()
    else:
        verb = words.at("INSERT", "UPDATE", "DELETE")
        if verb == len(words.names) or (verb and words.names[0] != "WITH"):
            return None
        written = words.inserted(verb) if words.names[verb] == "INSERT" else words.changed(verb)
        found = text[: words.start(verb)] + written if written else None
    return _numbered_anew(found) if found else None


class _Clauses:
    """The clauses of a statement, by the number of the word with which each begins."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._words = _words(text)
        self.names = [word.word for word in self._words]

    def at(self, *names: str, after: int = 0) -> int:
        """The index of the first of ``names`` from ``after`` on, or the number of words."""
        every = range(after, len(self.names))
        return next((i for i in every if self.names[i] in names), len(self.names))

    def start(self, number: int) -> int:
        return self._words[number].start if number < len(self._words) else len(self._text)

    def _part(self, first: int, end: int) -> str:
        """The text after one word, up to another."""
        return self._text[self._words[first].end : self.start(end)] if first < end else ""

    def inserted(self, verb: int) -> str:
        first = self.at("SELECT", "VALUES", "WITH", "TABLE", "DEFAULT", after=verb)
        if first == len(self.names):
            return ""
        if self.names[first] == "DEFAULT":
            return "VALUES (NULL)"
        conflicts = zip(self.names, self.names[1:], strict=False)
        pairs = [i for i, pair in enumerate(conflicts) if pair == ("ON", "CONFLICT") and i > first]
        end = min([self.at("RETURNING", after=first), *pairs])
        rows = self._text[self.start(first) : self.start(end)].strip()
        if self.names[first] == "VALUES":
            rows = re.sub(r"\bDEFAULT\b", "NULL", rows, flags=re.IGNORECASE)
        return rows

    def changed(self, verb: int) -> str:
        is_update = self.names[verb] == "UPDATE"
        begin = self.at("SET", after=verb) if is_update else verb + 1
        if self.names[begin : begin + 1] != ["SET" if is_update else "FROM"]:
            return ""
        end = self.at("RETURNING", after=begin)
        where = min(self.at("WHERE", after=begin), end)
        more = min(self._sources(begin + 1, where, "FROM" if is_update else "USING"), where)
        if is_update and re.search(r"\bSELECT\b", self._part(begin, more), re.IGNORECASE):
            return ""
        target = self._part(verb, begin) if is_update else self._part(begin, more)
        name = _NAME_AT_END.search(target.rstrip())
        if name is None:
            return ""
        others = f", {self._part(more, where).strip()}" if more < where else ""
        condition = self._text[self.start(where) : self.start(end)]
        # Nothing but the place of a row: no index alone has it, as none has for a change.
        rows = f"SELECT {name[1]}.ctid FROM {target.strip()}{others} {condition}"  # noqa: S608  (to plan)
        return rows.strip()

    def _sources(self, first: int, end: int, name: str) -> int:
        found = (i for i in range(first, end) if self.names[i] == name)
        return next((i for i in found if self.names[i - 1] != "DISTINCT"), end)

    def without_locks(self) -> str:
        pairs = zip(self.names, self.names[1:], strict=False)
        locks = {"UPDATE", "NO", "SHARE", "KEY"}
        begins = [i for i, (a, b) in enumerate(pairs) if a == "FOR" and b in locks]
        if not begins:
            return ""
        end = self.at("LIMIT", "OFFSET", "FETCH", after=begins[-1])
        return f"{self._text[: self.start(begins[0])]}{self._text[self.start(end) :]}".strip()


def _numbered_anew(text: str) -> str:
    """The text with its parameters numbered from 1 on: a missing number would have no type."""
    numbers: dict[str, int] = {}

    def numbered(found: re.Match[str]) -> str:
        number = found[1]
        return found[0] if number is None else f"${numbers.setdefault(number, len(numbers) + 1)}"

    return _PARAMETER.sub(numbered, text)


def names_only_catalogs(text: str) -> bool:
    """Whether a statement names only the server's own tables, by its text."""
    named = [found[1].replace('"', "") for found in _TARGET.finditer(text) if found[1]]
    return all(map(_CATALOG.match, named))
