"""A chart as HTML that needs no network."""

from __future__ import annotations

import hashlib
import html
import json
import re
from typing import Any

import vl_convert

from .style import description_of

# tabindex: a box that scrolls must be reachable from the keyboard.
MARKUP = """\
<div class="vega-chart">
<figure role="img" aria-label="{description}" tabindex="0">
<div class="vega-target">{svg}</div>
</figure>
<script type="application/json">{spec}</script>
</div>
"""


def chart_markup(spec: dict[str, Any]) -> str:
    """The chart for the page; raises StudyError when it has no description."""
    description = html.escape(description_of(spec), quote=True)
    payload = json.dumps(spec, separators=(",", ":"))
    # All charts of a page share one space of ids, the clip paths' among them.
    mark = hashlib.sha256(payload.encode()).hexdigest()[:8]
    svg = vl_convert.vegalite_to_svg(spec)
    svg = re.sub(r'id="([^"]+)"', rf'id="c{mark}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#c{mark}-\1)", svg)
    return MARKUP.format(description=description, svg=svg, spec=payload.replace("</", "<\\/"))
