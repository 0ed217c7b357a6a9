"""The built book works from disk and without a network, and its charts respond."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

import polars as pl
import pytest
from playwright.sync_api import expect

from pgapps.book.build import _has_reference, _toc_of
from pgservers import paths
from pgservers.paths import BOOK, HTML
from pgstudies.analysis.claims import all_claims, origins
from pgstudies.charts.outcomes import OUTCOMES
from pgstudies.rooms import rooms
from tests.servers_at_hand import skip_but_not_in_ci

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Locator, Page

STUDY = HTML / "book" / "studies" / "cluster_order.html"
PROSE = ["intro", "method", "simulations", "rules", "glossary", "history", "environment"]
PROSE += ["references", "your-server", "on-your-server", "compare", "workload", "plans", "commits"]
PROSE += ["hosts", "security", "add-a-study", "reference"]
PAGES = [
    "index.html",
    "search.html",
    *(f"book/{name}.html" for name in PROSE if (BOOK / f"{name}.md").exists()),
    *(f"book/studies/{study}.html" for study in rooms("study", "check", "counts", "summary")),
]
STUDIES = [page for page in PAGES if "/studies/" in page]
PHONE, WIDE = {"width": 390, "height": 844}, {"width": 1300, "height": 900}
on_a_phone = pytest.mark.parametrize("options", [{"viewport": PHONE}], ids=["phone"])
on_a_wide_screen = pytest.mark.parametrize("options", [{"viewport": WIDE}], ids=["wide"])

FIRST = "book/intro.html"
TALLEST = dict.fromkeys(STUDIES, 13_500) | {FIRST: 3000}
TALLEST_ON_A_PHONE = dict.fromkeys(PAGES, 12_000) | dict.fromkeys([PAGES[0], FIRST], 5000)
"""The most pixels of a page whose folds are closed."""


@pytest.fixture(scope="module", autouse=True)
def _needs(request: pytest.FixtureRequest) -> None:
    """Skip, with the reason, where there is nothing to test."""
    if not STUDY.exists():
        if request.config.getoption("--book"):
            pytest.fail("the book should have been built by the tests before these")
        skip_but_not_in_ci("the book is not built: make book")


def open_page(page: Page, path: Path) -> int:
    """Open a page, and all that is folded away in its sections; how tall it was before."""
    page.goto(path.as_uri())
    if path.name == "index.html":
        page.wait_for_url("**/book/intro.html")
    tall: int = page.evaluate("document.documentElement.scrollHeight")
    folds = "document.querySelectorAll('details.rest, details:has(.vega-chart)')"
    page.evaluate(f"{folds}.forEach(each => each.open = true)")
    return tall


def live_chart(page: Page, number: int = 0, study: Path = STUDY) -> Locator:
    """One of a study's charts, with its script running."""
    open_page(page, study)
    chart = page.locator(".vega-chart").nth(number)
    chart.scroll_into_view_if_needed()
    expect(chart).to_have_attribute("data-live", "")
    return chart


def read_charts(page: Page) -> None:
    """Scroll to each chart until its script runs; their text is readable, their legends short."""
    for chart in page.locator(".vega-chart").all():
        chart.scroll_into_view_if_needed()
        expect(chart).to_have_attribute("data-live", "")
    assert page.evaluate(UNREADABLE) == []
    figures = "[...document.querySelectorAll('.vega-chart figure')]"
    too_wide = f"{figures}.filter(f => f.scrollWidth > f.clientWidth + 1).map(f => f.textContent)"
    assert page.evaluate(too_wide) == []


