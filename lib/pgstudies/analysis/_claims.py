"""The claims of the posts, as ``data/claims.toml`` has them, for notebooks and the scorecard."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import polars as pl

from .. import paths
from ..errors import StudyError
from .agreement import FAMILY, UPWARD, Claim, Direction, Kind
from .intervals import blocks_for_family

if TYPE_CHECKING:
    from collections.abc import Mapping


_TEXTS = ("study", "id", "name", "text", "source", "kind", "direction", "judged_by")


_KEYS = {*_TEXTS, "comparison"}


_OPTIONAL = {"published_ratio", "threshold", "not_tested", "today"}


_COMPARED = ("step", "case", "baseline", "candidate")


_WHOLE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Origin:
    """Where the claims of a study come from.

    Attributes:
        title: The study's name in words.
        post: Who published, and when.
        anchor: The place on the study's page that judges the claims.
        places: What goes into the placeholders at the post's own size.

    """

    title: str
    post: str
    anchor: str
    places: Mapping[str, object]


def claims(
    study: str,
    *,
    places: Mapping[str, object] | None = None,
    published: Mapping[str, float | None] | None = None,
    not_tested: str | None = None,
) -> list[Claim]:
    """The claims of a study for one run, in the file's order.

    ``places`` fills the placeholders; ``published`` has, by id, the published ratios at the size of
    this run where that is not the post's, None where the post gives none; ``not_tested`` says why
    this run tests no claim; of a single one the file may say so.  Raises StudyError for an unknown
    study, an id of ``published`` that is not one of its claims, a placeholder without a value, and
    a file that is not as it should be.
    """
    origins, entries = _read()
    if study not in origins:
        raise StudyError(
            f"{paths.CLAIMS.name} has no claims of {study}, but of {', '.join(origins)}."
        )
    own = [entry for entry in entries if entry["study"] == study]
    ratios = dict(published or {})
    unknown = ratios.keys() - {entry["id"] for entry in own}
    if unknown:
        raise StudyError(
            f"{study} has no claim {min(unknown)!r}; its claims are: "
            f"{', '.join(entry['id'] for entry in own)}."
        )
    return [
        Claim(
            entry["id"],
            entry["text"],
            _filled(entry["source"], entry, places or {}),
            entry["direction"],
            ratios.get(entry["id"], entry.get("published_ratio")),
            entry["judged_by"],
            _comparison(entry, places or {}),
            kind=entry["kind"],
            threshold=entry.get("threshold"),
            not_tested=not_tested or entry.get("not_tested"),
        )
        for entry in own
    ]


def all_claims() -> pl.DataFrame:
    """Every claim at the post's own size, in the file's order.

    Columns: study, claim, name, text, source, kind, direction, judged_by, published_ratio (null
    where the post gives no figure), threshold (null where the claim names none); then as text, and
    null where the claim does not name it: step, case, baseline, candidate.
    """
    origins, entries = _read()
    rows = []
    for entry in entries:
        places = origins[entry["study"]].places
        row = {name: entry.get(name) for name in (*_TEXTS, "published_ratio")}
        row |= {"claim": entry["id"], "source": _filled(entry["source"], entry, places)}
        row["threshold"] = entry.get("threshold")
        named = _comparison(entry, places)
        rows.append(row | {name: str(named[name]) for name in _COMPARED if name in named})
    texts = ["study", "claim", *_TEXTS[2:]]
    schema: dict[str, pl.DataType] = dict.fromkeys(texts, pl.String())
    schema |= dict.fromkeys(["published_ratio", "threshold"], pl.Float64())
    return pl.DataFrame(rows, schema=schema | dict.fromkeys(_COMPARED, pl.String()))


def blocks_for_claims(study: str) -> int | None:
    """The blocks below which a run of the study can judge none of its claims of a difference.

    See ``blocks_for_family``; None for a study without claims.
    """
    _, entries = _read()
    own = [entry for entry in entries if entry["study"] == study]
    tested = [entry for entry in own if "not_tested" not in entry]
    return blocks_for_family(sum(e["kind"] in FAMILY for e in tested)) if own else None


def rules(study: str) -> list[dict[str, Any]]:
    """What the verdicts on the claims of a study depend on: its entries, but for words to read."""
    return [
        {key: value for key, value in entry.items() if key not in {"name", "text", "today"}}
        for entry in _read()[1]
        if entry["study"] == study
    ]


def origins() -> dict[str, Origin]:
    """The studies that have claims, in the file's order."""
    return _read()[0]


def _read() -> tuple[dict[str, Origin], list[dict[str, Any]]]:
    """What the file says, checked."""
    try:
        found = tomllib.loads(paths.CLAIMS.read_text(encoding="utf-8"))
        origins = {name: Origin(**about) for name, about in found["study"].items()}
        entries: list[dict[str, Any]] = found["claim"]
        problem = next(filter(None, (_problem(entry, origins) for entry in entries)), None)
    except (OSError, KeyError, TypeError, AttributeError, tomllib.TOMLDecodeError) as error:
        raise StudyError(f"{paths.CLAIMS} cannot be read as claims: {error}.") from None
    keys = [(entry.get("study"), entry.get("id")) for entry in entries]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice and not problem:
        problem = f"{twice[0]} has the claim {twice[1]!r} twice"
    if problem:
        raise StudyError(f"{paths.CLAIMS} is not as it should be: {problem}.")
    return origins, entries


