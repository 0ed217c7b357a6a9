"""The parameters of a study, as its notebook's cell tagged ``parameters`` declares them."""

from __future__ import annotations

import ast
import difflib
import io
import json
import re
import tokenize
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import polars as pl

from pgservers.addresses import Address
from pgservers.errors import StudyError
from pgservers.terminal import notice, printable

from .rooms import find_room

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence
    from pathlib import Path

_KINDS = {
    "int": "a whole number, such as 50_000",
    "float": "a number, such as 0.5",
    "str": "text",
    "bool": "true or false",
    "list[int]": "whole numbers with commas between, such as 1,2,3",
    "list[float]": "numbers with commas between, such as 0.5,1",
    "list[str]": "words with commas between, such as a,b",
}
"""The types that a parameter may have, and the words for their values."""

_INTEGER = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

_ELEMENTS: Mapping[str, Any] = {"int": _INTEGER, "float": float, "str": str, "bool": bool}

_LIMITS = re.compile(
    r"^(?P<help>.*?)\s*"
    r"\[(?:(?P<blank>\|)?(?P<names>server|directory)"
    r"|(?P<none>\|)?(?P<low>[-+.\d_e]*?)\.\.(?P<high>[-+.\d_e]*)(?: (?P<unit>[^\]]+))?"
    r"|(?P<choices>[^\]|]*(?:\|[^\]|]*)+))\]$"
)


@dataclass(frozen=True)
class Parameter:
    """One declared parameter: its annotation, its default, and what its comment says.

    Limits and ``choices`` are those of a value, or of every element of a list.  ``names`` is
    ``server`` if its words are servers (a release, a directory of programs, an address),
    ``directory`` if they are directories, else empty.
    """

    name: str
    type: str
    default: Any
    help: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[Any, ...] = ()
    unit: str = ""
    may_be_empty: bool = False
    names: str = ""

    @property
    def element(self) -> str:
        """Its type, or the type of a list's elements: int, float, str or bool."""
        return self.type.removeprefix("list[").rstrip("]")

    @property
    def limits(self) -> str:
        """The allowed values, in words: ``at least 50_000``, ``between 1 and 10``, ``a or b``."""
        unit = f" {self.unit}" if self.unit else ""
        if self.choices:
            return listed([spelled(choice) for choice in self.choices], "or")
        if self.minimum is not None and self.maximum is not None:
            return f"between {spelled(self.minimum)} and {spelled(self.maximum)}{unit}"
        if self.minimum is not None:
            return f"at least {spelled(self.minimum)}{unit}"
        return f"at most {spelled(self.maximum)}{unit}" if self.maximum is not None else ""


def declared(notebook: Path) -> tuple[Parameter, ...]:
    """The parameters a notebook declares, in order; none without a cell tagged ``parameters``.

    The cell holds annotated assignments of plain values, each with a comment, which may end with
    limits and their unit: ``rows: int = 50_000  # rows in the table [2_000..]``, ``[1..10]``,
    ``[16..1024 MB]``, ``[a|b]``.  Limits and choices of a list are those of its elements; it may be
    empty if its default is, or with ``[|a|b]``, ``[|]``.  Text that names servers or directories
    ends with ``[server]``, ``[|server]`` or ``[directory]``; the parameter ``server`` needs none.
    Raises StudyError if the cell holds anything else.
    """
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    except FileNotFoundError:
        raise StudyError(f"There is no notebook at {notebook}.") from None
    except (ValueError, KeyError, TypeError):
        raise StudyError(
            f"{notebook} is not a notebook that can be read; "
            f"`git checkout` brings back the committed one."
        ) from None
    tagged = (c for c in cells if "parameters" in c.get("metadata", {}).get("tags", []))
    try:
        return _parsed("".join(next(tagged, {"source": ""})["source"]))
    except (SyntaxError, ValueError) as error:
        raise StudyError(f"{notebook}, the cell of parameters: {error}.") from None


