"""How a page and its record are cited, and a record's files for download."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from pgservers.errors import StudyError
from pgservers.files import size_text
from pgservers.paths import ROOT
from pgservers.shown import environment
from pgstudies.records.reading import read_info, read_record
from pgstudies.rooms import find_room

if TYPE_CHECKING:
    from sphinx.application import Sphinx


_TEMPLATES = environment(Path(__file__).parent)

_STUDIES = "book/studies/"


def cite_page(
    app: Sphinx, page: str, _template: str, context: dict[str, Any], doctree: object
) -> None:
    """End a page with how it is cited (a handler of Sphinx's html-page-context)."""
    if doctree is None:
        return
    work = citation()
    is_study = page.startswith(_STUDIES)
    post = post_of(page.removeprefix(_STUDIES)) if is_study else {}
    context["body"] += _TEMPLATES.get_template("cite.html").render(
        title=app.env.titles[page].astext(),
        work=work,
        authors=", ".join(author["name"] for author in work["authors"]),
        year=str(work["date-released"])[:4],
        key=re.sub(r"\W+", "-", page.rpartition("/")[2]),
        post=post,
        record=record_of(Path(app.srcdir, f"{page}.ipynb")) if is_study else "",
    )


def record_of(notebook: Path) -> str:
    """The name of the record that an executed notebook rests on; empty without one."""
    about = json.loads(notebook.read_text(encoding="utf-8"))["metadata"].get("pgstudies", {})
    return Path(about.get("record", "")).name


def citation() -> dict[str, Any]:
    """What CITATION.cff says of this work."""
    known: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    return known


def post_of(study: str) -> dict[str, str]:
    """Title, author, date and, where it is known, url of a study's post; empty without one."""
    try:
        known = find_room(study).read("published.toml")
    except StudyError:
        return {}
    return {name: known[name] for name in ("title", "author", "date", "url") if name in known}


def with_more_downloads(html: str, record: Path, outdir: Path, *, depth: int) -> str:
    """The list of a record's files, with its samples as CSV added.

    The file is written below ``outdir``; ``depth`` is that of the page.  Markup other than the list
    of ``downloads`` is returned unchanged.  Raises StudyError where the record is damaged.
    """
    study = read_info(record)["study"]
    if f'download="{study}-samples.parquet"' not in html:
        return html
    samples = read_record(record).samples.write_csv().encode()
    # The usual level 9 takes 2.7 times as long for 4 % less.
    csv = gzip.compress(samples, compresslevel=6, mtime=0)
    name, digest = f"{study}-samples.csv.gz", hashlib.sha256(csv).hexdigest()[:12]
    place = f"_downloads/{digest}"
    (outdir / place).mkdir(parents=True, exist_ok=True)
    (outdir / place / name).write_bytes(csv)
    link = f'<a download="{name}" href="{"../" * depth}{place}/{name}">{name}</a>'
    return html.replace("</ul>", f"<li>{link} ({size_text(len(csv))})</li>\n</ul>")
