"""How a page is cited, and what goes with a record's samples."""

from __future__ import annotations

import gzip
import io
import json
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING

import polars as pl
import pytest

from pgapps.book.citing import (
    citation,
    cite_page,
    link_source,
    post_of,
    with_more_downloads,
)
from pgservers import paths
from pgservers.files import write_file
from pgstudies.analysis.claims import origins
from pgstudies.charts.tables import about
from pgstudies.records.reading import read_record
from tests.made_up import swept_record

if TYPE_CHECKING:
    from pathlib import Path


def cited(page: str, srcdir: Path) -> str:
    titles = {page: SimpleNamespace(astext=lambda: "A title of <nothing>")}
    app = SimpleNamespace(env=SimpleNamespace(titles=titles), srcdir=srcdir)
    context = {"body": "<p>Text.</p>"}
    cite_page(app, page, "page.html", context, object())  # type: ignore[arg-type]
    return context["body"]


def test_every_page_says_how_it_is_cited(tmp_path: Path) -> None:
    body = cited("book/method", tmp_path)
    assert body.startswith("<p>Text.</p>")
    assert "A title of &lt;nothing&gt;. In: <em>pgstudies:" in body
    assert "@misc{pgstudies-method," in body
    assert "It reruns" not in body


@pytest.mark.parametrize("study", origins())
def test_a_studys_page_cites_its_post_and_its_record(study: str, tmp_path: Path) -> None:
    about = {"metadata": {"pgstudies": {"record": "/somewhere/20260101T000000Z-vm-1"}}}
    write_file(tmp_path / "book" / "studies" / f"{study}.ipynb", json.dumps(about))
    body = cited(f"book/studies/{study}", tmp_path)
    assert "record 20260101T000000Z-vm-1" in body
    post = post_of(study)
    assert f"{post['author']}, {post['date']}, “{post['title']}”" in body
    assert post.get("url", "") in body  # hash_index has none


def sources(page: str, doctree: object = True) -> dict[str, str]:
    context: dict[str, list[dict[str, list[dict[str, str]]]]] = {"header_buttons": []}
    link_source(SimpleNamespace(), page, "page.html", context, doctree)  # type: ignore[arg-type]
    menus = context["header_buttons"]
    return {link["text"]: link["url"] for menu in menus for link in menu["buttons"]}


def test_a_page_that_a_workflow_publishes_links_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_REPOSITORY", "somebody/pgstudies")
    monkeypatch.setenv("GITHUB_SHA", "5" * 40)
    links = sources("book/studies/hash_index")
    for link in (links["Source of this page"], links["Run it on Binder"]):
        source = link.partition("5" * 40)[2].removeprefix("?urlpath=lab/tree")
        assert (paths.ROOT / source.lstrip("/")).is_file()
    prose = sources("book/method")
    assert prose["Source of this page"].endswith(f"/{'5' * 40}/book/method.md")
    assert "Run it on Binder" not in prose
    assert list(sources("genindex", doctree=None)) == ["Repository", "Report a mistake"]


@pytest.mark.parametrize("name", ["", "somebody", 'a/b"><script>', "a/b/c"])
def test_a_page_built_elsewhere_has_no_menu_of_links(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_REPOSITORY", name)
    monkeypatch.setenv("GITHUB_SHA", "5" * 40)
    assert sources("book/method") == {}


@pytest.mark.parametrize("study", origins())
def test_the_citation_file_refers_to_every_post(study: str) -> None:
    references = {r["title"]: r for r in citation()["references"]}
    post = post_of(study)
    found = references[post["title"]]
    assert found["authors"] == [{"name": post["author"]}]
    assert found.get("url") == post.get("url")
    assert str(found.get("date-published") or found["year"]) == post["date"]


def test_a_records_page_has_its_samples_as_csv(tmp_path: Path) -> None:
    record = swept_record(tmp_path / "swept", "db1")
    out = tmp_path / "out"
    html = with_more_downloads(about(read_record(record)), record, out)
    links = re.findall(r'<a download="([^"]+)" href="\.\./\.\./([^"]+)"', html)
    files = {name: (out / path).read_bytes() for name, path in links}
    assert [*files] == ["swept-samples.csv.gz"]
    csv = pl.read_csv(io.BytesIO(gzip.decompress(files["swept-samples.csv.gz"])))
    assert csv.height == pl.read_parquet(record / "samples.parquet").height