def _parsed(source: str) -> tuple[Parameter, ...]:
    comments = {
        token.start[0]: token.string.lstrip("# ").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    parameters = []
    for statement in ast.parse(source).body:
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        # A formatter may have put the comment beside any line of a declaration.
        lines = (line for line in (last, *range(first, last)) if line in comments)
        parameters.append(_parameter(statement, comments.get(next(lines, 0), "")))
    return tuple(parameters)


def _parameter(statement: ast.stmt, comment: str) -> Parameter:
    match statement:
        case ast.AnnAssign(target=ast.Name(name), annotation=annotation, value=ast.expr() as value):
            kind = ast.unparse(annotation)
        case _:
            raise ValueError(
                f"line {statement.lineno} is not of the form `name: type = value  # comment`"
            )
    if kind not in _KINDS:
        raise ValueError(f"{name} is of type {kind}, and a parameter is one of {', '.join(_KINDS)}")
    try:
        default = ast.literal_eval(value)
    except ValueError:
        raise ValueError(f"{name} is not a plain value") from None
    names = "server" if name == "server" else ""
    plain = Parameter(name, kind, default, comment, may_be_empty=default == [], names=names)
    parameter = _limited(plain)
    if _value(parameter, default) != default:
        raise ValueError(f"{name} has a default that is not of type {kind}")
    return parameter


def _limited(plain: Parameter) -> Parameter:
    found = _LIMITS.match(plain.help)
    if found is None:
        return plain
    if found["names"] and plain.element == "str":
        empty = plain.may_be_empty or found["blank"] is not None
        return replace(plain, help=found["help"], names=found["names"], may_be_empty=empty)
    choices = found["choices"].split("|") if found["choices"] else []
    if plain.element in {"str", "bool"} and found["choices"] is None:
        raise ValueError(f"{plain.name} is {_KINDS[plain.type]}, which has no range")
    low, high = (_element(plain, found[side]) if found[side] else None for side in ("low", "high"))
    return replace(
        plain,
        help=found["help"],
        minimum=low,
        maximum=high,
        choices=tuple(_element(plain, choice) for choice in choices if choice),
        unit=found["unit"] or "",
        may_be_empty=plain.may_be_empty or "" in choices or found["none"] is not None,
    )


def checked(
    study: str, parameters: Sequence[Parameter], given: Mapping[str, object]
) -> dict[str, Any]:
    """The value of every parameter, given or default, by name in order.

    Given values may be text, as on the command line, or of the declared type.  Raises StudyError
    for an unknown name, a value of another type, or one out of its limits.
    """
    by_name = {parameter.name: parameter for parameter in parameters}
    for name in given:
        if name not in by_name:
            raise StudyError(printable(_unknown(study, name, list(by_name))))
    try:
        return {
            name: _value(parameter, given.get(name, parameter.default))
            for name, parameter in by_name.items()
        }
    except ValueError as error:
        raise StudyError(printable(f"{study}: {error}.")) from None


def study_parameters(study: str, namespace: MutableMapping[str, Any]) -> dict[str, Any]:
    """The study's parameters in ``namespace``, a notebook's ``globals()``, checked.

    Values by ``papermill -p`` or typed into the cell meet the same checks.  The checked values
    replace those in ``namespace``, as papermill reads ``-p server 17`` as a number.  Raises
    StudyError as ``checked`` does.
    """
    parameters = declared(find_room(study).notebook)
    present = {p.name: namespace[p.name] for p in parameters if p.name in namespace}
    values = checked(study, parameters, present)
    namespace.update(values)
    if Address.parse(str(values.get("server", ""))).secrets:
        notice(
            "This notebook now holds the password of the server: to keep it out, set "
            "PGSTUDIES_SERVER to the address instead of the parameter server."
        )
    return values


def parameter_table(study: str, values: Mapping[str, object]) -> pl.DataFrame:
    """The parameters of a run for readers: parameter, value, and what it means."""
    known = declared(find_room(study).notebook)
    rows = [(p.name, spelled(values[p.name]), p.help) for p in known if p.name in values]
    columns = dict.fromkeys(["parameter", "value", "what it is"], pl.String())
    return pl.DataFrame(rows, schema=columns, orient="row")


def spelled(value: object) -> str:
    """The value as ``-p name=value`` takes it; large numbers in groups of three digits."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) >= 10_000:
        return f"{value:_}"
    return ",".join(map(spelled, value)) if isinstance(value, (list, tuple)) else str(value)


def _unknown(study: str, name: str, names: list[str]) -> str:
    if not names:
        return f"{study} has no parameters, so {name} cannot be set."
    near = difflib.get_close_matches(name, names, n=1)
    meant = f"did you mean {near[0]}? It" if near else "it"
    return f"{study} has no parameter {name}; {meant} has {listed(names)}."


def _value(parameter: Parameter, given: object) -> object:
    """``given`` as a value of the declared type, or ValueError with the sentence to show."""
    if parameter.element == parameter.type:
        return _within(parameter, _element(parameter, given))
    if isinstance(given, str):  # as typed, or as JSON has it
        given = [part.strip(' "') for part in given.strip("[] ").split(",") if part.strip()]
    if not isinstance(given, (list, tuple)):
        raise _wrong_type(parameter, given)
    values = [_within(parameter, _element(parameter, part)) for part in given]
    if not values and not parameter.may_be_empty:
        raise ValueError(f"{parameter.name} must have at least one value")
    for number, value in enumerate(values):
        if value in values[:number]:
            raise ValueError(f"{parameter.name} has {spelled(value)} twice: give it once")
    return values


def _element(parameter: Parameter, given: object) -> Any:
    value = given.strip() if isinstance(given, str) else given
    try:
        if parameter.element in {"int", "float"} and isinstance(value, str):
            digits = value.lstrip("+-").replace("_", "").isdecimal()
            value = int(value) if digits else float(value)  # 1e6 is a whole number, too
        elif parameter.element == "str" and type(value) in {int, float}:
            value = str(value)  # papermill reads `-p server 16` as a number
        return msgspec.convert(value, _ELEMENTS[parameter.element], strict=False)
    except (ValueError, msgspec.ValidationError):
        raise _wrong_type(parameter, given) from None


def _within(parameter: Parameter, value: Any) -> Any:
    allowed = (
        value in parameter.choices
        if parameter.choices
        else (parameter.minimum is None or value >= parameter.minimum)
        and (parameter.maximum is None or value <= parameter.maximum)
    )
    if not allowed:
        limits = parameter.limits
        raise ValueError(f"{parameter.name} must be {limits}, and {spelled(value)} is not")
    return value


def _wrong_type(parameter: Parameter, given: object) -> ValueError:
    value_text = f'"{given}"' if isinstance(given, str) else repr(given)
    return ValueError(f"{parameter.name} must be {_KINDS[parameter.type]}, and {value_text} is not")


def listed(names: Sequence[str], conjunction: str = "and") -> str:
    """One or more names in words: ``a, b and c``."""
    *others, last = names
    return f"{', '.join(others)} {conjunction} {last}" if others else last
