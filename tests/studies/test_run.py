"""Running a study: what the book gets, what it does not get, and how a run ends."""

from __future__ import annotations

import errno
import gc
import io
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from papermill import PapermillExecutionError

from pgapps.execution import kernel as _kernel
from pgapps.execution.executed import HIDDEN, error_of, hiding, without_secrets
from pgapps.execution.plan import plan, studies
from pgapps.execution.run import read_studies, run_planned, run_study
from pgservers import paths
from pgservers.addresses import Address
from pgservers.errors import NotebookError, ServerError, SpaceError, StudyError
from pgservers.files import sweep_temporary
from tests.made_up import ROOMS, copied_rooms
from tests.servers_at_hand import wait_until_dead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pgapps.execution.run import Executed

    Start = Callable[..., tuple[subprocess.Popen[str], list[psutil.Process]]]

PASSWORD = "kept-from-the-page"
ADDRESS = f"postgresql://me:{PASSWORD}@db.invalid/postgres"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of the test notebooks; all that a run writes goes there."""
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    (tmp_path / "_toc.yml").write_text("parts: []\n")
    monkeypatch.setattr(paths, "NOTEBOOKS", (tmp_path / "notebooks", ROOMS))
    monkeypatch.setattr(paths, "STUDIES", tmp_path / "studies")
    monkeypatch.setattr(paths, "BUILD", tmp_path / "_build")
    monkeypatch.setenv("PGSTUDIES_RECORDS", str(tmp_path / "records"))
    for name in ("SERVER", "REPLAY", "FRESH", "PROFILE", "RECORD_FILE"):
        monkeypatch.delenv(f"PGSTUDIES_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def document(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def outputs(path: Path) -> str:
    return json.dumps([cell.get("outputs") for cell in document(path)["cells"]])


def injected(path: Path) -> str:
    return next(
        "".join(cell["source"])
        for cell in document(path)["cells"]
        if "injected-parameters" in cell["metadata"]["tags"]
    )


def profile(place: Path, name: str, study: str, text: str) -> None:
    room = copied_rooms(place, study) / study
    (room / "sizes.toml").write_text(f"[{name}]\n{text}")


# A run that succeeds


def test_studies_are_the_notebooks(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"well", "broken", "no_parameters"} <= set(studies())
    monkeypatch.setattr(paths, "NOTEBOOKS", (place,))
    for name in ("b/b.ipynb", "a/a.ipynb", "a/b.ipynb", "_template/_template.ipynb", "c/d.ipynb"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).touch()
    assert studies() == ["a", "b"]


def test_a_run_puts_the_notebook_into_the_book_and_tells_what_it_rests_on(place: Path) -> None:
    terminal = io.StringIO()
    path = run_study("well", parameters={"rows": "3_000"}, fresh=True, terminal=terminal).notebook
    assert path == place / "studies" / "well.ipynb"
    assert list(path.parent.iterdir()) == [path]
    metadata = document(path)["metadata"]
    assert metadata["pgstudies"] == {
        "study": "well",
        "profile": "quick",
        "record": "/records/well/1",
        "parameters": {
            "rows": 3000,
            "iterations": 4,
            "share": 0.02,
            "cold": True,
            "starts": [1, 2, 3],
            "memory": 80,
            "order": "random",
        },
    }
    assert metadata["papermill"]["output_path"] == "studies/well.ipynb"
    assert str(place) not in json.dumps(metadata)
    assert f"3000 {sys.executable} quick 1" in outputs(path)
    assert injected(path).splitlines()[:2] == ["# Parameters", "rows = 3000"]
    assert terminal.getvalue() == "well: 3/3\n"
    texts = [o["text"] for c in document(path)["cells"] for o in c.get("outputs", [])]
    assert texts[0] == ["well: 3/3\n"]  # of the bar, its last state only


def test_notebooks_that_measure_nothing_are_executed_one_on_each_core(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = place / "notebooks" / "another"
    room.mkdir(parents=True)
    shutil.copy(ROOMS / "well" / "well.ipynb", room / "another.ipynb")
    both = threading.Barrier(2, timeout=60)

    def started(study: str, **options: Any) -> Executed:
        both.wait()  # fails unless the other one has been started as well
        return run_study(study, **options)

    monkeypatch.setattr("pgapps.execution.run.run_study", started)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    done = read_studies({"well": None, "another": None})
    assert [one.notebook.name for one in done] == ["well.ipynb", "another.ipynb"]
    assert {page.name for page in (place / "studies").iterdir()} == {"another.ipynb", "well.ipynb"}
    assert not logging.getLogger("papermill").disabled
    gc.collect()  # complains of an event loop that a thread has left open


def test_one_that_fails_among_several_is_told_when_those_begun_have_ended(place: Path) -> None:
    with pytest.raises(NotebookError, match="broken stopped in"):
        read_studies({"broken": None, "well": None})
    assert [page.name for page in (place / "studies").iterdir()] in ([], ["well.ipynb"])


def test_a_notebook_without_parameters_runs_with_any_server_into_any_directory(
    place: Path,
) -> None:
    failed = place / "_build" / "failed" / "no_parameters.ipynb"
    failed.parent.mkdir(parents=True)
    failed.touch()
    output = place / "{braces}" / "out.ipynb"
    done = run_study("no_parameters", server="embedded", output=output, terminal=io.StringIO())
    assert done.notebook == output
    assert len(document(output)["cells"]) == 2
    assert not failed.exists(), "what failed before is removed by a success"


# Parameters


def test_the_command_line_goes_before_the_profile_and_that_before_the_notebook(place: Path) -> None:
    profile(place, "standard", "well", "rows = 9_000\niterations = 9\nserver = 'embedded'\n")
    chosen = plan("well", profile="standard", parameters={"iterations": "8"})
    assert chosen.server.text == "embedded"
    assert chosen.injected == chosen.parameters
    assert [chosen.parameters[n] for n in ("rows", "iterations", "memory")] == [9000, 8, 80]


def test_a_directory_of_binaries_is_named_in_full(place: Path) -> None:
    (place / "pg19").mkdir()
    assert plan("well", server="pg19").server.text == str(place / "pg19")


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"profile": "huge"}, "no profile huge; the profiles are: quick, standard, published"),
        ({"profile": "published"}, "well has no published profile"),
        ({"parameters": {"iterations": 0}}, "iterations must be between 1 and 10"),
        ({"server": "embedded", "parameters": {"server": "16"}}, "Two servers are given"),
        ({"replay": Path()}, "There is no complete record of well at "),
    ],
)
def test_what_cannot_be_is_refused_before_a_kernel_starts(
    arguments: dict[str, Any], what: str, place: Path
) -> None:
    with pytest.raises(StudyError, match=what):
        run_study("well", **arguments)
    assert not (place / "studies").exists()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("rows = [", r"well/sizes\.toml cannot be read: "),
        ("row = 1", "well has no parameter row; did you mean rows"),
        ('[[standard]]\nrows = "many"', r"well/sizes\.toml: standard must be a table"),
    ],
)
def test_a_wrong_profile_is_named(text: str, what: str, place: Path) -> None:
    profile(place, "quick", "well", text)
    with pytest.raises(StudyError, match=what):
        plan("well")


# A run that fails


def test_a_failing_cell_is_named_and_the_book_keeps_what_it_had(place: Path) -> None:
    before = run_study("no_parameters", terminal=io.StringIO()).notebook
    kept = before.rename(before.with_name("broken.ipynb")).read_bytes()
    with pytest.raises(NotebookError) as caught:
        run_study("broken", terminal=io.StringIO())
    assert str(caught.value) == (
        'broken stopped in cell 3, under "Verdict": ZeroDivisionError: division by zero; '
        "the notebook as far as it came is _build/failed/broken.ipynb."
    )
    assert (place / "studies" / "broken.ipynb").read_bytes() == kept
    partial = document(place / "_build" / "failed" / "broken.ipynb")
    assert partial["metadata"]["papermill"]["exception"] is True
    assert partial["metadata"]["pgstudies"]["study"] == "broken"


def test_a_failed_assertion_says_what_it_expected() -> None:
    with pytest.raises(NotebookError, match="AssertionError: assert claims == 2;") as caught:
        run_study("disproved", terminal=io.StringIO())
    assert "in cell 1, `# assertions are how" in str(caught.value)  # which has no heading


def test_an_error_of_ours_keeps_its_sentence_and_class(place: Path) -> None:
    with pytest.raises(ServerError, match=r"^The server at nowhere does not answer\.$"):
        run_study("refused", terminal=io.StringIO())
    assert list((place / "studies").iterdir()) == []
    assert not (place / "_build").exists()


def test_a_killed_kernel_is_said_to_be_killed(place: Path) -> None:
    terminal = io.StringIO()
    sentence = 'in cell 3, under "Measure": its kernel was killed by SIGKILL, as Linux does when'
    with pytest.raises(NotebookError, match=sentence):
        run_study("dying", terminal=terminal)
    assert list((place / "studies").iterdir()) == []
    assert terminal.getvalue() == ""


@pytest.mark.parametrize(
    ("code", "start_s", "what"),
    [
        ("raise SystemExit('no kernel today')", 60, "ended with status 1: no kernel today;"),
        (  # and not the KeyboardInterrupt that ended it
            "import sys, time; print('the port is taken', file=sys.stderr); time.sleep(600)",
            1,
            "did not answer: the port is taken;",
        ),
    ],
)
def test_a_kernel_that_does_not_start_or_answer_says_why(
    code: str, start_s: int, what: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "ipykernel_launcher.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(place))
    monkeypatch.setattr(_kernel, "START_S", start_s)
    with pytest.raises(NotebookError, match=f"stopped in its first cell: its kernel {what}"):
        run_study("no_parameters", terminal=io.StringIO())


def test_a_kernel_is_reached_by_sockets_of_ours_and_leaves_nothing(
    temporary: Path, start: Start
) -> None:
    run, (kernel,) = start()
    (sockets,) = temporary.iterdir()
    assert sockets.stat().st_mode & 0o777 == 0o700
    listening = {c.laddr for c in kernel.net_connections(kind="unix")}
    assert listening >= {f"{sockets}/kernel-ipc-{n}" for n in range(1, 6)}
    run.send_signal(signal.SIGINT)
    run.communicate()
    assert list(temporary.iterdir()) == []


def test_the_path_of_temporary_files_may_be_long(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a" * 20, "b" * 120):
        monkeypatch.setattr(tempfile, "tempdir", str(place / name))
        (place / name).mkdir()
        assert run_study("no_parameters", terminal=io.StringIO()).notebook.exists()


def test_progress_of_a_run_begun_in_jupyterlab_goes_to_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "mine.ipynb")
    assert "None" in outputs(run_study("no_parameters", terminal=io.StringIO()).notebook)


def test_kernels_that_the_user_installed_are_not_used(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = place / "jupyter" / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"argv": ["/nowhere/python", "-f", "{connection_file}"]}))
    monkeypatch.setenv("JUPYTER_PATH", str(place / "jupyter"))
    assert sys.executable in outputs(run_study("well", terminal=io.StringIO()).notebook)


# Passwords


@pytest.mark.parametrize(
    "arguments",
    [
        {"server": ADDRESS},
        {"parameters": {"server": ADDRESS}},
        {"usual_server": ADDRESS},
        {},  # by the profile
    ],
)
def test_no_password_is_in_the_notebook(arguments: dict[str, Any], place: Path) -> None:
    if not arguments:
        profile(place, "quick", "telling", f"server = '{ADDRESS}'\n")
    with pytest.raises(NotebookError) as caught:
        run_planned(plan("telling", **arguments), terminal=io.StringIO())
    text = (place / "_build" / "failed" / "telling.ipynb").read_text()
    assert f"connecting to {HIDDEN}" in text
    assert f"RuntimeError: {HIDDEN}" in str(caught.value)
    assert PASSWORD not in text
    assert PASSWORD not in str(caught.value)


def test_a_password_of_the_environment_is_not_in_the_notebook_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def execute(_: Path, executed: Path, *_more: object) -> None:
        output = {"output_type": "stream", "name": "stdout", "text": [f"{PASSWORD}\n"]}
        cell = {"cell_type": "code", "metadata": {}, "source": [], "outputs": [output]}
        executed.write_text(json.dumps({"cells": [cell], "metadata": {"papermill": {}}}))

    monkeypatch.setattr("pgapps.execution.kernel.execute", execute)
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    text = run_study("no_parameters").notebook.read_text()
    assert HIDDEN in text
    assert PASSWORD not in text


@pytest.mark.parametrize("address", [ADDRESS, "postgresql://me@db.invalid/postgres"])
def test_the_server_is_named_without_its_password(address: str) -> None:
    path = run_study("well", server=address, terminal=io.StringIO()).notebook
    named = document(path)["metadata"]["pgstudies"]["server"]
    assert named == "postgresql://me@db.invalid/postgres"
    assert "server" not in injected(path)
    assert PASSWORD not in path.read_text()


@pytest.mark.parametrize("address", ["postgresql://me:word@db/x?colour=red", "colour=red"])
def test_an_address_that_cannot_be_read_is_not_quoted(address: str) -> None:
    with pytest.raises(ServerError) as caught:
        plan("well", server=address)
    assert "word" not in str(caught.value)
    with pytest.raises(ServerError):
        plan("well", usual_server=address)


def test_a_full_disk_is_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pgapps.execution.run._execute", full)
    with pytest.raises(SpaceError, match="No space left while writing to studies"):
        run_study("no_parameters")
    assert list((place / "studies").iterdir()) == []


@pytest.mark.parametrize(
    ("text", "password", "shown"),
    [
        ("p%40ss%2Fword9 p@ss/word9", "p@ss/word9", f"{HIDDEN} {HIDDEN}"),
        ('it\'s "secret&9"', "secret&9", f'it\'s "{HIDDEN}"'),
        ("secret&amp;9", "secret&9", HIDDEN),
        ("secret&#34;9 secret&quot;9", 'secret"9', f"{HIDDEN} {HIDDEN}"),
        ("me:me@db and me, password=me", "me", f"me:{HIDDEN}@db and me, password={HIDDEN}"),
        ("the user postgres", "postgres", "the user postgres"),
    ],
)
def test_passwords_are_hidden_however_they_are_spelled(
    text: str, password: str, shown: str
) -> None:
    cell = {"source": text, "outputs": [{"output_type": "stream", "text": [text]}]}
    kept = without_secrets({"cells": [cell]}, hiding(Address.parse("embedded"), password))
    (found,) = kept["cells"]
    assert found["outputs"][0]["text"] == [shown]
    assert found["source"] == text


def test_nothing_is_hidden_without_a_password() -> None:
    output = {"output_type": "stream", "text": "postgresql://me@db/x ::"}
    notebook = {"cells": [{"source": "", "outputs": [output]}, {"source": "text"}]}
    assert without_secrets(notebook, hiding(Address.parse("postgresql://me@db/x"))) == notebook


def test_an_error_without_words_is_given_by_its_name() -> None:
    notebook = {"cells": [{"cell_type": "code", "metadata": {}, "source": "x = 1\n"}]}
    stopped = PapermillExecutionError(0, 1, "x = 1\n", "MemoryError", "", [])
    found = error_of(notebook, stopped, hiding(Address.parse("embedded")))
    assert str(found) == "cell 1, `x = 1`: MemoryError"


def test_a_notebook_that_exits_has_not_come_to_its_end(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = document(ROOMS / "dying" / "dying.ipynb")
    for cell in notebook["cells"]:
        if "SIGKILL" in "".join(cell["source"]):
            cell["source"] = "raise SystemExit"
    (place / "leaving").mkdir()
    (place / "leaving" / "leaving.ipynb").write_text(json.dumps(notebook))
    monkeypatch.setattr(paths, "NOTEBOOKS", (place,))
    with pytest.raises(NotebookError, match=r"stopped in cell 3.*: its kernel was told to exit"):
        run_study("leaving", terminal=io.StringIO())


# Signals

RUN = """
import sys
from pathlib import Path
from pgservers import paths

