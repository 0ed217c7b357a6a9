"""The contents of record.json, with the type of each entry.

``info_in`` checks every file against ``Info``.  An entry that is ``NotRequired`` came with a later
format, or belongs to one kind of run.  An application that keeps more has a type of its own for it,
and checks it where it reads.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta

Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]

Time = Annotated[
    str, Meta(pattern=r"(?a)^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)\Z")
]

PartOfPath = Annotated[str, Meta(pattern=r"^\w[\w.-]*\Z")]

FileName = Annotated[
    str, Meta(pattern=r"^(record\.json|samples\.parquet|blocks/[\w-]+\.parquet)\Z")
]

Pair = Annotated[list[str | None], Meta(min_length=2, max_length=2)]


class ArmFacts(TypedDict):
    """An arm, as ``Design.describe`` gives it; ``of`` and ``side`` are those of a comparison."""

    name: str
    description: str
    baseline: bool
    copy_of: str | None
    not_run: str | None  # why; found out before or during the run
    state: NotRequired[str]
    settings: NotRequired[dict[str, str]]
    options: NotRequired[dict[str, Any]]  # the study's own
    server: NotRequired[str | None]  # None is the study's own server
    of: NotRequired[str]
    side: NotRequired[str]


class ServerFacts(TypedDict, total=False):
    """A server that ran, as ``server_facts`` gives it."""

    spec: str | None
    source: str | None
    stands_in: str | None
    programs: str | None  # their digest
    version: int
    version_text: str
    build: str | None
    cflags: str | None
    owned: bool
    elsewhere: bool
    superuser: bool
    contrib: list[str]
    nondefault_settings: list[dict[str, str | None]]
    unmet_settings: dict[str, Pair]  # by name: wanted, actual


class TimelineEntry(TypedDict):
    """When an arm's turns in a block began and ended (UTC), and how long they took (s)."""

    block: Count
    position: Count
    arm: str
    started_at: Time
    finished_at: Time
    busy_s: NotRequired[float]


class HostFacts(TypedDict, total=False):
    """The facts of a machine that are read."""

    hostname: str | None
    allowed_cores: list[int] | None


class LeftOut(TypedDict):
    """A step that a procedure left out, and why."""

    arm: str
    step: str
    case: str
    reason: str


class GateFinding(TypedDict):
    """A finding before the run: what may disturb it."""

    name: str
    level: str
    sentence: str


class Session(TypedDict):
    """One session of the run; a continued run has several."""

    started_at: str
    boot_id: str | None


class Setup(TypedDict):
    """What is known before the first block; ``arms`` and servers are updated during the run."""

    parameters: dict[str, Any]
    arms: list[ArmFacts]
    blocks: Count  # wanted; fewer, where time was up
    gate: list[GateFinding]
    not_compared: list[str]
    server: ServerFacts
    host: dict[str, Any]  # as ``host_facts`` found them, ``HostFacts`` among them
    profile: NotRequired[str | None]
    fingerprint: NotRequired[str]  # of the conditions, then of the code
    code: NotRequired[dict[str, str]]  # digests of what the procedure reaches, by name
    settings: NotRequired[dict[str, str]]
    seed: NotRequired[int]
    sessions: NotRequired[list[Session]]
    limits: NotRequired[str | None]
    pinned_to_core: NotRequired[int | None]
    unmet: NotRequired[dict[str, str]]  # why, by requirement
    claims: NotRequired[dict[str, str]]  # digests of their rules
    rules: NotRequired[list[dict[str, Any]]]  # of the claims
    study_mark: NotRequired[str | None]  # digest of the study's code
    seen: NotRequired[list[str]]  # complete records alike that there were
    servers: NotRequired[dict[str, ServerFacts]]  # by the words that arms use
    packages: NotRequired[dict[str, str]]
    git: NotRequired[dict[str, str | bool] | None]


class Info(Setup):
    """The whole record: the setup, and what is added with every block."""

    study: PartOfPath
    status: Literal["running", "interrupted", "complete"]
    started_at: Time
    timeline: list[TimelineEntry]
    left_out: list[LeftOut]
    sha256: dict[FileName, str] | None  # by file; None in records of format 1
    format_version: NotRequired[int]
    finished_at: NotRequired[str | None]
    interrupted_by: NotRequired[str]
    groups: NotRequired[list[list[str]]]  # of arms that were up together
