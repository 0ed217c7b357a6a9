"""A chart as HTML that needs no network."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import vl_convert

from .style import description_of
from .tables import TEMPLATES


def chart_markup(spec: dict[str, Any]) -> str:
    """The chart for the page; raises StudyError when it has no description."""
    description = description_of(spec)
    payload = json.dumps(spec, separators=(",", ":"))
    # All charts of a page share one space of ids, the clip paths' among them.
    mark = hashlib.sha256(payload.encode()).hexdigest()[:8]
    svg = vl_convert.vegalite_to_svg(spec)
    # Marks that are there for their tooltips alone are half a megabyte of a picture that has none.
    svg = re.sub(r'<path [^>]*\bopacity="0"/>', "", svg)
    svg = re.sub(r'id="([^"]+)"', rf'id="c{mark}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#c{mark}-\1)", svg)
    # Neither is escaped: the one is markup, and a script ends at the first "</".
    return TEMPLATES.get_template("chart.html").render(
        description=description, svg=svg, spec=payload.replace("</", "<\\/")
    )
