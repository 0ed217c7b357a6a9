"""Linking a backend anew: a made-up one of three objects and a library, which shows its layout."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from functools import partial
from typing import TYPE_CHECKING

import pytest

from pgservers.errors import CannotRun, ServerError
from pgservers.programs import relinking
from pgservers.programs.cached import finish
from pgservers.programs.installations import Binaries
from pgservers.programs.relinking import KEPT, can_relink, keep_link, relinked

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")

MAIN = """
#include <stdio.h>
#include <string.h>
int first(int), second(int), third(int);
int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "--version")) return puts("postgres (PostgreSQL) 18.6") < 0;
    printf("%p first\\n%p second\\n%p third\\n", (void *) first, (void *) second, (void *) third);
    return first(1) + second(2) != third(3);
}
"""

SOURCES = {
    "main": MAIN,
    "first": "int first(int i) { return i; }",
    "second": "int helped(int); int second(int i) { return helped(i); }",
    "third": "int third(int i) { return i; }",
    "helped": "int helped(int i) { return i; }",
}

COMMAND = "cc main.o first.o second.o third.o -L../port ../port/libpgport_srv.a -lm -o postgres"


def run(*command: str | Path, cwd: Path) -> str:
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout


def compile_into(backend: Path, *names: str) -> None:
    """Compile these sources, and put "helped" into the library."""
    run("cc", "-c", *(f"{name}.c" for name in names), cwd=backend)
    run("ar", "crs", "../port/libpgport_srv.a", "helped.o", cwd=backend)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The tree of a build, of which an installation at ``cache/made`` has the program."""
    backend, port = tmp_path / "tree" / "backend", tmp_path / "tree" / "port"
    for directory in (backend, port, tmp_path / "cache" / "made" / "bin"):
        directory.mkdir(parents=True)
    for name, text in SOURCES.items():
        (backend / f"{name}.c").write_text(text)
    compile_into(backend, *SOURCES)
    run(*COMMAND.split(), cwd=backend)
    shutil.copy(backend / "postgres", tmp_path / "cache" / "made" / "bin")
    return tmp_path / "tree"