@on_a_phone
@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_from_disk_and_fits_a_phone(page: Page, name: str) -> None:
    assert open_page(page, HTML / name) <= TALLEST_ON_A_PHONE[name]
    read_charts(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    boxes = "[...document.querySelectorAll('.vega-chart figure, .table-box:not(.score), .claims')]"
    too_wide = f"{boxes}.filter(b => b.scrollWidth > b.clientWidth).map(b => b.outerHTML)"
    assert page.evaluate(too_wide) == []


@on_a_phone
def test_on_a_phone_a_link_into_a_section_opens_it_and_no_other(page: Page) -> None:
    page.goto(f"{STUDY.as_uri()}#the-post-s-claims")
    expect(page.locator("#the-post-s-claims > details.section")).to_have_attribute("open", "")
    assert page.locator("details.section[open]").count() == 1
    assert page.locator("details.section").count() > 5


MOST_ENTRIES = 6
"""Of a legend; more are not told apart."""

UNREADABLE = f"""
[...document.querySelectorAll(".vega-chart svg.marks")].flatMap((svg) => {{
  const frame = svg.getBoundingClientRect();
  const isCut = (text) => {{
    const box = text.getBoundingClientRect();
    const isInside = box.left >= frame.left - 1 && box.right <= frame.right + 1
      && box.top >= frame.top - 1 && box.bottom <= frame.bottom + 1;
    const lines = [text, ...text.querySelectorAll("tspan")];
    return lines.some((line) => line.textContent.endsWith("…")) || (box.width > 0 && !isInside);
  }};
  const texts = [...svg.querySelectorAll("text")].filter(isCut).map((text) => text.textContent);
  const upright = [...svg.querySelectorAll("text")]
    .filter((text) => !/rotate\\((?!0\\))/.test(text.getAttribute("transform") ?? ""))
    .filter((text) => getComputedStyle(text).opacity !== "0")
    .map((text) => ({{ text: text.textContent, box: text.getBoundingClientRect() }}))
    .filter(({{ text, box }}) => box.width > 0 && text.trim());
  const touch = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4;
  const touching = upright.flatMap(({{ text, box }}, n) => upright.slice(n + 1)
    .filter((other) => touch(box, other.box)).map((other) => `${{text}} over ${{other.text}}`));
  const legends = [...svg.querySelectorAll(".role-legend")]
    .map((legend) => legend.querySelectorAll(".role-legend-label text").length)
    .filter((entries) => entries > {MOST_ENTRIES}).map((entries) => `a legend of ${{entries}}`);
  const name = svg.textContent;
  return [...texts, ...touching, ...legends].map((wrong) => `${{name}}: ${{wrong}}`);
}})"""


UNDER_CONTENTS = """
(() => {
  const contents = document.querySelector(".bd-sidebar-secondary");
  if (!contents?.clientWidth) return [];
  const from = contents.getBoundingClientRect().left;
  return [...document.querySelectorAll(".table-box, .vega-chart")]
    .filter((box) => box.clientWidth && box.getBoundingClientRect().right > from + 1)
    .map((box) => box.textContent);
})()"""


@on_a_wide_screen
@pytest.mark.parametrize("name", [page for page in PAGES if "search" not in page])
def test_on_a_wide_page_nothing_lies_under_its_contents(page: Page, name: str) -> None:
    assert open_page(page, HTML / name) <= TALLEST.get(name, math.inf)
    read_charts(page)
    assert page.evaluate(UNDER_CONTENTS) == []


@on_a_wide_screen
def test_the_scorecard_has_all_its_columns_in_sight(page: Page) -> None:
    page.goto(STUDY.with_stem("scorecard").as_uri())
    box = page.locator(".table-box.claims")
    assert box.evaluate("b => b.scrollWidth - b.clientWidth") <= 1


@on_a_phone
def test_on_a_phone_a_wide_table_names_its_columns_in_every_line(page: Page) -> None:
    open_page(page, STUDY)
    for row in page.locator("details:has(.table-box.wide)").all():
        row.evaluate("d => d.open = true")
    table = page.locator(".table-box.wide:visible").first
    names = table.locator("th").all_text_contents()
    cells = table.locator("tbody tr").first.locator("td").all()
    label = "c => getComputedStyle(c, '::before').content"
    assert [cell.evaluate(label) for cell in cells] == [f'"{name}: "' for name in names]


@pytest.mark.parametrize(
    "options",
    [{"java_script_enabled": False, "color_scheme": s} for s in ("light", "dark")],
    ids=["light", "dark"],
)
def test_charts_and_text_are_readable_without_scripts(page: Page) -> None:
    open_page(page, STUDY)
    charts = page.locator(".vega-chart svg.marks:visible").all()  # others are folded away
    assert len(charts) > 1
    for chart in charts:
        box = chart.bounding_box()
        assert box is not None
        assert min(box["width"], box["height"]) > 100
    assert page.locator("html").get_attribute("data-theme") == "light"


@pytest.mark.parametrize(
    "options", [{"java_script_enabled": False, "viewport": PHONE}], ids=["phone"]
)
@pytest.mark.parametrize("study", ["cluster_order", "releases", "scorecard"])
def test_without_scripts_a_phone_has_all_of_a_chart_in_sight(page: Page, study: str) -> None:
    open_page(page, STUDY.with_stem(study))
    charts = page.locator(".vega-chart svg.marks:visible").all()
    assert charts
    for chart in charts:
        box = chart.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= PHONE["width"]


@pytest.mark.parametrize("options", [{"java_script_enabled": s} for s in (True, False)])
def test_only_without_scripts_a_chart_says_what_alone_it_shows(
    page: Page, options: dict[str, bool]
) -> None:
    open_page(page, STUDY.with_stem("scorecard"))
    sentence = page.locator("noscript p").first  # without scripts an element, else a text
    assert sentence.is_visible() != options["java_script_enabled"]
    if not options["java_script_enabled"]:
        assert "this picture shows only “" in sentence.inner_text()


@pytest.mark.parametrize(
    "options", [{"color_scheme": s} for s in ("light", "dark")], ids=["light", "dark"]
)
def test_text_stands_out_from_the_page(page: Page) -> None:
    live_chart(page)
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    for place in (".vega-chart svg .role-axis-label text", ".table-box td", "article p", "pre"):
        ink = page.locator(place).first.evaluate(
            "e => { const s = getComputedStyle(e); "
            "return e.tagName === 'text' ? s.fill : s.color; }"
        )
        assert abs(_brightness(ink) - _brightness(paper)) > 100, place


@pytest.mark.parametrize("options", [{"color_scheme": "dark"}], ids=["dark"])
def test_a_live_chart_has_the_background_of_the_page(page: Page) -> None:
    svg = live_chart(page).locator("svg.marks")
    assert svg.evaluate("s => getComputedStyle(s).backgroundColor") == "rgba(0, 0, 0, 0)"
    backgrounds = svg.locator(":scope > rect")
    for i in range(backgrounds.count()):
        fill = backgrounds.nth(i).evaluate("r => getComputedStyle(r).fill")
        assert fill in {"rgba(0, 0, 0, 0)", "none"}


@pytest.mark.parametrize(
    ("study", "number", "options"),
    [("cluster_order", 1, {}), ("cluster_order", 1, {"viewport": PHONE}), ("hash_index", 2, {})],
    ids=["name of a line", "legend in its place on a phone", "legend"],
)
def test_a_click_on_a_name_fades_the_others_and_a_second_brings_them_back(
    page: Page, study: str, number: int
) -> None:
    chart = live_chart(page, number, STUDY.with_stem(study))
    marks = chart.locator(".mark-symbol.role-mark path")
    faded = chart.locator(".mark-symbol.role-mark path[opacity='0.1']")
    arms = chart.locator(".labels_names_marks text, .role-legend-label text")
    everything, number_of_arms = marks.count(), arms.count()
    assert number_of_arms >= 2
    arms.first.click(force=True)
    expect(faded).not_to_have_count(0)
    assert 0 < faded.count() < everything
    arms.first.click(force=True, modifiers=["Shift"])
    expect(faded).to_have_count(0)


def test_pointing_at_a_mark_tells_its_values(page: Page) -> None:
    chart = live_chart(page, 1)
    chart.locator(".mark-symbol.role-mark path").first.hover(force=True)
    tooltip = page.locator("#vg-tooltip-element")
    expect(tooltip).to_be_visible()
    assert re.search(r"\b(s|ms|seconds|pages|blocks)\b", tooltip.inner_text()), (
        "no unit in the tooltip"
    )


def test_a_chart_can_be_saved(page: Page) -> None:
    chart = live_chart(page)
    chart.get_by_text("Save chart").click()
    with page.expect_download() as download:
        chart.get_by_role("button", name="SVG").click()
    assert download.value.suggested_filename == "chart.svg"
    chart.get_by_text("Save chart").click()
    with page.expect_download() as download:
        chart.get_by_role("button", name="CSV").click()
    assert download.value.suggested_filename == "chart.csv"
    values = pl.read_csv(download.value.path())
    assert values.height > 1
    assert {"step", "seconds"} & set(values.columns) or values.width > 2


def test_every_chart_has_a_description(page: Page) -> None:
    open_page(page, STUDY)
    figures = page.locator(".vega-chart figure[role=img]")
    assert figures.count() == page.locator(".vega-chart").count() > 0
    for figure in figures.all():
        label = figure.get_attribute("aria-label") or ""
        assert len(label.split()) >= 4, label


def test_what_can_be_chosen_lies_outside_the_image(page: Page) -> None:
    chart = live_chart(page)
    assert chart.locator("figure :is(select, input, button, a)").count() == 0
    choice = chart.get_by_role("combobox")
    if choice.count():
        before = chart.locator("svg.marks").inner_html()
        choice.select_option(index=1)
        expect(chart.locator("svg.marks")).to_be_visible()
        page.wait_for_function(
            "([svg, before]) => svg.innerHTML !== before",
            arg=[chart.locator("svg.marks").element_handle(), before],
        )


def test_the_executed_notebook_can_be_downloaded(page: Page) -> None:
    open_page(page, STUDY)
    link = page.locator("a.btn-download-source-button").first.get_attribute("href")
    assert link is not None
    assert link.endswith(".ipynb")
    assert (STUDY.parent / unquote(link)).resolve().is_file()


def test_search_works_from_disk(page: Page) -> None:
    page.goto(f"{(HTML / 'search.html').as_uri()}?q=Lehmann")
    expect(page.locator("#search-results li a", has_text="Method").first).to_be_visible()


def test_a_change_of_theme_reaches_the_charts(page: Page) -> None:
    label = live_chart(page).locator(".role-axis-label text").first
    colours = set()
    for theme in ("light", "dark"):
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        colours.add(label.evaluate("e => getComputedStyle(e).fill"))
    assert len(colours) == 2


def test_the_front_page_opens_with_a_tile_for_every_claim(page: Page) -> None:
    open_page(page, HTML / "book" / "intro.html")
    assert page.locator(".score-study").count() == len(origins())
    tiles = page.locator(".score-study a.verdict")  # one click away
    assert tiles.count() == all_claims().height
    signs = {outcome.sign for outcome in OUTCOMES.values()}
    assert {text.split()[0] for text in tiles.all_inner_texts()} <= signs
    box = page.locator(".score-front").bounding_box()
    assert box is not None
    assert box["y"] < page.viewport_size["height"] / 2  # type: ignore[index]


@pytest.mark.parametrize("name", ["intro", "studies/scorecard"])
def test_links_of_the_scorecard_lead_to_places_that_exist(page: Page, name: str) -> None:
    path = HTML / "book" / f"{name}.html"
    open_page(page, path)
    links = page.locator(":is(.score-front, .score) a").evaluate_all(
        "links => links.map(link => link.getAttribute('href'))"
    )
    assert len(links) >= all_claims().height
    for target in {unquote(link) for link in links}:
        file, _, anchor = target.partition("#")
        text = (path.parent / file if file else path).read_text(encoding="utf-8")
        assert not anchor or f'id="{anchor}"' in text, target


def test_menus_choose_claims_and_the_address_keeps_the_choice(page: Page) -> None:
    path = HTML / "book" / "studies" / "scorecard.html"
    page.goto(path.as_uri())
    rows = page.locator(".score.claims tr[data-study]:visible")
    assert rows.count() == all_claims().height
    page.get_by_label("study", exact=True).select_option("hash_index")
    page.get_by_label("order", exact=True).select_option("verdict")
    expect(rows).to_have_count(all_claims().filter(study="hash_index").height)
    page.wait_for_load_state("networkidle")  # else what loads for the charts is cut off
    page.reload()
    expect(rows).to_have_count(all_claims().filter(study="hash_index").height)
    ranks = rows.evaluate_all("rows => rows.map(row => Number(row.dataset.rank))")
    assert ranks == sorted(ranks)
    assert page.locator(".score.claims tr.group:visible").count() == 1
    page.wait_for_load_state("networkidle")
    page.goto(f"{path.as_uri()}?verdict=<b>")
    expect(rows).to_have_count(all_claims().height)


def test_the_forest_plot_shows_one_study_when_it_is_chosen(page: Page) -> None:
    open_page(page, HTML / "book" / "studies" / "scorecard.html")
    chart = page.locator(".vega-chart").first
    chart.scroll_into_view_if_needed()
    expect(chart).to_have_attribute("data-live", "")
    labels = chart.locator(".role-axis-label text", has_text=":")
    everything = labels.count()
    assert chart.get_by_role("combobox").count() == 3
    chart.get_by_role("combobox").first.select_option("dead_tuples")
    expect(labels).not_to_have_count(everything)
    assert all(text.startswith("dead_tuples: ") for text in labels.all_text_contents())


@pytest.mark.parametrize("study", origins())
def test_a_study_answers_on_its_first_screen(page: Page, study: str) -> None:
    open_page(page, HTML / "book" / "studies" / f"{study}.html")
    height = page.viewport_size["height"]  # type: ignore[index]
    sentence = page.locator(".headline").first.bounding_box()
    assert sentence is not None
    # The machine of a reference record may have failed a check: a paragraph above says so.
    warning = 75 * page.get_by_text("failed a check of the measuring").count()
    assert sentence["y"] < height / 3 + warning
    box = page.locator(".vega-chart, .answer").first.bounding_box()
    assert box is not None
    assert box["y"] < 0.65 * height + warning
    rows = page.locator(".answer tbody tr")
    assert rows.count() == all_claims().filter(study=study).height
    assert page.locator("section > h2").first.inner_text().startswith("What was claimed")


@on_a_phone
def test_the_answer_needs_no_scrolling_sideways_on_a_phone(page: Page) -> None:
    open_page(page, STUDY)
    wide, room = page.locator(".answer").first.evaluate("e => [e.scrollWidth, e.clientWidth]")
    assert wide <= room


def test_a_study_with_neither_run_nor_record_is_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert not _has_reference("absent_study")
    told = "absent_study has not been run and has no reference record"
    assert told in capsys.readouterr().err
    toc = str(_toc_of([*set(rooms()) - {"releases"}, "mine"]))
    assert "book/studies/releases" not in toc
    assert "book/studies/hash_index" in toc
    assert "book/studies/mine" in toc
    assert "'book/compare'" in toc


def test_a_page_that_an_application_took_along_is_no_chapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "compare.md").write_text("# A page")
    monkeypatch.setattr(paths, "BOOK", tmp_path)
    toc = str(_toc_of([]))
    assert "'book/compare'" in toc
    assert "book/plans" not in toc


def _brightness(colour: str) -> float:
    parts = [float(x) for x in re.findall(r"[\d.]+", colour)[:3]]
    return 0.299 * parts[0] + 0.587 * parts[1] + 0.114 * parts[2]
