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

# The names of tables; strings, comments and a FROM that no table follows are passed over.
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
    """What can be planned of a statement: the query in a COPY or CREATE TABLE AS, or all of it.

    ``interval $1``, ``extract($1 FROM`` and the like are rewritten as casts and ``date_part``.
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
        for tail in (["WITH", "DATA"], ["WITH", "NO", "DATA"]):
            if names[-len(tail) :] == tail:
                end = words[-len(tail)].start
        return text[words[names.index("AS")].end : end].strip()
    return text


def rows_of(text: str) -> str | None:
    """The query of the rows that a statement writes or locks; None if it cannot be derived.

    It cannot be derived from a MERGE, nor from an UPDATE with a query in its SET.
    """
    clauses = _Clauses(text)
    names = clauses.names
    if names[:1] in (["SELECT"], ["VALUES"], ["TABLE"]):
        found = clauses.without_locks()
    else:
        verb = clauses.at("INSERT", "UPDATE", "DELETE")
        if verb == len(names) or (verb and names[0] != "WITH"):
            return None
        rows = clauses.inserted(verb) if names[verb] == "INSERT" else clauses.changed(verb)
        found = text[: clauses.start(verb)] + rows if rows else ""
    return _numbered_anew(found) if found else None


class _Clauses:
    """The clauses of a statement; each begins with a word, of which the index is given."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._words = _words(text)
        self.names = [word.word for word in self._words]

    def at(self, *names: str, after: int = 0) -> int:
        """The index of the first of ``names`` from ``after`` on, or the number of words."""
        every = range(after, len(self.names))
        return next((i for i in every if self.names[i] in names), len(self.names))

    def start(self, index: int) -> int:
        return self._words[index].start if index < len(self._words) else len(self._text)

    def _part(self, first: int, end: int) -> str:
        """The text after one word, up to another."""
        return self._text[self._words[first].end : self.start(end)] if first < end else ""

    def _pairs(self, first: str, *seconds: str) -> list[int]:
        """The indices of ``first`` where one of ``seconds`` is the next word."""
        pairs = enumerate(zip(self.names, self.names[1:], strict=False))
        return [i for i, (one, other) in pairs if one == first and other in seconds]

    def inserted(self, verb: int) -> str:
        """The query or VALUES of an INSERT; empty if it has none."""
        first = self.at("SELECT", "VALUES", "WITH", "TABLE", "DEFAULT", after=verb)
        if first == len(self.names):
            return ""
        if self.names[first] == "DEFAULT":
            return "VALUES (NULL)"
        conflicts = [index for index in self._pairs("ON", "CONFLICT") if index > first]
        end = min([self.at("RETURNING", after=first), *conflicts])
        rows = self._text[self.start(first) : self.start(end)].strip()
        if self.names[first] == "VALUES":
            rows = re.sub(r"\bDEFAULT\b", "NULL", rows, flags=re.IGNORECASE)
        return rows

    def changed(self, verb: int) -> str:
        """The query of the rows of an UPDATE or DELETE; empty if it cannot be derived."""
        is_update = self.names[verb] == "UPDATE"
        begin = self.at("SET", after=verb) if is_update else verb + 1
        if self.names[begin : begin + 1] != ["SET" if is_update else "FROM"]:
            return ""
        end = self.at("RETURNING", after=begin)
        where = min(self.at("WHERE", after=begin), end)
        source = "FROM" if is_update else "USING"
        found = (i for i in range(begin + 1, where) if self.names[i] == source)
        more = next((i for i in found if self.names[i - 1] != "DISTINCT"), where)
        if is_update and re.search(r"\bSELECT\b", self._part(begin, more), re.IGNORECASE):
            return ""
        target = self._part(verb, begin) if is_update else self._part(begin, more)
        name = _NAME_AT_END.search(target.rstrip())
        if name is None:
            return ""
        others = f", {self._part(more, where).strip()}" if more < where else ""
        condition = self._text[self.start(where) : self.start(end)]
        # Only ctid, so that, as for the change, no index alone suffices.
        rows = f"SELECT {name[1]}.ctid FROM {target.strip()}{others} {condition}"  # noqa: S608  (to plan)
        return rows.strip()

    def without_locks(self) -> str:
        """The query without FOR UPDATE and the like; empty if it has none."""
        begins = self._pairs("FOR", "UPDATE", "NO", "SHARE", "KEY")
        if not begins:
            return ""
        end = self.at("LIMIT", "OFFSET", "FETCH", after=begins[-1])
        return f"{self._text[: self.start(begins[0])]}{self._text[self.start(end) :]}".strip()


def has_parameters(text: str) -> bool:
    """Whether a statement has a parameter, such as $1."""
    return any(found[1] for found in _PARAMETER.finditer(text))


def _numbered_anew(text: str) -> str:
    """The text with its parameters numbered from 1 on, as a gap would be one without a type."""
    numbers: dict[str, int] = {}

    def numbered(found: re.Match[str]) -> str:
        number = found[1]
        return found[0] if number is None else f"${numbers.setdefault(number, len(numbers) + 1)}"

    return _PARAMETER.sub(numbered, text)


def names_only_catalogs(text: str) -> bool:
    """Whether a statement names only the server's own tables, by its text."""
    named = [found[1].replace('"', "") for found in _TARGET.finditer(text) if found[1]]
    return all(map(_CATALOG.match, named))
