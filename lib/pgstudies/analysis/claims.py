"""The claims of the posts, as each study's ``claims.toml`` has them."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import polars as pl
from msgspec import Meta

from pgservers.errors import StudyError

from ..checking import checked
from ..rooms import find_room, rooms
from .agreement import UPWARD, Claim, Direction, Kind, ratio_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..rooms import Room

_TEXTS = ("id", "name", "text", "source", "kind", "direction", "judged_by")
_COMPARED = ("step", "case", "baseline", "candidate")
_WHOLE = re.compile(r"\{(\w+)\}")

_SPOKEN = {True: ("percent_more",), False: ("times_as_fast", "percent_less"), None: ()}
"""Further forms of a ratio in sentences, if it is above 1, below 1, or may be either."""

_FIGURES = ("published", "now", "low", "high")


def figures(**ratios: float) -> dict[str, str]:
    """Ratios in the forms that sentences use: name, name_times_as_fast, …; *ratio* has no prefix.

    Low and high change places in forms that fall as the ratio rises.
    """
    found: dict[str, float] = {}
    for name, ratio in ratios.items():
        turned = ratios[{"low": "high", "high": "low"}.get(name, name)]
        prefix = "" if name == "ratio" else f"{name}_"
        found |= {name: ratio, f"{prefix}percent_more": 100 * (ratio - 1)}
        found |= {f"{prefix}times_as_fast": 1 / turned, f"{prefix}percent_less": 100 * (1 - turned)}
    return {name: ratio_text(value) for name, value in found.items()}


def _misplaced(text: str, places: Iterable[str]) -> str | None:
    """What is wrong with a sentence if it has other placeholders than ``places``; else None."""
    try:
        text.format(**dict.fromkeys(places, "2"))
    except (AttributeError, IndexError, KeyError, ValueError):
        return f"may have no other places than {', '.join(f'{{{name}}}' for name in places)}"
    return None


class Today(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a claim means for a DBA."""

    about: str
    holds: str | None = None
    gone: str | None = None
    reversed: str | None = None
    releases: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not any((self.holds, self.gone, self.reversed)):
            raise ValueError("must say what it means: it has neither holds, gone nor reversed")


