"""A notebook that is edited measures something else: what was measured before is left alone."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from pgapps.compare.design import Side
from pgapps.compare.request import Request
from pgapps.compare.run import compared
from pgservers import paths
from pgservers.errors import Interrupted
from pgservers.paths import ROOT
from pgstudies.measuring.trial import Trial
from pgstudies.records import code
from pgstudies.records.reading import list_records, read_record
from tests.made_up import copied_rooms

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

EDITS = {
    "a helper": ("edited.ipynb", "count(*)", "sum(i)", '`count` under "The procedure"'),
    "a constant": ("edited.ipynb", "ROWS = 20", "ROWS = 30", '`ROWS` under "What is prepared"'),
    "a setting": ("edited.ipynb", "off", "on", '`settings` under "What is prepared"'),
    "a module": ("steps.py", "SELECT i", "SELECT -i", "steps.py"),
    "an arm": ("arms.py", "7", "8", "arms.py"),
}


@pytest.fixture
def room(private: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: ARG001
    monkeypatch.setattr(paths, "NOTEBOOKS", (copied_rooms(tmp_path, "edited"),))
    return tmp_path / "notebooks" / "edited"


def execute(room: Path) -> None:
    """The cells of the notebook, as a kernel executes them."""
    space: dict[str, Any] = {"__name__": "__main__", "In": [""]}
    for cell in json.loads((room / "edited.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            text = "".join(cell["source"])
            space["In"].append(text)
            exec(compile(text, "<cell>", "exec"), space)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))


def interrupt_after_a_block(room: Path) -> None:
    def timed(trial: Trial, *_: object) -> None:
        if trial.block == 2:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trial, "timed", timed)
        with pytest.raises(Interrupted):
            execute(room)


def test_an_interrupted_run_is_not_continued_after_an_edit_and_says_of_what(
    room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt_after_a_block(room)
    for file, old, new, told in EDITS.values():
        left = list_records("edited")["path"][-1]
        edit(room / file, old, new)
        interrupt_after_a_block(room)
        assert f"Not continuing {left}: since then {told} changed.\n" in capsys.readouterr().err
    assert list_records("edited")["blocks_done"].to_list() == [1] * (1 + len(EDITS))


def test_an_interrupted_run_is_continued_after_an_edit_of_something_else(
    room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt_after_a_block(room)
    edit(room / "edited.ipynb", "A table.", "Another table.")
    edit(room / "edited.ipynb", "blocks: int = 2", "blocks: int = 3")
    execute(room)
    assert list_records("edited")["blocks_done"].to_list() == [3]
    edit(room / "edited.ipynb", "seed: int = 1 ", "seed: int = 2 ")
    interrupt_after_a_block(room)
    assert "Not continuing" not in capsys.readouterr().err  # another run, asked for as such


@pytest.mark.parametrize("counts", [True, False])
def test_a_run_is_not_continued_after_an_edit_of_the_library_as_it_was_where_that_did_not_count(
    room: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    counts: bool,
) -> None:
    """``trial.record`` is edited to write ten times the value."""
    trial = tmp_path / "pgstudies" / "measuring" / "trial.py"
    trial.parent.mkdir(parents=True)
    shutil.copy(ROOT / "lib" / "pgstudies" / "measuring" / "trial.py", trial)
    monkeypatch.setattr(code, "_LIB", tmp_path)
    monkeypatch.setattr(code, "_library", code._library.__wrapped__ if counts else dict)
    edit(room / "edited.ipynb", "    count(trial)", "    trial.record('two', 'two', 2, '')")
    interrupt_after_a_block(room)
    left = list_records("edited")["path"].item()
    record = Trial.record

    def ten_times(self: Trial, step: str, metric: str, value: float, *a: Any, **k: Any) -> None:
        record(self, step, metric, 10 * value, *a, **k)

    edit(trial, "    def record(", "    def edited(")
    monkeypatch.setattr(Trial, "record", ten_times)
    execute(room)
    found = read_record(list_records("edited")["path"][-1])
    values = found.measured.filter(metric="two", arm="plain").sort("block")["value"].to_list()
    is_told = f"Not continuing {left}: since then pgstudies/measuring/trial.py changed."
    assert (is_told in capsys.readouterr().err) == counts
    assert values == ([20, 20] if counts else [2, 20])


@pytest.mark.thorough
def test_a_comparison_is_not_added_to_after_an_edit_and_says_of_what(
    room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def compare(work_mem: str, blocks: int) -> list[Path]:
        sides = Side("embedded"), Side("embedded", {"work_mem": work_mem})
        request = Request(*sides, ("edited",), blocks=blocks, instructions=False)
        (found,) = compared(request, tell=lambda _: None, warn=lambda _: None).measured
        return [*found.paths]

    first = compare("1MB", 2)
    assert compare("1MB", 3)[:1] == first
    edit(room / "steps.py", "SELECT i", "SELECT -i")
    (other,) = compare("2MB", 4)
    assert "Not continuing" not in capsys.readouterr().err  # of another candidate
    last = compare("1MB", 5)
    assert len(last) == 1
    assert not {*last} & {*first, other}
    said = capsys.readouterr().err
    assert "since then steps.py changed." in said
