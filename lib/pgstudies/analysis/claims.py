"""The claims of the posts, as each study's ``claims.toml`` has them."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

import polars as pl

from pgservers import paths
from pgservers.errors import StudyError

from ..records.verdicts import read_verdicts, verdict_files
from ..rooms import find_room, rooms
from .agreement import NO_SUCH, NOT_TESTED, UPWARD, Claim, Direction, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..records.reading import Record
    from ..rooms import Room


_TEXTS = ("id", "name", "text", "source", "kind", "direction", "judged_by")


_FILE = "claims.toml"


_KEYS = {*_TEXTS, "comparison"}


_OPTIONAL = {"published_ratio", "threshold", "not_tested", "today", "requires", "size"}


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
    record: Record | None = None,
) -> list[Claim]:
    """The claims of a study for one run, in the file's order.

    A claim that has been changed since ``record`` was begun has that record's version of it as
    ``then``, where the record has the rules it was begun with.

    ``places`` fills the placeholders; ``published`` has, by id, the published ratios at the size of
    this run where that is not the post's, None where the post gives none; ``not_tested`` says why
    this run tests no claim; of a single one the file may say so.  Raises StudyError for an unknown
    study, an id of ``published`` that is not one of its claims, a placeholder without a value, and
    a file that is not as it should be.
    """
    own = _entries(study)
    if not own:
        raise StudyError(f"{study} has no claims; the studies with claims: {', '.join(origins())}.")
    ratios = dict(published or {})
    unknown = ratios.keys() - {entry["id"] for entry in own}
    if unknown:
        raise StudyError(
            f"{study} has no claim {min(unknown)!r}; its claims are: "
            f"{', '.join(entry['id'] for entry in own)}."
        )
    then = {rule["id"]: rule for rule in (record.info.get("rules", []) if record else [])}
    current = {rule["id"]: rule for rule in rules(study)}
    found = []
    for entry in own:
        ratio = ratios.get(entry["id"], entry.get("published_ratio"))
        claim = _claim(entry, places or {}, ratio, not_tested)
        rule = then.get(entry["id"])
        if rule is not None and rule != current[entry["id"]]:
            claim = replace(claim, then=_as_begun(entry, rule, places or {}, ratios, not_tested))
        found.append(claim)
    return found


def _claim(
    entry: Mapping[str, Any],
    places: Mapping[str, object],
    ratio: float | None,
    not_tested: str | None,
) -> Claim:
    return Claim(
        entry["id"],
        entry["text"],
        _filled(entry["source"], entry, places),
        entry["direction"],
        ratio,
        entry["judged_by"],
        _comparison(entry, places),
        kind=entry["kind"],
        threshold=entry.get("threshold"),
        not_tested=not_tested or entry.get("not_tested"),
        requires=tuple(entry.get("requires", ())),
        size=entry.get("size"),
    )


def _as_begun(
    entry: Mapping[str, Any],
    rule: Mapping[str, Any],
    places: Mapping[str, object],
    ratios: Mapping[str, float | None],
    not_tested: str | None,
) -> Claim:
    """The claim by the rule that a record was begun with; the words of a rule are not kept."""
    old = {"text": entry["text"], **rule}
    ratio = ratios.get(entry["id"], old.get("published_ratio"))
    try:
        return _claim(old, places, ratio, not_tested)
    except StudyError as error:
        reason = f"today's page cannot judge it ({str(error).rstrip('.')})"
        return _claim(dict(entry), places, ratio, reason)


def all_claims() -> pl.DataFrame:
    """Every claim at the post's own size, in the file's order.

    Columns: study, claim, name, text, source, kind, direction, judged_by, published_ratio (null
    where the post gives no figure), threshold (null where the claim names none); then as text, and
    null where the claim does not name it: step, case, baseline, candidate.
    """
    rows = []
    for study, origin in origins().items():
        for entry in _entries(study):
            row = {name: entry.get(name) for name in (*_TEXTS, "published_ratio", "threshold")}
            source = _filled(entry["source"], entry, origin.places)
            row |= {"study": study, "claim": entry["id"], "source": source}
            named = _comparison(entry, origin.places)
            rows.append(row | {name: str(named[name]) for name in _COMPARED if name in named})
    texts = ["study", "claim", *_TEXTS[1:]]
    schema: dict[str, pl.DataType] = dict.fromkeys(texts, pl.String())
    schema |= dict.fromkeys(["published_ratio", "threshold"], pl.Float64())
    return pl.DataFrame(rows, schema=schema | dict.fromkeys(_COMPARED, pl.String()))


def requirements(study: str) -> list[str]:
    """What the claims of a study require of a server, each once; none for one without claims."""
    return list(dict.fromkeys(r for entry in _entries(study) for r in entry.get("requires", ())))


def rules(study: str) -> list[dict[str, Any]]:
    """What the verdicts on the claims of a study depend on: its entries, but for words to read."""
    return [
        {key: value for key, value in entry.items() if key not in {"name", "text", "today"}}
        for entry in _entries(study)
    ]


def claim_marks(study: str) -> dict[str, str]:
    """A digest of each claim's rule, by id: a record has those of before its first block."""
    texts = {rule["id"]: json.dumps(rule, sort_keys=True) for rule in rules(study)}
    return {name: hashlib.sha256(text.encode()).hexdigest()[:12] for name, text in texts.items()}


def claims_changed(study: str, marks: Mapping[str, str] | None) -> list[str] | None:
    """The claims that have come or been changed since a record was begun; None: it does not say."""
    if marks is None:
        return None
    return [name for name, mark in claim_marks(study).items() if marks.get(name) != mark]


