"""Names of records, servers and repositories run nothing where they are shown."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import altair as alt
import nbformat
import polars as pl
import pytest
import vl_convert
from markdown_it import MarkdownIt
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from pgapps.book.build import COMMAND
from pgapps.compare.design import Side
from pgapps.compare.report import write_report
from pgapps.compare.request import Request
from pgapps.compare.text import as_text
from pgservers import paths
from pgservers.shown import environment, markdown, policy, quotable
from pgservers.terminal import Progress, notice, printable, say, tell
from pgstudies.charts import style
from pgstudies.charts.series import series_chart
from pgstudies.charts.style import book_renderer
from pgstudies.charts.tables import about, began, column_labels, table_html
from pgstudies.records.reading import read_record
from pgstudies.rooms import study_module
from tests.compare.test_compare import info_of, logs, made_up, result, samples_of
from tests.hostile import ATTACKS, MARK, NAME, SHORT, hostile_record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page
    from playwright.sync_api import Request as Asked

GENUINE = sorted(paths.REFERENCE_RECORDS.glob("cluster_order/*/record.json"))[-1].parent


@pytest.mark.parametrize("attack", [*ATTACKS, NAME])
def test_text_in_markdown_is_shown_as_it_is(attack: str) -> None:
    for preset in ("commonmark", "gfm-like"):
        shown = MarkdownIt(preset, {"html": True}).render(f"a {markdown(attack)}.")
        text = html.unescape(re.sub(r"</?p>\n?", "", shown))
        assert text == f"a {printable(' '.join(attack.split()))}."
        assert re.findall(r"<[^>]*>", shown) == ["<p>", "</p>"]


def test_text_in_markdown_that_is_not_escaped_runs() -> None:
    shown = MarkdownIt("commonmark", {"html": True}).render(f"a {ATTACKS[0]}.")
    assert "onerror=" in re.findall(r"<img[^>]*>", shown)[0]


@pytest.mark.parametrize("attack", [*ATTACKS, NAME])
def test_text_in_a_template_has_no_markup_and_nothing_invisible(
    attack: str, tmp_path: Path
) -> None:
    tmp_path.joinpath("page.html").write_text("{{ text }}")
    shown = environment(tmp_path).get_template("page.html").render(text=attack)
    assert not re.search(r"[<>\"']", shown)
    assert all(line.isprintable() for line in shown.split("\n"))


def test_a_columns_name_ends_no_string_of_css() -> None:
    named = column_labels([NAME, "b"])
    assert "\n" not in named
    inside = re.sub(r"\\.", "", named)
    assert re.fullmatch(r"--c1: '[^']*';--c2: '[^']*';", inside)


def test_no_way_to_a_terminal_passes_an_escape(capsys: pytest.CaptureFixture[str]) -> None:
    for way in (tell, say, notice):
        way(f"one\n{NAME}")
    with Progress(f"what {NAME}", 1) as bar:
        bar.show(NAME)
        bar.note(NAME)
        bar.advance()
    out, err = capsys.readouterr()
    assert "\\x1b[2J" in out
    assert all(c.isprintable() or c in "\r\n" for c in out + err)


def test_nothing_is_printed_but_by_the_terminals_functions() -> None:
    """Else a name of a record could colour, move or hide what others have written."""
    for file in (paths.ROOT / "lib").rglob("*.py"):
        if file.name not in {"terminal.py", "tools.py"}:
            code = file.read_text(encoding="utf-8")
            assert not re.search(r"\btyper\.echo\(|(?<![\w.])print\(", code), file


LONG = "W" * 7000


def drawn_long() -> tuple[float, float]:
    """How wide and high (px) a chart is whose every name and sentence is very long."""
    names = [f"{LONG}{i}" for i in range(8)]
    lines = pl.DataFrame({"x": [1, 2] * 8, "y": [1.0, 2.0] * 8, "arm": sorted(names * 2)})
    lines = lines.with_columns(step=pl.lit(LONG))
    words: dict[str, Any] = {"y_title": LONG, "description": LONG}
    panels, legend = (
        series_chart(frame, x="x", y="y", step="step", **words) for frame in (lines, lines.head(4))
    )
    sizes = []
    for chart in (panels, legend):
        assert not isinstance(chart, pl.DataFrame)
        svg = vl_convert.vegalite_to_svg(quotable(chart.to_dict()))
        found = re.search(r'width="([\d.]+)" height="([\d.]+)"', svg)
        assert found
        sizes.append([float(found[1]), float(found[2])])
    return max(w for w, _ in sizes), max(h for _, h in sizes)


def test_a_long_name_makes_no_chart_larger_than_a_screen() -> None:
    """Of a much larger chart vl-convert makes no PNG, but aborts the process."""
    width, height = drawn_long()
    assert width < 2000
    assert height < 2000
    unlimited = re.sub(r'([lL]imit": )\d+', r"\g<1>0", json.dumps(style._theme()))
    alt.theme.register("unlimited", enable=False)(lambda: json.loads(unlimited))
    with alt.theme.enable("unlimited"):
        assert drawn_long()[0] > 50_000


TITLE = f"{ATTACKS[10]} {ATTACKS[11]}"


def page_of(record: Path) -> Any:
    """A notebook that shows a hostile record by everything that notebooks show records with."""
    read = read_record(record)
    names = pl.DataFrame({NAME: [NAME, f"{NAME}!"], "b": [1, 2], "c": [1, 2], "d": ["", NAME]})
    rows = [
        {"unit": f"{NAME} a", "open": "0 open", "from": NAME, "to": f"{NAME}!", "ratio": 1.5}
        | {"the compiler's": "no", "moved most": NAME}
    ]
    said = [study_module("releases", "reading").largest_in_words(rows).data]
    lines = pl.DataFrame(
        {"x": [1, 2, 3] * 2, "y": [1.0, 2.0, 3.0] * 2, "arm": [SHORT] * 3 + [f"{SHORT}!"] * 3}
    ).with_columns(step=pl.lit(SHORT))
    lines = pl.concat([lines, lines.with_columns(step=pl.lit("other"))])
    chart = series_chart(
        lines, x="x", y="y", y_title=TITLE, color="arm", step="step", description=SHORT
    )
    assert not isinstance(chart, pl.DataFrame)
    data = [{"text/html": text} for text in (table_html(names), began(read, {}), about(read))]
    data += [{"text/markdown": text} for text in said] + [book_renderer(chart.to_dict())]
    outputs = [new_output("display_data", data=each) for each in data]
    answer = new_code_cell("answer", outputs=[], metadata={"tags": ["answer"]})
    cells = [
        new_markdown_cell("# Hostile\n\n## Shown"),
        answer,
        new_code_cell("show", outputs=outputs),
    ]
    facts = {"pgstudies": {"record": str(record)}, "language_info": {"name": "python"}}
    return new_notebook(cells=cells, metadata=facts)


UNESCAPED = """
import pgservers.shown
pgservers.shown.markdown = str
"""

UNBOUND = """
import pgapps.book.sphinx as book
book._HEAD = "none of a page's"
"""


def built(page: Any, place: Path, *, before: str = "") -> Path:
    """Build the page in a book of its own, after the code ``before``; returns its file."""
    (place / "book" / "studies").mkdir(parents=True)
    (place / "book" / "_static").symlink_to(paths.BOOK / "_static")
    shutil.copy(paths.ROOT / "_config.yml", place)
    (place / "_toc.yml").write_text("format: jb-book\nroot: book/studies/hostile\n")
    nbformat.write(page, place / "book" / "studies" / "hostile.ipynb")
    done = subprocess.run(
        [sys.executable, "-c", f"{before}\n{COMMAND}", "build", ".", "-q"],
        cwd=place,
        env=os.environ | {"PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return place / "_build" / "html" / "book" / "studies" / "hostile.html"


ALL_EVENTS = """
for (const each of document.querySelectorAll('details')) each.open = true;
for (const each of document.querySelectorAll('a'))
  if (each.protocol === 'javascript:') each.click();
