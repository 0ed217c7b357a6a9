"""Build trees of a user's own: a made-up one, and an installation that was made from it."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from pgapps.builds.trees import keep_links
from pgservers.programs.installations import find_binaries
from pgservers.programs.relinking import can_relink, place_of_links, relinked

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")

MAKEFILES = {
    "src/Makefile.global": """
../../src/Makefile.global: ../../configure
	touch ../../src/Makefile.global ../../remade
""",
    "src/port/Makefile": "all:\n\ttouch made\n",
    "src/backend/Makefile": """
include ../../src/Makefile.global
OBJS = main.o first.o second.o ../../src/port/libpgport_srv.a
postgres: $(OBJS)
	cc $(OBJS) -Wl,-rpath,'$(prefix)/lib',--enable-new-dtags -o postgres
%.o: %.c
	cc -c $< -o $@
../../src/port/libpgport_srv.a: | submake
submake:
	$(MAKE) -C ../port all
.PHONY: submake
""",
}

SOURCES = {
    "main.c": '#include <stdio.h>\nint main() { return puts("postgres (PostgreSQL) 18.6") < 0; }',
    "first.c": "int first(void) { return 1; }",
    "second.c": "int port(void); int second(void) { return port(); }",
}


def run(*command: str | Path, cwd: Path) -> None:
    subprocess.run(command, cwd=cwd, check=True, capture_output=True)


def seen(tree: Path) -> dict[Path, tuple[int, int]]:
    return {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in [tree, *tree.rglob("*")]}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tree."""
    monkeypatch.setenv("PGSTUDIES_CACHE", str(tmp_path / "cache"))
    tree = tmp_path / "src"
    for name in ("src/port", "src/backend"):
        (tree / name).mkdir(parents=True)
    for name, text in MAKEFILES.items():
        (tree / name).write_text(text)
    for name, text in SOURCES.items():
        (tree / "src" / "backend" / name).write_text(text)
    (tree / "src" / "port" / "port.c").write_text("int port(void) { return 3; }")
    run("cc", "-c", "port.c", cwd=tree / "src" / "port")
    run("ar", "crs", "libpgport_srv.a", "port.o", cwd=tree / "src" / "port")
    (tree / "configure").touch()
    os.utime(tree / "configure", (0, 0))
    return tree


@pytest.fixture
def prefix(tree: Path) -> Path:
    """The installation, in the tree, which it names, and whose ``configure`` is newer by now."""
    prefix = tree / "inst"
    run("make", f"prefix={prefix}", "postgres", cwd=tree / "src" / "backend")
    # Its own makefile is told by configure where it will be installed.
    with (tree / "src" / "Makefile.global").open("a") as file:
        file.write(f"prefix = {prefix}\n")
    (prefix / "bin").mkdir(parents=True)
    (prefix / "lib" / "pgxs" / "src").mkdir(parents=True)
    shutil.copy(tree / "src" / "backend" / "postgres", prefix / "bin")
    (prefix / "bin" / "initdb").write_text("#!/bin/sh\n")
    (prefix / "bin" / "initdb").chmod(0o755)
    named = f"abs_top_builddir = {tree}\nabs_top_srcdir = {tree}\n"
    (prefix / "lib" / "pgxs" / "src" / "Makefile.global").write_text(named)
    os.utime(tree / "src" / "Makefile.global", (0, 0))
    os.utime(tree / "configure", (1, 1))
    return prefix


def test_a_directory_is_linked_anew_from_the_tree_that_it_names_where_nothing_is_written(
    tree: Path, prefix: Path, tmp_path: Path
) -> None:
    before = seen(tree)
    said = f"{prefix} is relinked in every block, from the objects in {tree}."
    assert list(keep_links([str(prefix), str(prefix)])) == [said]
    assert seen(tree) == before
    assert list(keep_links([str(prefix)])) == []
    shutil.move(prefix, tmp_path / "inst")
    shutil.rmtree(tree)
    binaries = find_binaries(tmp_path / "inst")
    assert can_relink(binaries)
    assert len({relinked(binaries, seed, tmp_path / "postgres") for seed in range(8)}) > 1
    assert len(list(place_of_links().iterdir())) == 1
    run("strip", tmp_path / "inst" / "bin" / "postgres", cwd=tmp_path)
    assert not can_relink(find_binaries(tmp_path / "inst"))


def test_a_tree_of_ninja_serves_as_well(tree: Path, prefix: Path) -> None:
    if shutil.which("ninja") is None:
        pytest.skip("ninja is not installed")
    backend = [f"src/backend/{name}.o" for name in ("main", "first", "second")]
    (tree / "build.ninja").write_text(
        "rule cc\n  command = cc -c $in -o $out\n"
        "rule link\n  command = cc @$out.rsp\n  rspfile = $out.rsp\n"
        "  rspfile_content = $in src/port/libpgport_srv.a -o $out\n"
        + "".join(f"build {o}: cc {o.removesuffix('o')}c\n" for o in backend)
        + f"build src/backend/postgres: link {' '.join(backend)}\n"
    )
    run("ninja", cwd=tree)
    shutil.copy(tree / "src" / "backend" / "postgres", prefix / "bin")
    before = seen(tree)
    assert "is relinked" in next(keep_links([str(prefix)]))
    assert seen(tree) == before


def test_why_a_directory_is_not_linked_anew_is_said_in_one_sentence(
    tree: Path, prefix: Path
) -> None:
    def said() -> str:
        (line,) = keep_links([str(prefix)])
        assert line.startswith(f"{prefix} runs as it is, not relinked in every block: ")
        assert not can_relink(find_binaries(prefix))
        assert not list(place_of_links().glob("*"))
        return line.partition("block: ")[2]

    for place in (tree, tree / "src" / "port"):
        place.chmod(0o777)
        assert said() == f"other accounts can change {place}."
        place.chmod(0o755)
    makefile = tree / "src" / "backend" / "Makefile"
    makefile.write_text(MAKEFILES["src/backend/Makefile"].replace("-o postgres", "-o another"))
    assert said() == f"make does not say how the backend is linked in {makefile.parent}."
    makefile.write_text(MAKEFILES["src/backend/Makefile"])
    (tree / "src" / "backend" / "first.c").write_text("int first(void) { return 2; }")
    run("make", "postgres", cwd=tree / "src" / "backend")
    assert said() == f"{tree} has another build by now: install that, or use --repo."
    (tree / "src" / "backend" / "postgres").unlink()
    assert said() == f"there is no src/backend/postgres in {tree}."
    shutil.rmtree(prefix / "lib")
    assert said() == "it does not say where it was built."


def test_other_servers_have_no_tree() -> None:
    assert list(keep_links(["embedded", "17", "postgresql:///x", "/no/such/place"])) == []


def test_what_was_used_longest_ago_makes_room(
    tree: Path, prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgapps.builds.trees.MOST_BYTES", 1)
    assert list(keep_links([str(prefix)]))
    (first,) = place_of_links().iterdir()
    (tree / "src" / "backend" / "first.c").write_text("int first(void) { return 2; }")
    run("make", "postgres", cwd=tree / "src" / "backend")
    shutil.copy(tree / "src" / "backend" / "postgres", prefix / "bin")
    assert "is relinked" in next(keep_links([str(prefix)]))
    (second,) = place_of_links().iterdir()
    assert first != second