def never_matched(study: str) -> list[str]:
    """The claims of a study that fit no row of any record that was judged: reference, or newest.

    A run may lack a comparison; one that all of them lack is misspelt.
    """
    kept = sorted((paths.JUDGED / study).glob("*.json"), key=lambda f: f.stat().st_mtime)
    files = [*verdict_files(study), *kept[-1:]]
    found = [read_verdicts(file).select("claim", "verdict") for file in files]
    if not found:
        return []
    is_missing = (pl.col("verdict") == f"{NOT_TESTED}: {NO_SUCH}").all()
    missing = pl.concat(found).group_by("claim").agg(is_missing).filter("verdict")["claim"]
    return [entry["id"] for entry in _entries(study) if entry["id"] in missing]


_FIGURES = {
    f"{name}{unit}": "2"
    for name in ("published", "now", "low", "high")
    for unit in ("", "_percent")
}


def headlines(study: str) -> list[dict[str, str]]:
    """The study's answer, in sentences: of each the id of its claim, and its text.

    The text has places for {published}, {now}, {low} and {high}, as "2.2" times, or as "25" per
    cent with {now_percent} and so on.  Raises StudyError for a file that is not as it should be.
    """
    room, known = find_room(study), [entry["id"] for entry in _entries(study)]
    wanted: list[dict[str, str]] = room.read(_FILE).get("headlines", [])
    try:
        told = [(one["claim"], one["text"].format(**_FIGURES)) for one in wanted]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        told = [("", "")]
    if any(claim not in known for claim, _ in told):
        raise StudyError(
            f"{room.directory / _FILE} is invalid: each of its headlines has the id of a claim "
            f"and a text with no other places than {', '.join(_FIGURES)}."
        )
    return wanted


def origins() -> dict[str, Origin]:
    """The studies that have claims, in the order of the book."""
    return {name: _origin(room) for name, room in rooms().items() if room.read(_FILE)}


def _origin(room: Room) -> Origin:
    found = room.read(_FILE)
    try:
        return Origin(
            title=room.about["title"],
            post=room.about["post"],
            anchor=found["anchor"],
            places=found.get("places", {}),
        )
    except KeyError as missing:
        raise StudyError(f"{room.directory} says nowhere its {missing.args[0]}.") from None


def _entries(study: str) -> list[dict[str, Any]]:
    """The claims of a study as its file has them, checked; none where it has no file."""
    room = find_room(study)
    entries: list[dict[str, Any]] = room.read(_FILE).get("claim", [])
    problem = "its claims are not tables [[claim]]"
    if isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries):
        ids = [entry.get("id") for entry in entries]
        twice = (f"the claim {i!r} stands there twice" for i in ids if ids.count(i) > 1)
        problem = next(filter(None, (*map(_problem, entries), *twice)), "")
    if problem:
        raise StudyError(f"{room.directory / _FILE} is invalid: {problem}.")
    return entries


def _problem(entry: Mapping[str, Any]) -> str | None:
    who = f"the claim {entry.get('id')!r}"
    if entry.keys() - _OPTIONAL != _KEYS:
        return f"{who} has not the keys {', '.join(sorted(_KEYS))}"
    ratio, kind, direction = entry.get("published_ratio"), entry["kind"], entry["direction"]
    threshold = entry.get("threshold")
    wrong = {
        f"{who} has a number where a text should be": not all(
            isinstance(entry[name], str)
            for name in (*_TEXTS, *(entry.keys() & {"not_tested", "size"}))
        ),
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
        f"what {who} requires is not a list of texts": not _are_texts(entry.get("requires", [])),
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


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


_WAYS = get_args(Direction)


_SAID = ("holds", "gone", "reversed")


def _is_today(today: object) -> bool:
    if not isinstance(today, dict) or not isinstance(today.get("about"), str):
        return False
    sentences = [today[word] for word in _SAID if word in today]
    try:
        [sentence.format(ratio="2", times="2", percent="3 %") for sentence in sentences]
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
    for entry in _entries(study):
        row = found.get(entry["id"])
        if "today" not in entry or row is None or row["ratio"] is None:
            continue
        today, outcome = entry["today"], row["verdict"].partition(",")[0]  # holds, weaker: holds
        if outcome in today:
            sentence = today[outcome].format(
                ratio=f"{row['ratio']:.3g}",
                times=_times(row["ratio"]),
                percent=f"{100 * abs(row['ratio'] - 1):.0f} %",
            )
            between = today.get("releases", (None, None))
            rows.append((study, entry["id"], today["about"], sentence, *between))
    schema: dict[str, pl.DataType] = dict.fromkeys(
        ["study", "claim", "about", "sentence"], pl.String()
    )
    schema |= dict.fromkeys(["before", "after"], pl.Float64())
    return pl.DataFrame(rows, schema=schema, orient="row", strict=False)


def _times(ratio: float) -> str:
    """How many times as many, as fast or as slow; two digits, or whole from 100 on."""
    times = max(ratio, 1 / ratio)
    return f"{times:.2g}" if times < 99.5 else f"{times:.0f}"


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
            f"The claim {entry['id']!r} has a place for {missing.args[0]}, "
            f"and the notebook gives no such value."
        ) from None
    except (ValueError, IndexError, AttributeError, TypeError):
        raise StudyError(
            f"The claim {entry['id']!r} has braces that are no place for a value: {value[:60]!r}; "
            f"write {{{{ and }}}} for braces."
        ) from None
