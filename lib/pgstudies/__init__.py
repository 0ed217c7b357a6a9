"""PostgreSQL performance studies, reproduced: the helper library of the notebooks.

The names here are those that notebooks use.  Each is imported when it is first asked for, so that
the command line starts without polars and Altair.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agreement import Claim, judge
    from .arms import Arm
    from .charts import block_chart, effect_chart, save, series_chart
    from .claimfile import claims
    from .cold import cache_state
    from .concurrent import concurrently
    from .diagnostics import diagnose
    from .disks import disk_read_bytes, scheduled
    from .dots import dot_chart
    from .effectmap import effect_map
    from .effects import paired_effects
    from .errors import CannotRun, StudyError
    from .extensions import Extension, extension
    from .instrument import instrument_checks
    from .instrumentpage import display_checks, instrument_markup, read_checks
    from .limits import limited, reason_no_limits
    from .links import downloads
    from .locales import libc_locale
    from .measuring import measure
    from .pairing import block_values
    from .parameters import study_parameters
    from .planning import smallest_detectable
    from .posts import published, published_source
    from .records import Record, find_record, list_records, read_record
    from .releases import reason_not_available
    from .scanchart import scan_chart
    from .scorecards import scorecard
    from .scorechart import history_chart, score_chart
    from .scoretable import history_table, score_table
    from .scoretext import in_sentence
    from .servers import serve
    from .sessions import (
        conninfo,
        hold_transactions,
        room_for_sessions,
        session_cpu_seconds,
        unpinned,
    )
    from .shares import deviations, share_table
    from .snapshots import require_space
    from .steadiness import watched
    from .syncscan import block_of, reason_not_in_step
    from .transactions import pgbench, require_pgbench
    from .trial import Trial
    from .verdicts import describe

_HOMES = {
    "agreement": ["Claim", "judge"],
    "arms": ["Arm"],
    "charts": ["block_chart", "effect_chart", "save", "series_chart"],
    "claimfile": ["claims"],
    "cold": ["cache_state"],
    "concurrent": ["concurrently"],
    "diagnostics": ["diagnose"],
    "disks": ["disk_read_bytes", "scheduled"],
    "dots": ["dot_chart"],
    "effectmap": ["effect_map"],
    "effects": ["paired_effects"],
    "errors": ["CannotRun", "StudyError"],
    "extensions": ["Extension", "extension"],
    "instrument": ["instrument_checks"],
    "instrumentpage": ["display_checks", "instrument_markup", "read_checks"],
    "limits": ["limited", "reason_no_limits"],
    "links": ["downloads"],
    "locales": ["libc_locale"],
    "measuring": ["measure"],
    "pairing": ["block_values"],
    "parameters": ["study_parameters"],
    "planning": ["smallest_detectable"],
    "posts": ["published", "published_source"],
    "records": ["Record", "find_record", "list_records", "read_record"],
    "releases": ["reason_not_available"],
    "scanchart": ["scan_chart"],
    "scorecards": ["scorecard"],
    "scorechart": ["history_chart", "score_chart"],
    "scoretable": ["history_table", "score_table"],
    "scoretext": ["in_sentence"],
    "servers": ["serve"],
    "sessions": [
        "conninfo",
        "hold_transactions",
        "room_for_sessions",
        "session_cpu_seconds",
        "unpinned",
    ],
    "shares": ["deviations", "share_table"],
    "snapshots": ["require_space"],
    "steadiness": ["watched"],
    "syncscan": ["block_of", "reason_not_in_step"],
    "transactions": ["pgbench", "require_pgbench"],
    "trial": ["Trial"],
    "verdicts": ["describe"],
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Arm",
    "CannotRun",
    "Claim",
    "Extension",
    "Record",
    "StudyError",
    "Trial",
    "block_chart",
    "block_of",
    "block_values",
    "cache_state",
    "claims",
    "concurrently",
    "conninfo",
    "describe",
    "deviations",
    "diagnose",
    "disk_read_bytes",
    "display_checks",
    "dot_chart",
    "downloads",
    "effect_chart",
    "effect_map",
    "extension",
    "find_record",
    "history_chart",
    "history_table",
    "hold_transactions",
    "in_sentence",
    "instrument_checks",
    "instrument_markup",
    "judge",
    "libc_locale",
    "limited",
    "list_records",
    "measure",
    "paired_effects",
    "pgbench",
    "published",
    "published_source",
    "read_checks",
    "read_record",
    "reason_no_limits",
    "reason_not_available",
    "reason_not_in_step",
    "require_pgbench",
    "require_space",
    "room_for_sessions",
    "save",
    "scan_chart",
    "scheduled",
    "score_chart",
    "score_table",
    "scorecard",
    "series_chart",
    "serve",
    "session_cpu_seconds",
    "share_table",
    "smallest_detectable",
    "study_parameters",
    "unpinned",
    "watched",
]


if "ipykernel" in sys.modules:  # in a notebook, tables are drawn in the book's style from the start
    from . import chartstyle as _style  # noqa: F401


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Kept, because importing a module named like the function would put the module there.
    globals()[name] = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    return globals()[name]


def __dir__() -> list[str]:
    return __all__
