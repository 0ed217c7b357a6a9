"""The report of a comparison: one HTML file with its charts, its samples and its request."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl
import vl_convert

from pgservers.errors import StudyError
from pgservers.files import read_text, write_file
from pgservers.paths import BOOK
from pgservers.shown import environment
from pgstudies.charts.effects import effect_chart
from pgstudies.charts.series import block_chart
from pgstudies.charts.tables import table_html
from pgstudies.records.format import INFO
from pgstudies.records.reading import content_of
from pgstudies.records.writing import parquet_bytes

from ..markup import chart_markup
from .design import BASELINE, CANDIDATE, SIDES
from .judging.guards import step_name
from .judging.measured import CPU, PLACE, STEP_NAME, TIME, blocks_of, clock_effects
from .request import Request
from .text import LARGEST_FIRST, headline, method, reason, side_in_words

if TYPE_CHECKING:
    from collections.abc import Mapping

    import altair as alt

    from .counted import Counted
    from .judging.measured import Measured
    from .judging.result import Result


_INSTRUCTIONS = {
    True: "counted",
    False: "not counted",
    None: "counted where valgrind is there and the programs differ, in a fifth of the time",
}

_MOST_BYTES = 500_000_000
"""The longest report that is read (bytes): it contains the samples."""

_REQUEST = re.compile(
    r'<script type="application/json" id="pgstudies-comparison">(.*?)</script>', re.DOTALL
)


def write_report(result: Result, request: Request, text: str, target: Path) -> Path:
    """Write the report to ``target``, whole or not at all, and return that path.

    Raises SpaceError if it cannot be written.
    """
    template = environment(Path(__file__).parent).get_template("comparison.html")
    write_file(target, template.render(_parts(result, request, text)))
    return target


def request_in(report: Path) -> Request:
    """The request in a report; raises StudyError for a file that is no report."""
    found = _REQUEST.search(read_text(report, "a report", _MOST_BYTES))
    try:
        values = json.loads(found[1]) if found else None
    except (ValueError, RecursionError):
        raise StudyError(f"{str(report)[:200]} cannot be read as a report.") from None
    if not isinstance(values, dict):
        raise StudyError(f"{report} is not a report of `pgstudies compare`.")
    return Request.from_dict(values)


def _parts(result: Result, request: Request, text: str) -> dict[str, Any]:
    order = [*_moved(result)["study"], *(m.study for m in result.measured)]
    vega = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    scripts = [
        "(function () {\n" + vega.replace("</script", "<\\/script") + "\n})();",
        (BOOK / "_static" / "charts.js").read_text(encoding="utf-8"),
    ]
    asked = json.dumps(msgspec.to_builtins(request), indent=1, ensure_ascii=False)
    return {
        "headline": headline(result),
        "text": text,
        "method": method(result),
        "baseline": side_in_words(result, BASELINE),
        "candidate": side_in_words(result, CANDIDATE),
        "studies": [
            _study(result, m) for m in sorted(result.measured, key=lambda m: order.index(m.study))
        ],
        "guards": result.guards.to_dicts(),
        "reasons": [
            {"place": step_name(place), "rows": [reason(row) for row in part.iter_rows(named=True)]}
            for place, part in result.reasons.group_by(*PLACE, maintain_order=True)
        ],
        "plans": result.plans.to_dicts(),
        "analyzed": _analyzed(result),
        "rows": [
            {"place": step_name(place), "table": table_html(part.select("side", "row"))}
            for place, part in result.rows.group_by("study", "of", "step", maintain_order=True)
        ],
        "counts": _counts(result.counted),
        "times": table_html(_times(result)),
        "request": asked.replace("<", "\\u003c"),  # which could end the script
        "asked": _facts("asked for", _asked(request)),
        "host": _facts("machine", result.host),
        "style": (BOOK / "_static" / "book.css").read_text(encoding="utf-8"),
        "scripts": scripts,
    }


def _study(result: Result, m: Measured) -> dict[str, Any]:
    effects = result.effects.filter(pl.col("study") == m.study).select(
        "ratio", "low", "high", "margin", "verdict", "blocks",
        candidate="of", step=STEP_NAME,
    )  # fmt: skip
    drawn = effects.drop_nulls("ratio")
    times = (
        blocks_of([m], pl.col("metric").is_in([TIME, CPU]))
        .join(_moved(result).select(*PLACE, "metric", "place"), on=[*PLACE, "metric"])
        .with_columns(what=pl.format("{}: {}", "of", STEP_NAME))
        .sort("place", "block", "position")
    )
    charts: list[alt.TopLevelMixin | pl.DataFrame] = []
    if drawn.height:
        about = f"{m.study}: time on the candidate relative to the baseline, by step."
        charts.append(effect_chart(drawn, description=about))
    charts.append(
        block_chart(
            times,
            y_title="seconds",
            step="what",
            arms=SIDES,
            description=f"{m.study}: the time of a step in every block, on both sides.",
        )
    )
    records = {f"{n}-record.json": content_of(p, INFO) for n, p in enumerate(m.paths, start=1)}
    files = {"samples.parquet": parquet_bytes(m.samples), **records}
    return {
        "name": m.study,
        "blocks": m.blocks,
        # Of a single block there is a table in place of a chart.
        "charts": [chart_markup(c.to_dict()) for c in charts if not isinstance(c, pl.DataFrame)],
        "files": [_download(f"{m.study}-{name}", content) for name, content in files.items()],
    }


def _analyzed(result: Result) -> list[dict[str, str]]:
    """What EXPLAIN (ANALYZE, BUFFERS) says on both sides of the statements of steps that differ."""
    is_moved = pl.col("verdict").is_in(["slower", "faster"])
    moved = result.effects.filter(is_moved).select("study", "of", name=STEP_NAME)
    is_its = (pl.col("step") == pl.col("name")) | pl.col("step").str.starts_with(
        pl.format("{}, ", "name")  # the statements of a script that differs as a whole
    )
    found = result.analyzed.join(moved, on=["study", "of"], maintain_order="left").filter(is_its)
    return found.drop("name").unique(maintain_order=True).to_dicts()


def _moved(result: Result) -> pl.DataFrame:
    """The effects with their place in the report's order."""
    return result.effects.sort(LARGEST_FIRST).with_row_index("place")


