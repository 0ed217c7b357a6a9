"""The pages on what is safe: every test that they name is there."""

from __future__ import annotations

import re

import pytest

from pgservers.paths import BOOK, ROOT


@pytest.mark.parametrize("name", ["security", "on-your-server"])
def test_every_claim_names_a_test_that_there_is(name: str) -> None:
    """A test of an application has its name in front, and goes with it."""
    page = (BOOK / f"{name}.md").read_text(encoding="utf-8")
    lines = re.findall(r"^% (?:(\w+): )?(test_.*)$", page, re.MULTILINE)
    named = {
        test
        for application, line in lines
        if (ROOT / "lib" / "pgapps" / application).is_dir()
        for test in re.findall(r"test_\w+", line)
    }
    tests = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "tests").rglob("test_*.py"))
    assert named
    assert named - set(re.findall(r"def (test_\w+)", tests)) == set()


def test_actions_of_others_are_pinned_by_their_commits() -> None:
    """A tag can be moved to other code."""
    used = [
        line
        for file in (ROOT / ".github").rglob("*.yml")
        for line in file.read_text(encoding="utf-8").splitlines()
        if "uses:" in line and "OWNER/REPOSITORY" not in line
    ]
    pinned = re.compile(r".*uses: [\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+")
    assert used
    assert [line for line in used if not pinned.fullmatch(line)] == []


def test_a_vulnerability_can_be_reported_and_the_page_with_all_promises_is_linked() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert "security advisories" in text
    assert "](book/security.md)" in text
    assert len(text.splitlines()) <= 40


def test_every_section_has_a_claim_and_its_test() -> None:
    page = (BOOK / "security.md").read_text(encoding="utf-8")
    sections = page.split("\n## ")[1:]
    assert [s.splitlines()[0] for s in sections if not re.search(r"^% .*test_", s, re.M)] == []
