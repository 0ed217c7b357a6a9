"""The page of the environment: commands that a shell takes as they stand."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from pgapps.book.environment import commands
from pgapps.execution.executed import StudyPage
from pgstudies.records.reading import read_record
from tests.made_up import swept_record

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.usefixtures("private")
def test_commands_are_quoted_for_the_shell(tmp_path: Path) -> None:
    server = {"version_text": "18.6", "spec": "host=db user=me; rm -rf ~"}
    path = swept_record(tmp_path, "a host; $(x)", server=server, profile="quick")
    row = commands([StudyPage("swept", "quick", read_record(path))]).row(0, named=True)
    again = shlex.split(row["measure again"])
    assert again[-2:] == ["--server", server["spec"]]
    assert shlex.split(row["analyse again"])[-2:] == ["--replay", "a host; $(x)"]
