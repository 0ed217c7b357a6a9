"""A chart as a file, and as HTML that needs no network."""

from __future__ import annotations

import hashlib
import io
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import vl_convert

from pgservers.errors import StudyError
from pgservers.files import write_file
from pgservers.shown import environment, quotable
from pgstudies.charts.style import description_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import altair as alt

_KINDS: dict[str, Literal["svg", "png", "json"]] = {".svg": "svg", ".png": "png", ".json": "json"}

_TEMPLATES = environment(Path(__file__).parent)

_HUNDREDTHS = re.compile(r"(\.\d\d)\d+")


def save(chart: alt.TopLevelMixin, path: str | Path) -> Path:
    """Write the chart to ``path`` as .svg, .png or .json and return the absolute path.

    Raises StudyError for another suffix, a missing directory or a chart without a description, and
    SpaceError if the file cannot be written.
    """
    target = Path(path).expanduser().resolve()
    if target.suffix not in _KINDS:
        raise StudyError(f"A chart is saved as .svg, .png or .json, not as {target.name!r}.")
    if not target.parent.is_dir():
        raise StudyError(f"There is no directory {target.parent}: make it, or save elsewhere.")
    description_of(chart.to_dict())  # raises
    kind = _KINDS[target.suffix]
    drawn = io.BytesIO() if kind == "png" else io.StringIO()
    chart.save(drawn, format=kind, scale_factor=2 if kind == "png" else 1)
    write_file(target, drawn.getvalue())
    return target


def chart_markup(spec: dict[str, Any]) -> str:
    """The chart for the page; raises StudyError when it has no description."""
    description, spec = description_of(spec), quotable(spec)
    payload = json.dumps(_in_few_digits(spec), separators=(",", ":"))
    svg = vl_convert.vegalite_to_svg(spec)
    # Invisible marks serve tooltips alone, which a picture has none of: half a megabyte.
    svg = re.sub(r'<path [^>]*\bopacity="0"/>', "", svg)
    # The figure has the description, and nobody sees a thousandth of a pixel.
    svg = re.sub(r' (?:aria-[a-z]+|role)="[^"]*"', "", svg)
    svg = re.sub(r' (?:d|transform)="[^"]*"', lambda found: _HUNDREDTHS.sub(r"\1", found[0]), svg)
    # The charts of a page must not share ids, such as those of clip paths.
    mark = hashlib.sha256(payload.encode()).hexdigest()[:8]
    svg = re.sub(r'id="([^"]+)"', rf'id="c{mark}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#c{mark}-\1)", svg)
    # The template escapes neither svg nor spec; "<!--<script" would hide the end of a script.
    return _TEMPLATES.get_template("chart.html").render(
        description=description,
        svg=svg,
        spec=payload.replace("<", "\\u003c"),
        chosen=" and ".join(_chosen(spec)),
    )


def _chosen(spec: dict[str, Any]) -> Iterator[str]:
    """The selected values of a chart's menus, quoted, without those at "all"."""
    for param in spec.get("params", []):
        menu = param.get("bind")
        if isinstance(menu, dict) and menu.get("input") == "select" and param["value"] != "all":
            yield f"“{param['value']}”"


def _in_few_digits(spec: Any) -> Any:
    """The specification with fractions cut to six digits; whole numbers and times stay exact."""
    if isinstance(spec, float):
        if spec.is_integer():
            return int(spec)
        return float(f"{spec:.6g}") if abs(spec) < 1e9 else spec  # larger ones are times
    if isinstance(spec, dict):
        return {key: _in_few_digits(value) for key, value in spec.items()}
    return [_in_few_digits(value) for value in spec] if isinstance(spec, list) else spec
