"""How a page and its record are cited, and a record's files for download."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import yaml

from pgservers.errors import StudyError
from pgservers.files import size_text
from pgservers.paths import ROOT
from pgservers.shown import environment
from pgstudies.records.format import INFO, SAMPLES
from pgstudies.records.reading import content_of, read_info
from pgstudies.rooms import find_room

if TYPE_CHECKING:
    from sphinx.application import Sphinx


_TEMPLATES = environment(Path(__file__).parent)

_STUDIES = "book/studies/"

CONTEXT = "https://w3id.org/ro/crate/1.1/context"
"""The version of RO-Crate that ``crate`` follows."""


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


def crate(record: Path, files: dict[str, bytes]) -> dict[str, Any]:
    """The RO-Crate metadata of a record with these downloadable ``files``, by name."""
    info, work = read_info(record), citation()
    post = post_of(info["study"])
    based_on = [{"@id": post.get("url", "#post")}] if post else []
    people = [{"@type": "Organization", "name": author["name"]} for author in work["authors"]]
    graph: list[dict[str, Any]] = [
        {
            "@id": "ro-crate-metadata.json",
            "@type": "CreativeWork",
            "conformsTo": {"@id": CONTEXT.removesuffix("/context")},
            "about": {"@id": "./"},
        },
        {
            "@id": "./",
            "@type": "Dataset",
            "identifier": record.name,
            "name": f"{info['study']}: samples of the record {record.name}",
            "description": f"Measured by {work['title']}, version {work['version']}.",
            "datePublished": str(info["started_at"])[:10],
            "license": {"@id": "https://creativecommons.org/licenses/by/4.0/"},
            "author": people,
            "version": (info.get("git") or {}).get("revision") or "unknown",
            "hasPart": [{"@id": name} for name in files],
            "isBasedOn": based_on,
        },
        *(_file(name, content) for name, content in files.items()),
    ]
    if post:
        graph.append(
            {
                **based_on[0],
                "@type": "CreativeWork",
                "name": post["title"],
                "datePublished": post["date"],
                "author": {"@type": "Person", "name": post["author"]},
            }
        )
    return {"@context": CONTEXT, "@graph": graph}


_FORMATS = {
    ".parquet": "application/vnd.apache.parquet",
    ".json": "application/json",
    ".gz": "application/gzip",
}


def _file(name: str, content: bytes) -> dict[str, Any]:
    return {
        "@id": name,
        "@type": "File",
        "name": name,
        "contentSize": str(len(content)),
        "encodingFormat": _FORMATS[Path(name).suffix],
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def with_more_downloads(html: str, record: Path, outdir: Path, *, depth: int) -> str:
    """The list of a record's files, with the samples as CSV and the RO-Crate metadata added.

    Both are written below ``outdir``; ``depth`` is that of the page.  Markup other than the list of
    ``downloads`` is returned unchanged.
    """
    study = read_info(record)["study"]
    if f'download="{study}-samples.parquet"' not in html:
        return html
    parquet = content_of(record, SAMPLES)
    place = f"_downloads/{hashlib.sha256(parquet).hexdigest()[:12]}"
    samples = pl.read_parquet(parquet).write_csv().encode()
    # The usual level 9 takes 2.7 times as long for 4 % less.
    csv = gzip.compress(samples, compresslevel=6, mtime=0)
    files = {
        f"{study}-samples.parquet": parquet,
        f"{study}-record.json": content_of(record, INFO),
        f"{study}-samples.csv.gz": csv,
    }
    metadata = json.dumps(crate(record, files), indent=1, ensure_ascii=False).encode()
    more = {f"{study}-samples.csv.gz": csv, f"{study}-ro-crate-metadata.json": metadata}
    items = ""
    for name, content in more.items():
        (outdir / place).mkdir(parents=True, exist_ok=True)
        (outdir / place / name).write_bytes(content)
        link = f'<a download="{name}" href="{"../" * depth}{place}/{name}">{name}</a>'
        items += f"<li>{link} ({size_text(len(content))})</li>\n"
    return html.replace("</ul>", f"{items}</ul>")