paths.NOTEBOOKS, paths.STUDIES = (Path(sys.argv[1]),), Path(sys.argv[2])
sys.argv[1:] = ["run", *sys.argv[3:]]
from pgapps.cli import main

main()
"""


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A directory of temporary files, with a path that is short enough for one of a socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        yield Path(directory)


@pytest.fixture
def start(place: Path, temporary: Path) -> Start:
    """Start a run of ``endless`` and wait until it is in its cell; returns it and its kernel."""

    def started(
        notebook: str = "endless", *options: str
    ) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
        directory = place / "notebooks"
        (directory / "endless").mkdir(parents=True)
        source = ROOMS / notebook / f"{notebook}.ipynb"
        shutil.copy(source, directory / "endless" / "endless.ipynb")
        told = {"BEGAN": place / "began", "ENDED": place / "ended", "TMPDIR": temporary}
        run = subprocess.Popen(
            [sys.executable, "-c", RUN, directory, place / "studies", "endless", *options],
            env=os.environ | {name: str(path) for name, path in told.items()},
            stderr=subprocess.PIPE,
            text=True,
        )
        while not (place / "began").exists():
            assert run.poll() is None, run.communicate()
        return run, psutil.Process(run.pid).children(recursive=True)

    return started


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_cell_in_an_orderly_way(number: int, place: Path, start: Start) -> None:
    run, kernels = start()
    run.send_signal(number)
    _, said = run.communicate()
    assert run.returncode == 130
    stopping, interrupted = said.strip().splitlines()
    assert stopping.endswith("Ctrl-C again stops at once.")
    assert interrupted.endswith("what is finished is kept: run it again to continue.")
    assert (place / "ended").exists()
    assert list((place / "studies").iterdir()) == []
    assert wait_until_dead(kernels)


INTO_A_TERMINAL = (
    """