for (const each of document.querySelectorAll('*:not(head *)'))
  for (const name of ['mouseover', 'focus', 'load', 'error']) each.dispatchEvent(new Event(name));
"""


def visited(page: Page, file: Path) -> tuple[list[str], object]:
    """Open and point at everything in a page.

    Returns what it asked for beyond this disk, and the mark that an attack leaves, or None.
    """
    asked: list[Asked] = []
    page.on("request", lambda r: asked.append(r))  # noqa: PLW0108  (playwright marks what it calls)
    page.on("dialog", lambda dialog: dialog.dismiss())
    page.goto(file.as_uri())
    page.evaluate(ALL_EVENTS)
    for chart in page.locator(".vega-chart").all():
        chart.scroll_into_view_if_needed()
        chart.locator("svg").first.hover(force=True)
    page.wait_for_timeout(500)
    near = ("file:", "data:", "blob:")
    beyond = [r.url for r in asked if not r.url.startswith(near) and r.failure != "csp"]
    return beyond, page.evaluate(f"window.{MARK} ?? null")


@pytest.fixture
def bare(browser: Browser) -> Iterator[Page]:
    """A page that may complain."""
    context = browser.new_context()
    yield context.new_page()
    context.close()


@pytest.mark.timeout(300)
def test_a_page_of_a_record_whose_every_name_is_an_attack_runs_none(
    page: Page, tmp_path: Path
) -> None:
    """The browser logs no attack that the policy stopped: all of them are shown as text."""
    shown = built(page_of(hostile_record(GENUINE, tmp_path)), tmp_path / "book")
    assert visited(page, shown) == ([], None)
    page.locator(".vega-chart[data-live]").wait_for()
    assert page.locator(".vega-chart[data-live]").count() == 1
    assert not list(tmp_path.rglob(MARK))
    assert page.get_by_text("onerror").count() > 20


@pytest.mark.timeout(300)
def test_where_names_are_not_escaped_they_run_and_the_policy_stops_them(
    bare: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgservers.shown.markdown", str)  # which a study's modules import anew
    hostile = page_of(hostile_record(GENUINE, tmp_path))
    open_ = built(hostile, tmp_path / "open", before=UNESCAPED + UNBOUND)
    asked, mark = visited(bare, open_)
    assert asked
    assert mark == 1
    bound = built(hostile, tmp_path / "bound", before=UNESCAPED)
    assert visited(bare, bound) == ([], None)


def reported(place: Path) -> Path:
    """A report of a comparison whose every name is an attack."""
    words = {"hostname": NAME, "cpu_model": NAME, NAME: NAME}
    versions = {"version_text": f"PostgreSQL {NAME}"}
    about = info_of(host=words, server=versions, servers={"/home/me/patched": versions})
    about["plans"] = {arm: {"insert": NAME, SHORT: NAME} for arm in about["plans"]}
    steps = {SHORT: logs(1.1), "insert": logs(1.0)}
    found = result(made_up(samples_of(steps), about), failures=[NAME])
    request = Request(Side("embedded"), Side("17", {"jit": NAME}), (NAME,), parameters={NAME: NAME})
    text = as_text(found, NAME)
    assert all(line.isprintable() for line in text.split("\n"))
    return write_report(found, request, text, place / "report.html")


def test_a_report_of_names_that_are_attacks_runs_none(page: Page, tmp_path: Path) -> None:
    assert visited(page, reported(tmp_path)) == ([], None)
    page.locator(".vega-chart[data-live]").first.wait_for()
    assert page.locator(".vega-chart[data-live]").count() == 2


def test_what_is_planted_in_a_report_runs_only_without_its_policy(
    bare: Page, tmp_path: Path
) -> None:
    text = reported(tmp_path).read_text(encoding="utf-8")
    planted = text.replace("<h2>As text</h2>", "".join(ATTACKS[:4]) + "<p>here</p>")
    file = tmp_path / "planted.html"
    file.write_text(planted, encoding="utf-8")
    assert visited(bare, file) == ([], None)
    file.write_text(re.sub(r"<meta http-equiv=[^>]*>", "", planted), encoding="utf-8")
    asked, mark = visited(bare, file)
    assert asked
    assert mark == 1


@pytest.mark.parametrize("name", ["plans/plans.html", "book/first_page.html", "book/lead_on.html"])
def test_a_page_that_needs_no_script_allows_none(name: str) -> None:
    source = (paths.ROOT / "lib" / "pgapps" / name).read_text(encoding="utf-8")
    assert '<meta http-equiv="Content-Security-Policy" content="{{ policy() }}">' in source
    assert "<script" not in source
    assert "default-src 'none'; script-src 'none';" in policy()