def _problem(entry: Mapping[str, Any], origins: Mapping[str, Origin]) -> str | None:
    who = f"the claim {entry.get('id')!r}"
    if entry.keys() - _OPTIONAL != _KEYS:
        return f"{who} has not the keys {', '.join(sorted(_KEYS))}"
    ratio, kind, direction = entry.get("published_ratio"), entry["kind"], entry["direction"]
    threshold = entry.get("threshold")
    wrong = {
        f"{who} has a number where a text should be": not all(
            isinstance(entry[name], str) for name in (*_TEXTS, *(entry.keys() & {"not_tested"}))
        ),
        f"{who} is of {entry['study']}, which is no [study]": entry["study"] not in origins,
        f"the kind of {who} is none of {', '.join(get_args(Kind))}": kind not in get_args(Kind),
        f"the direction of {who} is none of {', '.join(_WAYS)}": direction not in _WAYS,
        f"{who} is alike in its kind or its direction, but not in both": (
            (kind == "alike") != (direction == "alike")
        ),
        f"the published_ratio of {who} is not a number above 0, with a decimal point": (
            ratio is not None and (not isinstance(ratio, float) or ratio <= 0)
        ),
        f"{who} has neither published_ratio nor threshold": (
            ratio is None and threshold is None and kind != "alike"
        ),
        f"the comparison of {who} is not a table": not isinstance(entry["comparison"], dict),
        f"the comparison of {who} names the metric, which is the key judged_by": (
            isinstance(entry["comparison"], dict) and "metric" in entry["comparison"]
        ),
        f"today of {who} is not about something with a sentence for an outcome": not _is_today(
            entry.get("today", {"about": "", "holds": ""})
        ),
        f"{who} has no threshold, which its kind needs": kind == "threshold" and threshold is None,
        f"{who} has a threshold, and its kind has none": (
            kind in ("direction", "alike") and threshold is not None
        ),
    }
    if threshold is not None:
        is_number = isinstance(threshold, float) and threshold > 0
        wrong[f"the threshold of {who} is not a number on its direction's side of 1"] = (
            not is_number or threshold == 1 or (threshold > 1) != (direction in UPWARD)
        )
    return next((problem for problem, is_so in wrong.items() if is_so), None)


_WAYS = get_args(Direction)


_SAID = ("holds", "gone", "reversed")


def _is_today(today: object) -> bool:
    if not isinstance(today, dict) or not isinstance(today.get("about"), str):
        return False
    sentences = [today[word] for word in _SAID if word in today]
    try:
        [sentence.format(ratio="2", percent="3 %") for sentence in sentences]
    except (AttributeError, IndexError, KeyError, ValueError):
        return False
    releases = today.get("releases", [0, 1])
    is_pair = isinstance(releases, list) and len(releases) == 2
    return bool(sentences) and is_pair and not today.keys() - {"about", "releases", *_SAID}


def meanings(study: str, judged: pl.DataFrame) -> pl.DataFrame:
    """What the verdicts on a study's claims mean for whoever runs a server, in the file's order.

    ``judged`` is the table of ``judge``.  Columns: study, claim, about, sentence, before and after:
    the releases that a change lies between, null where it is not one of a release.  A verdict on
    which there is nothing to say has no row.
    """
    found = {row["claim"]: row for row in judged.iter_rows(named=True)}
    rows = []
    for entry in _read()[1]:
        row = found.get(entry["id"])
        if entry["study"] != study or "today" not in entry or row is None or row["ratio"] is None:
            continue
        today, outcome = entry["today"], row["verdict"].partition(",")[0]  # holds, weaker: holds
        if outcome in today:
            sentence = today[outcome].format(
                ratio=f"{row['ratio']:.3g}", percent=f"{100 * abs(row['ratio'] - 1):.0f} %"
            )
            between = today.get("releases", (None, None))
            rows.append((study, entry["id"], today["about"], sentence, *between))
    schema: dict[str, pl.DataType] = dict.fromkeys(
        ["study", "claim", "about", "sentence"], pl.String()
    )
    schema |= dict.fromkeys(["before", "after"], pl.Float64())
    return pl.DataFrame(rows, schema=schema, orient="row", strict=False)


def _comparison(entry: Mapping[str, Any], places: Mapping[str, object]) -> dict[str, object]:
    return {name: _filled(value, entry, places) for name, value in entry["comparison"].items()}


def _filled(value: Any, entry: Mapping[str, Any], places: Mapping[str, object]) -> Any:
    """A text with its placeholders filled; one that is all placeholder becomes the value itself."""
    if not isinstance(value, str):
        return value
    whole = _WHOLE.fullmatch(value)
    try:
        return places[whole[1]] if whole else value.format_map(places)
    except KeyError as missing:
        raise StudyError(
            f"The claim {entry['id']!r} of {entry['study']} has a place for {missing.args[0]}, "
            f"and the notebook gives no such value."
        ) from None