class Entry(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A claim as its file has it; ``claims.toml`` of the template explains the keys."""

    id: str
    name: str
    text: str
    source: str
    kind: Kind
    direction: Direction
    published_ratio: Annotated[float, Meta(gt=0)] | None = None
    threshold: Annotated[float, Meta(gt=0)] | None = None
    judged_by: str
    comparison: dict[str, Any]
    by_commit: dict[str, Any] = {}
    not_tested: str | None = None
    today: Today | None = None
    requires: list[str] = []
    size: str | None = None
    beyond: bool = False

    def __post_init__(self) -> None:
        kind, threshold = self.kind, self.threshold
        rules = {
            "is alike in its kind or its direction, but not in both": (
                (kind == "alike") == (self.direction == "alike")
            ),
            "names the metric in its comparison, which is the key judged_by": (
                "metric" not in self.comparison
            ),
            "has no threshold, which its kind needs": kind != "threshold" or threshold is not None,
            "has a threshold, and its kind has none": (
                kind in {"threshold", "count"} or threshold is None
            ),
            "has a threshold that is not on its direction's side of 1": threshold is None
            or (threshold != 1 and (threshold > 1) == (self.direction in UPWARD)),
        }
        for wrong, is_kept in rules.items():
            if not is_kept:
                raise ValueError(wrong)
        above, always = self.above, ("ratio", "baseline", "candidate")
        against = None if above is None else not above
        for outcome, side in (("holds", above), ("gone", None), ("reversed", against)):
            forms = _SPOKEN[side] or ("difference",)
            text = getattr(self.today, outcome, None) or ""
            if misplaced := _misplaced(text, (*always, *forms)):
                raise ValueError(f"has a sentence in today, for {outcome}, that {misplaced}")

    @property
    def above(self) -> bool | None:
        """Whether the ratio is above 1 where the claim holds; None where it may be either."""
        return None if self.direction == "alike" else self.direction in UPWARD

    @property
    def is_side(self) -> bool:
        """Whether it claims a direction, and no figure."""
        return self.kind != "alike" and self.published_ratio is None and self.threshold is None

    def needs(self, name: str) -> bool:
        """Whether the claim requires this, or compares by it."""
        return name in self.requires or name in self.comparison.values()


class Headline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sentence of a study's answer, with the id of the claim that it is about."""

    claim: str
    text: str


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of a ``claims.toml``."""

    anchor: str
    places: dict[str, Any] = {}
    stand_ins: dict[str, str] = {}
    commit: str | None = None
    replaces: list[str] = []
    headlines: list[Headline] = []
    claim: list[Entry] = []

    def __post_init__(self) -> None:
        ids = [entry.id for entry in self.claim]
        for name in ids:
            if ids.count(name) > 1:
                raise ValueError(f"has the claim {name!r} twice")
        entries = {entry.id: entry for entry in self.claim}
        for headline in self.headlines:
            entry = entries.get(headline.claim)
            if entry is None:
                raise ValueError(f"has a headline of a claim {headline.claim!r}, and no such claim")
            known = _FIGURES[entry.published_ratio is None :]
            forms = [f"{name}_{form}" for name in known for form in _SPOKEN[entry.above]]
            if wrong := _misplaced(headline.text, [*known, *forms]):
                raise ValueError(f"has a headline of the claim {entry.id!r} that {wrong}")
        for name in self.stand_ins:
            if not any(entry.needs(name) for entry in self.claim):
                raise ValueError(f"has a stand-in {name!r}, which no claim requires or compares")
        if any(entry.by_commit for entry in self.claim) and not self.commit:
            raise ValueError("has claims with by_commit, and names no commit")


@dataclass(frozen=True)
class Origin:
    """The source of a study's claims."""

    title: str  # the study's name in words
    post: str  # who published, and when
    anchor: str  # the place on the study's page that judges the claims
    places: Mapping[str, object]  # what goes into the placeholders at the post's own size
    stand_ins: Mapping[str, str]  # by what a claim requires or compares
    commit: str | None  # that claims are judged by where a run has it
    replaces: tuple[str, ...]  # stand-ins and requirements that are not needed with the commit


def claims(
    study: str,
    *,
    places: Mapping[str, object] = {},
    published: Mapping[str, float | None] = {},
    not_tested: str | None = None,
) -> list[Claim]:
    """The claims of a study for one run, in the file's order.

    A claim with ``by_commit`` also has that form, for runs with the commit's servers.

    ``places`` fills the placeholders.  ``published`` has, by id, published ratios at the size of
    this run, if it is not the post's, or None if the post gives none.  ``not_tested`` says why this
    run tests no claim.  Raises StudyError for an unknown study, an id in ``published`` that is no
    claim's, a placeholder without a value, and an invalid file.
    """
    file = _file(find_room(study))
    own = file.claim if file else []
    if file is None or not own:
        raise StudyError(f"{study} has no claims; the studies with claims: {', '.join(origins())}.")
    if unknown := published.keys() - {entry.id for entry in own}:
        known = ", ".join(entry.id for entry in own)
        raise StudyError(f"{study} has no claim {min(unknown)!r}; its claims are: {known}.")

    def made(entry: Entry, why: str | None) -> Claim:
        claim = Claim(
            entry.id,
            entry.text,
            _filled(entry.source, entry, places),
            entry.direction,
            published.get(entry.id, entry.published_ratio),
            entry.judged_by,
            _comparison(entry, places),
            kind=entry.kind,
            threshold=entry.threshold,
            is_side=entry.is_side,
            not_tested=why or entry.not_tested,
            requires=tuple(entry.requires),
            size=entry.size,
        )
        if not entry.by_commit:
            return claim
        of_commit = replace(
            claim,
            comparison={**claim.comparison, **_filled_all(entry.by_commit, entry, places)},
            requires=tuple(name for name in entry.requires if name not in file.replaces),
            not_tested=why,
            commit=file.commit,
        )
        return replace(claim, by_commit=of_commit)

    return [made(entry, not_tested) for entry in own]


def all_claims() -> pl.DataFrame:
    """Every claim at the post's own size, in the file's order.

    Columns: study, claim, name, text, source, kind, direction, judged_by, published_ratio (null
    where the post gives no figure), threshold (null where the claim names none); step, case,
    baseline, candidate (text, null where the claim does not name it); stand_in, sentences on what
    stands in for what the post had, or null, and with_commit, the same where the commit judges;
    beyond, whether no post makes the claim.
    """
    rows = [
        {name: getattr(entry, name) for name in (*_TEXTS, "published_ratio", "threshold")}
        | {"study": study, "claim": entry.id, "source": _filled(entry.source, entry, origin.places)}
        | {k: str(v) for k, v in _comparison(entry, origin.places).items() if k in _COMPARED}
        | {
            "stand_in": _stood(entry, origin),
            "with_commit": _stood(entry, origin, but=origin.replaces),
            "beyond": entry.beyond,
        }
        for study, origin in origins().items()
        for entry in _entries(study)
    ]
    texts = ["study", "claim", *_TEXTS[1:]]
    schema: dict[str, pl.DataType] = dict.fromkeys(texts, pl.String())
    schema |= dict.fromkeys(["published_ratio", "threshold"], pl.Float64())
    more = [*_COMPARED, "stand_in", "with_commit"]
    schema |= dict.fromkeys(more, pl.String())
    return pl.DataFrame(rows, schema=schema | {"beyond": pl.Boolean()})


def _stood(entry: Entry, origin: Origin, but: Sequence[str] = ()) -> str | None:
    """Sentences on the stand-ins that a claim needs, except those in ``but``; None without any."""
    named = [
        text for name, text in origin.stand_ins.items() if entry.needs(name) and name not in but
    ]
    return " ".join(named) or None


def requirements(study: str) -> list[str]:
    """What the claims of a study require of a server, each once; none for one without claims."""
    return list(dict.fromkeys(r for entry in _entries(study) for r in entry.requires))


def rules(study: str) -> list[dict[str, Any]]:
    """What the verdicts on a study's claims depend on: its entries without words for readers."""
    words = {"name", "text", "today", "beyond"}
    return [
        {key: value for key, value in entry.items() if key not in words}
        for entry in msgspec.to_builtins(_entries(study))
    ]


def claim_marks(study: str) -> dict[str, str]:
    """A digest of each claim's rule, by id; a record keeps those from before its first block."""
    texts = {
        # Which a record without the commit's servers is not judged by.
        rule["id"]: json.dumps({k: v for k, v in rule.items() if k != "by_commit"}, sort_keys=True)
        for rule in rules(study)
    }
    return {name: hashlib.sha256(text.encode()).hexdigest()[:12] for name, text in texts.items()}


def claims_changed(study: str, marks: Mapping[str, str] | None) -> list[str] | None:
    """The claims that are new or changed since a record was begun; None if it does not say."""
    if marks is None:
        return None
    return [name for name, mark in claim_marks(study).items() if marks.get(name) != mark]


def headlines(study: str) -> list[Headline]:
    """The study's answer, in sentences.  Raises StudyError for an invalid file."""
    file = _file(find_room(study))
    return file.headlines if file else []


def origins() -> dict[str, Origin]:
    """The studies that have claims, in the order of the book."""
    files = {room: _file(room) for room in rooms().values()}
    return {room.name: _origin(room, file) for room, file in files.items() if file}


def _origin(room: Room, file: File) -> Origin:
    try:
        about = (room.about["title"], room.about["post"])
    except KeyError as missing:
        raise StudyError(f"sizes.toml in {room.directory} lacks {missing.args[0]}.") from None
    return Origin(
        *about, file.anchor, file.places, file.stand_ins, file.commit, tuple(file.replaces)
    )


def _file(room: Room) -> File | None:
    """The claims of a room, checked; None where there are none."""
    found = room.read("claims.toml")
    return checked(found, File, f"{room.directory}/claims.toml is invalid") if found else None


def _entries(study: str) -> list[Entry]:
    file = _file(find_room(study))
    return file.claim if file else []


def meanings(study: str, judged: pl.DataFrame) -> pl.DataFrame:
    """What the verdicts on a study's claims mean for a DBA, in the file's order.

    ``judged`` is the table of ``judge``.  Columns: study, claim, about, sentence, before and after:
    the releases that a change lies between, or null.  A verdict that means nothing has no row.
    """
    found = {row["claim"]: row for row in judged.iter_rows(named=True)}
    rows = []
    for entry in _entries(study):
        row, today = found.get(entry.id), entry.today
        if today is None or row is None:
            continue
        # A commit of long ago tells nothing of the server at hand.
        if row.get("commit"):
            own = {side: str(entry.comparison.get(side)) for side in ("baseline", "candidate")}
            row = {**own, "verdict": row["stood_in_verdict"], "ratio": row["stood_in"]}
        verdict, ratio = row["verdict"], row["ratio"]
        if verdict is None or ratio is None:
            continue
        outcome = verdict.partition(",")[0]  # holds, weaker: holds
        if text := getattr(today, outcome, None):
            told, way = figures(ratio=ratio), "more" if ratio > 1 else "less"
            told["difference"] = f"{told[f'percent_{way}']} % {way}"
            told |= {side: row[side] for side in ("baseline", "candidate")}
            between = today.releases or (None, None)
            rows.append((study, entry.id, today.about, text.format(**told), *between))
    texts = dict.fromkeys(["study", "claim", "about", "sentence"], pl.String())
    schema = {**texts, **dict.fromkeys(["before", "after"], pl.Float64())}
    return pl.DataFrame(rows, schema=schema, orient="row", strict=False)


def _comparison(entry: Entry, places: Mapping[str, object]) -> dict[str, object]:
    return _filled_all(entry.comparison, entry, places)


def _filled_all(
    values: Mapping[str, Any], entry: Entry, places: Mapping[str, object]
) -> dict[str, object]:
    return {name: _filled(value, entry, places) for name, value in values.items()}


def _filled(value: Any, entry: Entry, places: Mapping[str, object]) -> Any:
    """A text with its placeholders filled; one that is all placeholder becomes the value itself."""
    if not isinstance(value, str):
        return value
    whole = _WHOLE.fullmatch(value)
    try:
        return places[whole[1]] if whole else value.format_map(places)
    except KeyError as missing:
        raise StudyError(
            f"The claim {entry.id!r} has a place for {missing.args[0]}, "
            f"and the notebook gives no such value."
        ) from None
    except (ValueError, IndexError, AttributeError, TypeError):
        raise StudyError(
            f"The claim {entry.id!r} has braces that are no place for a value: {value[:60]!r}; "
            f"write {{{{ and }}}} for braces."
        ) from None