@pytest.fixture
def made(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Binaries:
    """The installation, with its objects; the tree is gone."""
    prefix = tree.parent / "cache" / "made"
    monkeypatch.setenv("PGSTUDIES_CACHE", str(prefix.parent))
    # An installation may lie beside the tree, with a name that begins alike.
    command = f"{COMMAND} -Wl,-rpath,'{tree}s/made/lib',--enable-new-dtags"
    program, kept = prefix / "bin" / "postgres", prefix / KEPT
    keep_link(command, program, kept, cwd=tree / "backend", trees=[tree])
    finish(prefix)
    shutil.rmtree(tree)
    return Binaries(prefix / "bin", 180006, "PostgreSQL 18.6", "made up")


def layout(program: Path) -> tuple[str, ...]:
    """The functions in the order in which they lie."""
    lines = run(program, cwd=program.parent).splitlines()
    return tuple(name for _, name in sorted((int(a, 16), n) for a, n in map(str.split, lines)))


def test_layout_is_drawn_anew_by_each_seed_and_is_the_same_by_the_same(
    made: Binaries, tmp_path: Path
) -> None:
    target = tmp_path / "postgres"
    assert can_relink(made)
    found, digests = [], []
    for seed in [*range(12), 0]:
        digests.append(relinked(made, seed, target))
        found.append(layout(target))
    assert found[0] == found[-1]
    assert digests[0] == digests[-1]
    assert len(set(found)) >= 4, "of the six orders of three functions"
    with target.open("rb") as before:
        relinked(made, 2, target)
        assert os.fstat(before.fileno()).st_ino != target.stat().st_ino, "it is another file"
    assert [p.name for p in tmp_path.glob("*postgres")] == ["postgres"]


def test_servers_of_one_block_run_one_link_that_is_made_once(
    made: Binaries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    links: list[int] = []

    def noted(kept: Path, program: Path, seed: int, target: Path) -> None:
        links.append(seed)
        link(kept, program, seed, target)

    link = relinking._link
    monkeypatch.setattr(relinking, "_link", noted)
    for block in (1, 2):
        for study in ("one", "other"):
            (tmp_path / study).mkdir(exist_ok=True)
            for side in (0, 10, 20):
                relinked(made, block + side, tmp_path / study / f"postgres{side}")
        ones, others = (sorted((tmp_path / s).iterdir()) for s in ("one", "other"))
        assert [p.read_bytes() for p in ones] == [p.read_bytes() for p in others]
        assert all(os.access(p, os.X_OK) for p in (*ones, *others))
    assert links == [1, 11, 21, 2, 12, 22]


def test_a_thin_library_is_kept_with_what_it_refers_to(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tree / "port" / "libpgport_srv.a"
    library.unlink()
    run("ar", "crsT", "../port/libpgport_srv.a", "helped.o", cwd=tree / "backend")
    assert library.read_bytes().startswith(b"!<thin>")
    prefix = tree.parent / "cache" / "made"
    monkeypatch.setenv("PGSTUDIES_CACHE", str(prefix.parent))
    # Meson's own commands are for the top of the build.
    command = COMMAND.replace("../", "").replace("cc ", "ccache cc ").replace("port/", "./port/")
    names = " ".join(f"backend/{name}.o" for name in ("main", "first", "second", "third"))
    command = command.replace("main.o first.o second.o third.o", names)
    command += f" -Wl,-rpath,{len(f'{prefix}/lib/more') * 'X'}"
    run(*shlex.split(command.removeprefix("ccache ")), cwd=tree)
    shutil.copy(tree / "postgres", prefix / "bin")
    keep_link(command, prefix / "bin" / "postgres", prefix / KEPT, cwd=tree, trees=[tree])
    finish(prefix)
    shutil.rmtree(tree)
    kept = json.loads((prefix / "relink" / "command.json").read_text())
    assert [word for word in kept if "/" in word or word == "ccache"] == [
        f"-Wl,-rpath,{prefix}/lib/////"
    ]
    binaries = Binaries(prefix / "bin", 180006, "PostgreSQL 18.6", "made up")
    relinked(binaries, 3, prefix.parent / "postgres")
    assert sorted(layout(prefix.parent / "postgres")) == ["first", "second", "third"]


def test_only_builds_of_ours_are_linked_anew(
    made: Binaries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = made.bindir.parent / "relink" / "command.json"
    words = command.read_text()
    monkeypatch.setenv("PGSTUDIES_CACHE", str(tmp_path / "elsewhere"))
    assert not can_relink(made)
    monkeypatch.setenv("PGSTUDIES_CACHE", str(tmp_path / "cache"))
    command.write_text(json.dumps(["touch", str(tmp_path / "run"), "-o", "postgres", "0001-x.o"]))
    assert not can_relink(made)
    with pytest.raises(ServerError, match="cannot be relinked: its object files in"):
        relinked(made, 1, tmp_path / "postgres")
    assert not (tmp_path / "run").exists()
    command.write_text(words)
    assert can_relink(made)
    command.chmod(0o666)
    assert not can_relink(made)


def test_a_linker_that_fails_is_told_in_one_sentence(made: Binaries, tmp_path: Path) -> None:
    kept = made.bindir.parent / "relink"
    (thrown,) = kept.glob("*-third.o")
    words = json.loads((kept / "command.json").read_text())
    (kept / "command.json").write_text(json.dumps([w for w in words if w != thrown.name]))
    finish(made.bindir.parent)
    with pytest.raises(ServerError, match=r"cc: .*undefined reference to `third'") as raised:
        relinked(made, 1, tmp_path / "postgres")
    assert "\n" not in str(raised.value)
    assert list(tmp_path.glob("*postgres")) == []


@pytest.mark.parametrize(
    "command", ["", "cc --version", COMMAND.replace("third.o", ""), f"{COMMAND} -Wl,-T,%s/x"]
)
def test_what_does_not_link_the_same_program_is_not_kept(tree: Path, command: str) -> None:
    prefix = tree.parent / "cache" / "made"
    program, command = prefix / "bin" / "postgres", command.replace("%s", str(tree))
    with pytest.raises(CannotRun):
        keep_link(command, program, prefix / KEPT, cwd=tree / "backend", trees=[tree])


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("third", "int third(int i) { return i - 1; }"),
        ("helped", "int table[] = {7}; int helped(int i) { return i * table[0]; }"),
    ],
)
def test_objects_of_another_build_are_not_kept(tree: Path, name: str, source: str) -> None:
    """Other code, or the same with another number in its data."""
    program, backend = tree.parent / "cache" / "made" / "bin" / "postgres", tree / "backend"
    keep = partial(keep_link, COMMAND, program, cwd=backend, trees=[tree])
    if name == "helped":
        (backend / "helped.c").write_text(source.replace("7", "8"))
        compile_into(backend, "helped")
        run(*COMMAND.split(), cwd=backend)
        shutil.copy(backend / "postgres", program)
    keep(tree.parent / "as it is")
    run("strip", program, cwd=tree)
    keep(tree.parent / "stripped")
    (backend / f"{name}.c").write_text(source)
    compile_into(backend, name)
    with pytest.raises(CannotRun, match="does not give the installed program"):
        keep(tree.parent / "changed")
