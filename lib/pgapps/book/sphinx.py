"""Sphinx extension and MyST-NB plug-in that draw the book's Vega-Lite charts without a network.

The page carries the specification and a static SVG made from it.  A script in ``_static`` replaces
the SVG by the live chart; without JavaScript the SVG stays.
"""

from __future__ import annotations

import hashlib
import re
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import vl_convert
from docutils import nodes
from sphinx.errors import ExtensionError

from pgservers.errors import StudyError
from pgservers.files import write_file
from pgservers.shown import digest_source
from pgstudies.charts.style import MIME

from ..markup import chart_markup
from ..scorecard.checks import doubtful_machines, read_checks
from .citing import cite_page, link_source
from .pages import answer_first, close_folds

if TYPE_CHECKING:
    from myst_nb.core.render import MimeData, NbElementRenderer
    from sphinx.application import Sphinx


_HEAD = '<meta charset="utf-8" />'
_PLAIN = ("genindex.html", "search.html")
_INLINE = re.compile(r"<script(?: data-cfasync=\"false\")?>(.*?)</script>", re.DOTALL)
_HANDLERS = ("window.print()", "toggleFullScreen()")  # of the theme's buttons
_OURS = re.compile(  # scripts in files of the book
    r'(<script|<link rel="preload" as="script")'
    r'((?: [\w-]+(?:="[\w -]*")?)* (?:src|href)="(?:\.\./)*'
    r'(?:searchindex|_static/(?:[\w-]+/)*[\w-]+(?:\.\w+)*)\.js[?"])'
)
# In some browsers 'self' does not include files; a page from the network can ask for no file.
_POLICY = (
    "default-src 'none'; style-src 'self' file: 'unsafe-inline'; font-src 'self' file: data:; "
    "img-src 'self' file: data: blob:;"
)
_FORMS = "base-uri 'none'; form-action 'self' file:"


class VegaLiteRenderer:
    """Turn a Vega-Lite output into the markup that ``charts.js`` looks for."""

    mime_priority_overrides = [("html", MIME, 5)]  # noqa: RUF012  (MyST-NB reads it as it is)

    @staticmethod
    def handle_mime(
        renderer: NbElementRenderer, data: MimeData, inline: bool
    ) -> list[nodes.Element] | None:
        """The chart's markup; None for what is not a chart."""
        if inline or data.mime_type != MIME:
            return None
        try:
            markup = chart_markup(data.content)
        except StudyError as error:
            renderer.logger.warning(str(error), subtype="chart", line=data.line)
            return []
        return [nodes.raw(text=markup, format="html", classes=["output", "vega"])]


def finish(app: Sphinx, exception: Exception | None) -> None:
    """Write what charts need, and finish the pages (a handler of Sphinx's build-finished)."""
    if exception is None and app.builder.format == "html":
        _write_vega_bundle(Path(app.outdir, "_static", "vega-bundle.js"))
        _finish_pages(Path(app.outdir))


def _write_vega_bundle(target: Path) -> None:
    """Write the Vega runtime of the installed vl-convert, unless ``target`` is it already."""
    head = f"// Vega, Vega-Lite and Vega-Embed of vl-convert {version('vl-convert-python')}\n"
    if target.exists():
        with target.open(encoding="utf-8") as bundle:
            if bundle.readline() == head:
                return
    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    # The bundle declares names such as ``_`` at top level; Sphinx's doctools.js does too.
    write_file(target, f"{head}(function () {{\n{script}\n}})();\n")


def _finish_pages(outdir: Path) -> None:
    """Give every page its policy, and the light theme: without scripts, "auto" has no colours.

    A page may run the theme's scripts and ours.  The allowed inline scripts are those of the index
    and of the search page, which show nothing of a record.
    """
    plain = [(outdir / name).read_text(encoding="utf-8") for name in _PLAIN]
    known = {script for text in plain for script in _INLINE.findall(text)}
    for page in outdir.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        if _HEAD not in text or "Content-Security-Policy" in text.partition("<script")[0]:
            continue
        name = page.relative_to(outdir).with_suffix("").as_posix()
        named = f"DOCUMENTATION_OPTIONS.pagename = '{name}';"
        # Text of the page cannot contain this nonce, which is a digest of all of the page.
        nonce = hashlib.sha256(text.encode()).hexdigest()
        sources = map(digest_source, sorted({*known, *_HANDLERS, named}))
        policy = (
            f"{_POLICY} script-src 'nonce-{nonce}' 'unsafe-hashes' {' '.join(sources)}; {_FORMS}"
        )
        meta = f'{_HEAD}<meta http-equiv="Content-Security-Policy" content="{policy}" />'
        text = _OURS.sub(rf'\g<1> nonce="{nonce}"\g<2>', text.replace(_HEAD, meta, 1))
        page.write_text(
            text.replace(' data-theme="auto">', ' data-theme="light">', 1), encoding="utf-8"
        )


def executed_pages(app: Sphinx, *_others: object) -> list[str]:
    """The pages to read anew: the executed pages of prose, which show what the studies measured.

    The studies' own pages are among them when other machines than at the last build failed a check.
    """
    doubtful = sorted(doubtful_machines(read_checks()))
    before = getattr(app.env, "pgstudies_doubtful", doubtful)
    app.env.pgstudies_doubtful = doubtful  # type: ignore[attr-defined]
    always = ("book/intro", "book/environment")
    changed = always if before == doubtful else (*always, "book/studies/")
    return [page for page in app.env.found_docs if page.startswith(changed)]


def require_pages(app: Sphinx) -> None:
    """Refuse to build a book without the pages of its studies (a handler of builder-inited)."""
    named = (app.srcdir / f"{page}.ipynb" for page in app.config.external_site_map)
    missing = [page.stem for page in named if page.parent.name == "studies" and not page.exists()]
    if missing:
        raise ExtensionError(
            f"book/studies has no page of {', '.join(missing)}: `pgstudies book` builds the book "
            f"with the reference records of studies that have not been run."
        )


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the scripts, the style sheet and the events (Sphinx calls this)."""
    app.add_js_file("charts.js", defer="defer")
    app.add_js_file("sections.js", defer="defer")
    app.add_js_file("claims.js", defer="defer")
    app.add_css_file("book.css")
    app.connect("env-get-outdated", executed_pages)
    app.connect("builder-inited", require_pages)
    app.connect("source-read", answer_first)
    app.connect("doctree-read", close_folds)
    app.connect("html-page-context", cite_page)
    app.connect("html-page-context", link_source, priority=502)  # after the theme's own buttons
    app.connect("build-finished", finish)
    # Sphinx reads pages anew after a change of this code.
    code = b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))
    mark = int(hashlib.sha256(code).hexdigest()[:8], 16)
    safe = {"parallel_read_safe": True, "parallel_write_safe": True}
    return {"version": "1", "env_version": mark, **safe}
