"""PostgreSQL performance studies, reproduced: the helper library of the notebooks.

The names here are those that notebooks use.  Each is imported when it is first asked for, so that
the command line starts without polars and Altair.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .analysis.agreement import Claim, judge
    from .analysis.claims import claims
    from .analysis.diagnostics import diagnose
    from .analysis.effects import paired_effects
    from .analysis.instrument import instrument_checks
    from .analysis.intervals import smallest_detectable
    from .analysis.pairing import block_values
    from .analysis.published import published, published_source
    from .analysis.shares import deviations, share_table
    from .analysis.verdicts import describe
    from .book.instrument_page import display_checks, instrument_markup, read_checks
    from .book.score_chart import history_chart, score_chart
    from .book.score_table import history_table, score_table
    from .book.score_text import in_sentence
    from .book.scorecard import scorecard
    from .charts.effects import effect_chart, effect_map
    from .charts.scans import scan_chart
    from .charts.series import block_chart, dot_chart, save, series_chart
    from .charts.tables import downloads
    from .errors import CannotRun, StudyError
    from .host.disks import disk_read_bytes
    from .measuring.arms import Arm
    from .measuring.cold import cache_state
    from .measuring.concurrent import block_of, concurrently, reason_not_in_step
    from .measuring.measure import measure
    from .measuring.pgbench import pgbench, require_pgbench
    from .measuring.sessions import (
        conninfo,
        hold_transactions,
        room_for_sessions,
        session_cpu_seconds,
        unpinned,
    )
    from .measuring.steadiness import watched
    from .measuring.trial import Trial
    from .programs.extensions import Extension, extension
    from .programs.locales import libc_locale
    from .programs.releases import reason_not_available
    from .records.reading import Record, find_record, list_records, read_record
    from .servers.limits import limited, reason_no_limits, scheduled
    from .servers.serve import serve
    from .servers.snapshots import require_space
    from .studies.parameters import study_parameters


_HOMES = {
    "analysis.agreement": ["Claim", "judge"],
    "analysis.claims": ["claims"],
    "analysis.diagnostics": ["diagnose"],
    "analysis.effects": ["paired_effects"],
    "analysis.instrument": ["instrument_checks"],
    "analysis.intervals": ["smallest_detectable"],
    "analysis.pairing": ["block_values"],
    "analysis.published": ["published", "published_source"],
    "analysis.shares": ["deviations", "share_table"],
    "analysis.verdicts": ["describe"],
    "book.instrument_page": ["display_checks", "instrument_markup", "read_checks"],
    "book.score_chart": ["history_chart", "score_chart"],
    "book.score_table": ["history_table", "score_table"],
    "book.score_text": ["in_sentence"],
    "book.scorecard": ["scorecard"],
    "charts.effects": ["effect_chart", "effect_map"],
    "charts.scans": ["scan_chart"],
    "charts.series": ["block_chart", "dot_chart", "save", "series_chart"],
    "charts.tables": ["downloads"],
    "errors": ["CannotRun", "StudyError"],
    "host.disks": ["disk_read_bytes"],
    "measuring.arms": ["Arm"],
    "measuring.cold": ["cache_state"],
    "measuring.concurrent": ["block_of", "concurrently", "reason_not_in_step"],
    "measuring.measure": ["measure"],
    "measuring.pgbench": ["pgbench", "require_pgbench"],
    "measuring.sessions": [
        "conninfo",
        "hold_transactions",
        "room_for_sessions",
        "session_cpu_seconds",
        "unpinned",
    ],
    "measuring.steadiness": ["watched"],
    "measuring.trial": ["Trial"],
    "programs.extensions": ["Extension", "extension"],
    "programs.locales": ["libc_locale"],
    "programs.releases": ["reason_not_available"],
    "records.reading": ["Record", "find_record", "list_records", "read_record"],
    "servers.limits": ["limited", "reason_no_limits", "scheduled"],
    "servers.serve": ["serve"],
    "servers.snapshots": ["require_space"],
    "studies.parameters": ["study_parameters"],
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
    from .charts import style as _style  # noqa: F401


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Kept, because importing a module named like the function would put the module there.
    globals()[name] = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    return globals()[name]


def __dir__() -> list[str]:
    return __all__