def _times(result: Result) -> pl.DataFrame:
    study = ["study"] if len(result.measured) > 1 else []
    clock = clock_effects(result.measured, result.effects)
    return result.effects.join(clock, on=PLACE, how="left", maintain_order="left").select(
        *study,
        arm="of",
        step=STEP_NAME,
        verdict=pl.when(pl.col("doubt").is_null())
        .then("verdict")
        .otherwise(pl.format("open: {}", "doubt")),
        ratio=pl.col("ratio").round(3),
        low=pl.col("low").round(3),
        high=pl.col("high").round(3),
        by=pl.when(pl.col("metric") == CPU).then(pl.lit("CPU")).otherwise(pl.lit("clock")),
        **{
            "by the clock": pl.coalesce("clock", "ratio").round(3),
            "noise, %": (100 * pl.col("noise")).round(1),
            **_where_known(result),
            "blocks": pl.col("blocks"),
            "baseline, s": pl.col("baseline_median"),
            "candidate, s": pl.col("candidate_median"),
        },
    )


def _where_known(result: Result) -> dict[str, pl.Expr]:
    """The columns on layout and instructions, if they have a value."""
    columns = {
        "links differ by, %": (100 * pl.col("allowance")).round(1),
        "instructions": pl.col("instructions").round(4),
    }
    return {
        title: column
        for title, column in columns.items()
        if result.effects.select(column.is_not_null().any()).item()
    }


def _counts(counted: Counted | None) -> list[str]:
    """Tables of what was counted, and of the functions that changed."""
    if counted is None:
        return []
    units = (
        counted.units.drop("arm", "steps")
        .with_columns(pl.col("baseline", "candidate").round(0), pl.col("ratio").round(4))
        .rename({"reason": "not run"})
    )
    functions = counted.moved.with_columns(pl.col("before", "after", "change").round(0))
    return [table_html(frame) for frame in (units, functions) if frame.height]


def _asked(request: Request) -> dict[str, str]:
    return {
        "studies": ", ".join(request.studies),
        "size": request.profile,
        "parameters": ", ".join(f"{k} = {v}" for k, v in request.parameters.items()),
        "arms": ", ".join(request.arms) or "those of a default comparison",
        "only": request.case or "every step and case",
        "margin": f"{100 * request.margin:g} %",
        "instructions": _INSTRUCTIONS[request.instructions],
        "kept on one core": "where the study does" if request.pin else "no",
    }


def _facts(title: str, facts: Mapping[str, Any]) -> str:
    """A table of names and single values."""
    known = {k: str(v) for k, v in facts.items() if isinstance(v, (str, int, float))}
    return table_html(pl.DataFrame({"": list(known), title: list(known.values())}))


def _download(name: str, content: bytes) -> dict[str, Any]:
    href = f"data:application/octet-stream;base64,{base64.b64encode(content).decode('ascii')}"
    return {"name": name, "href": href, "kb": len(content) / 1e3}
