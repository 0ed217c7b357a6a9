"""A study in a real JupyterLab, driven as a reader would: run, change, run again, interrupt."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from pgstudies.rooms import find_room

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Locator, Page

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(find_spec("jupyterlab") is None, reason="`make test-lab` installs it"),
]

SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},  # else cells out of sight are no text
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}

SMALL = {"rows": "5_000", "iterations": "3", "selects": "5", "blocks": "2"}

MINUTE = 60_000


@pytest.fixture(scope="module")
def address(run_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """JupyterLab on a copy of the notebooks in which cluster_order is small."""
    here = tmp_path_factory.mktemp("lab")
    notebooks = here / "notebooks"
    shutil.copytree(find_room("cluster_order").directory, notebooks / "cluster_order")
    notebook = notebooks / "cluster_order" / "cluster_order.ipynb"
    document = json.loads(notebook.read_text(encoding="utf-8"))
    (cell,) = (c for c in document["cells"] if "parameters" in c["metadata"].get("tags", []))
    lines = ["".join(cell["source"])]
    cell["source"] = [with_values(lines[0], SMALL)]
    notebook.write_text(json.dumps(document), encoding="utf-8")
    for name, settings in SETTINGS.items():
        file = here / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += ["--ServerApp.port=0", "--IdentityProvider.token=of-the-test"]
    runtime = here / "runtime"
    own = {
        "PGSTUDIES_NOTEBOOKS": str(notebooks),
        "PGSTUDIES_RECORDS": str(here / "records"),
        "PGSTUDIES_RUN_DIR": str(run_base),
        "PGSTUDIES_SERVER": "embedded",
        "JUPYTERLAB_SETTINGS_DIR": str(here / "settings"),
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "JUPYTER_CONFIG_DIR": str(here / "config"),
        "JUPYTER_DATA_DIR": str(here / "data"),
    }
    with (here / "log").open("wb") as log:
        server = subprocess.Popen(
            [*command, str(notebooks)],
            cwd=notebooks,
            env=os.environ | own,
            stdout=log,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + 60
        # The file is there before what it says.
        while not (told := "".join(f.read_text() for f in runtime.glob("jpserver-*.json"))):
            assert server.poll() is None, (here / "log").read_text()
            assert time.monotonic() < deadline, (here / "log").read_text()
            time.sleep(0.1)
        yield str(json.loads(told)["url"])
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)


def with_values(source: str, values: dict[str, str]) -> str:
    """The cell of parameters with other values."""
    for name, value in values.items():
        (line,) = (x for x in source.splitlines() if x.startswith(f"{name}: "))
        declared, _, rest = line.partition(" = ")
        source = source.replace(line, f"{declared} = {value}  # {rest.partition('# ')[2]}")
    return source


@pytest.fixture(scope="module")
def lab(browser: Browser, address: str) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1300, "height": 900})
    page.goto(f"{address}lab/tree/cluster_order/cluster_order.ipynb?token=of-the-test")
    page.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=MINUTE)
    wait_until_idle(page)
    yield page
    page.close()


def choose(page: Page, menu: str, entry: str) -> None:
    page.locator(f'.lm-MenuBar-itemLabel:text-is("{menu}")').click()
    page.locator(f'.lm-Menu-itemLabel:text-is("{entry}")').click()


def wait_until_idle(page: Page) -> None:
    page.wait_for_selector("#jp-main-statusbar >> text=| Idle", timeout=2 * MINUTE)
    page.wait_for_function(
        "() => ![...document.querySelectorAll('.jp-InputPrompt')].some(p => p.innerText == '[*]:')",
        timeout=2 * MINUTE,
    )


def run_all(page: Page) -> None:
    """Begin to run all cells; returns when the first one that is not collapsed has been run."""
    prompts = ".jp-CodeCell .jp-InputPrompt"
    before = page.locator(prompts).all_text_contents()
    choose(page, "Run", "Run All Cells")
    page.wait_for_function(
        "([css, old]) => [...document.querySelectorAll(css)]"
        ".some((p, i) => !['', '[*]:', old[i]].includes(p.textContent))",
        arg=[prompts, before],
        timeout=MINUTE,
    )


def code_cell(page: Page, begins: str) -> Locator:
    return page.locator(".jp-CodeCell").filter(has_text=begins).first


def change(page: Page, values: dict[str, str]) -> None:
    """Type other values into the cell of parameters."""
    editor = code_cell(page, "iterations: int = ").locator(".cm-content")
    lines = editor.locator(".cm-line").all_inner_texts()
    editor.click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(with_values("\n".join(lines), values))


def pink(page: Page) -> list[str]:
    """What JupyterLab shows as errors."""
    kind = '.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.stderr"]'
    texts = page.locator(kind).all_inner_texts()
    return [text.strip() for text in texts]


def measured(page: Page) -> Locator:
    return code_cell(page, "record = study.measure(").locator(".jp-OutputArea-output")


def test_run_all_ends_with_verdicts_charts_and_nothing_in_the_pink_of_errors(lab: Page) -> None:
    run_all(lab)
    wait_until_idle(lab)
    assert pink(lab) == []
    told = measured(lab).filter(has_text="10/10")
    assert told.get_attribute("data-mime-type") == "application/vnd.jupyter.stdout"
    # Drawn by JupyterLab after the kernel has ended.
    lab.locator(".vega-embed").locator("canvas, svg").nth(4).wait_for(state="attached")
    claim = "With the patch, inserting rows takes about twice as long."
    lab.locator(".jp-OutputArea-output").filter(has_text=claim).first.wait_for(state="visible")


def test_a_changed_parameter_is_what_the_next_run_is_made_with(lab: Page) -> None:
    change(lab, {"blocks": "3"})
    run_all(lab)
    wait_until_idle(lab)
    assert pink(lab) == []
    # Not by its code: the cell is collapsed.
    told = lab.locator(".jp-OutputArea-output").filter(has_text="cluster_every").first.inner_text()
    (blocks,) = (row for row in told.splitlines() if row.startswith("blocks"))
    assert blocks.split()[1] == "3"


def test_a_value_that_is_not_allowed_is_answered_in_one_sentence(lab: Page) -> None:
    change(lab, {"blocks": "0"})
    run_all(lab)
    wait_until_idle(lab)
    first, *later = pink(lab)
    assert first == "StudyError: cluster_order: blocks must be between 1 and 1000, and 0 is not."
    # A cell that JupyterLab sends after the error is run, with the study of before: refused, too.
    refused = "StudyError: blocks was changed: run the cells from pg.study on again."
    assert later in ([], [refused])


def test_interrupting_leaves_a_sentence_that_says_how_to_go_on(lab: Page) -> None:
    change(lab, {"blocks": "400"})
    run_all(lab)
    measured(lab).filter(has_text="block ").first.wait_for(timeout=2 * MINUTE)
    choose(lab, "Kernel", "Interrupt Kernel")
    wait_until_idle(lab)
    assert pink(lab) == [
        "Interrupted. Blocks that were finished are kept: run all cells again with the same "
        "parameters, and the run goes on after them."
    ]
