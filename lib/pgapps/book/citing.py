"""How a page and its record are cited, where its source is, and a record's files for download."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
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

    from ..execution.executed import Document


_TEMPLATES = environment(Path(__file__).parent)

_STUDIES = "book/studies/"


def cite_page(
    app: Sphinx, page: str, _template: str, context: dict[str, Any], doctree: object
) -> None:
    """Add to a page how it is cited (a handler of Sphinx's html-page-context)."""
    if doctree is None:
        return
    work = citation()
    post: dict[str, str] = {}
    record: Path | None = None
    if page.startswith(_STUDIES):
        post = post_of(page.removeprefix(_STUDIES))
        notebook = Path(app.srcdir, f"{page}.ipynb").read_text(encoding="utf-8")
        record = record_of(json.loads(notebook))
    context["body"] += _TEMPLATES.get_template("cite.html").render(
        title=app.env.titles[page].astext(),
        work=work,
        authors=", ".join(author["name"] for author in work["authors"]),
        year=str(work["date-released"])[:4],
        key=re.sub(r"\W+", "-", page.rpartition("/")[2]),
        post=post,
        record=record.name if record else "",
    )


def link_source(
    _app: Sphinx, page: str, _template: str, context: dict[str, Any], doctree: object
) -> None:
    """Add a menu of links to a page that GitHub publishes (a handler of html-page-context).

    The workflow's environment names repository and commit; without it there is no menu.
    """
    name, commit = os.environ.get("GITHUB_REPOSITORY", ""), os.environ.get("GITHUB_SHA", "")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or not re.fullmatch(r"[0-9a-f]{40}", commit):
        return
    repository = f"https://github.com/{name}"
    links = {"Repository": repository, "Report a mistake": f"{repository}/issues/new?title={page}"}
    if doctree is not None:
        study = page.removeprefix(_STUDIES)
        is_study = page.startswith(_STUDIES)
        source = f"notebooks/{study}/{study}.ipynb" if is_study else f"{page}.md"
        links["Source of this page"] = f"{repository}/blob/{commit}/{source}"
        if is_study:
            open_it = f"{name}/{commit}?urlpath=lab/tree/{source}"
            links["Run it on Binder"] = f"https://mybinder.org/v2/gh/{open_it}"
    buttons = [{"type": "link", "text": text, "url": url} for text, url in links.items()]
    menu = {"type": "group", "icon": "fab fa-github", "tooltip": "Source", "buttons": buttons}
    context["header_buttons"].append(menu | {"label": "source-buttons"})


def record_of(document: Document) -> Path | None:
    """The directory of the record that an executed notebook rests on; None without one."""
    record = document["metadata"].get("pgstudies", {}).get("record")
    return Path(record) if record else None


def citation() -> dict[str, Any]:
    """The contents of CITATION.cff."""
    known: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    return known


def post_of(study: str) -> dict[str, str]:
    """Title, author, date and, where it is known, url of a study's post; empty without one."""
    try:
        known = find_room(study).read("published.toml")
    except StudyError:
        return {}
    return {name: known[name] for name in ("title", "author", "date", "url") if name in known}


def with_more_downloads(html: str, record: Path, outdir: Path) -> str:
    """The list of a record's files, with its samples as CSV added.

    The CSV is written below ``outdir``.  Other markup than the list of files is returned unchanged.
    Raises StudyError if the record is damaged.
    """
    study = read_info(record)["study"]
    if f'download="{study}-samples.parquet"' not in html:
        return html
    samples = read_record(record).samples.write_csv().encode()
    # The usual level 9 takes 2.7 times as long for 4 % less.
    csv = gzip.compress(samples, compresslevel=6, mtime=0)
    name = f"{study}-samples.csv.gz"
    link = f'<a download="{name}" href="{write_beside(outdir, name, csv)}">{name}</a>'
    return html.replace("</ul>", f"<li>{link} ({size_text(len(csv))})</li>\n</ul>")


def write_beside(outdir: Path, name: str, content: bytes) -> str:
    """Write a file for download below ``outdir``; returns its address from a study's page."""
    file = f"_downloads/{hashlib.sha256(content).hexdigest()[:12]}/{name}"
    (outdir / file).parent.mkdir(parents=True, exist_ok=True)
    (outdir / file).write_bytes(content)
    return f"../../{file}"