import io
import os
import signal
import sys

class Terminal(io.RawIOBase):
    def writable(self):
        return True

    def write(self, data):
        if b"under way" in bytes(data):
            os.kill(os.getpid(), signal.SIGINT)
        return os.write(2, data)

sys.stderr = io.TextIOWrapper(io.BufferedWriter(Terminal()), line_buffering=True)
"""
    + RUN
)


def test_a_signal_may_come_while_the_terminal_is_written_to(place: Path) -> None:
    notebook = (ROOMS / "endless" / "endless.ipynb").read_text()
    (place / "notebooks" / "endless").mkdir(parents=True)
    (place / "notebooks" / "endless" / "endless.ipynb").write_text(
        notebook.replace(
            "time.sleep", "print('under way', file=__import__('sys').stderr); time.sleep"
        )
    )
    run = subprocess.run(
        [sys.executable, "-c", INTO_A_TERMINAL, place / "notebooks", place / "studies", "endless"],
        env=os.environ | {"BEGAN": str(place / "began"), "ENDED": str(place / "ended")},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert run.returncode == 130, run.stderr
    assert "Ctrl-C again stops at once." in run.stderr
    assert (place / "ended").exists()


def test_a_second_signal_does_not_wait(place: Path, start: Start) -> None:
    run, kernels = start("stubborn", "--fresh")
    run.send_signal(signal.SIGINT)
    assert run.stderr is not None
    said = run.stderr.readline() + run.stderr.readline()
    assert said.endswith("Ctrl-C again stops at once.\n")
    run.send_signal(signal.SIGINT)
    _, said = run.communicate()
    assert run.returncode == 130
    assert "Ctrl-C again" not in said  # it was not passed on as the first one was
    assert "run the command again without --fresh" in said.splitlines()[-1]
    assert not (place / "ended").exists()
    assert wait_until_dead(kernels)


def test_signals_while_an_interrupted_run_ends_do_not_change_how_it_ends(start: Start) -> None:
    """The interpreter takes half a second to end, in which it has no handlers of its own."""
    run, kernels = start()
    run.send_signal(signal.SIGINT)
    assert run.stderr is not None
    with run.stderr:
        while not run.stderr.readline().startswith("pgstudies: interrupted"):
            assert run.poll() is None
        while run.poll() is None:
            run.send_signal(signal.SIGINT)
            time.sleep(0.01)
    assert run.returncode == 130
    assert wait_until_dead(kernels)


def is_swept(directory: Path) -> bool:
    sweep_temporary(directory.parent)
    return not directory.exists()


def test_a_killed_run_takes_its_kernel_along_and_the_next_command_its_files(
    start: Start, temporary: Path, place: Path
) -> None:
    run, kernels = start()
    run.kill()
    run.communicate()
    assert wait_until_dead(kernels)
    assert list(temporary.iterdir())
    (beside,) = (place / "studies").iterdir()
    assert is_swept(beside)
    command = [sys.executable, "-m", "pgapps", "records"]
    subprocess.run(
        command, env=os.environ | {"TMPDIR": str(temporary)}, capture_output=True, check=True
    )
    assert list(temporary.iterdir()) == []
