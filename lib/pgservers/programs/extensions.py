"""The C extensions of this project, built on demand for the server in use."""

from __future__ import annotations

import hashlib
import shlex
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from psycopg import sql

from ..errors import CannotRun, ServerError, SpaceError
from ..files import cannot_write, copy_tree, temporary_directory
from ..paths import EXTENSIONS, cache_dir
from .accounts import can_execute, make_open_directory, server_account
from .cached import finish, is_finished, require_own, require_unchanged
from .compilers import compiler_version, find_compiler, find_make, server_headers
from .running import build_environment, run_with_us

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import psycopg

    from .installations import Binaries

    Connection = psycopg.Connection[Any]


FINDS_EXTENSIONS = 180000
"""The first version with extension_control_path."""

OLDEST = 150000
"""The oldest release that the sources are written for."""


def build(name: str, binaries: Binaries) -> dict[str, str]:
    """Build an extension for an installation, unless it is in the cache.

    Returns the settings by which a server of these programs finds it; other servers could differ in
    a struct.  The cache's key is the server's program and headers, the source and the compiler.
    Raises CannotRun with the first thing that is missing.
    """
    pg_config, headers = server_headers(binaries)
    if binaries.version < OLDEST:
        raise CannotRun(
            f"this project's extensions are for 15 and later, not for {binaries.version_text}"
        )
    make, compiler = find_make(), find_compiler()
    command = [make, f"PG_CONFIG={pg_config}", f"CC={shlex.join(compiler)}", "-s"]
    command += ["with_llvm=no", "all"]
    # Two builds may both be 20devel, and differ in the program or only in the headers.
    server = _digest(binaries.bindir / "postgres", *headers.rglob("*"))
    built = _kept(name, f"{name}-{binaries.version}", command, compiler, [server])
    libraries = {"dynamic_library_path": f"{built}:$libdir"}
    if binaries.version < FINDS_EXTENSIONS:
        return libraries
    return {"extension_control_path": f"{built}:$system", **libraries}


def create_extension(connection: Connection, name: str) -> None:
    """Create an extension that was built for the server, unless it exists.

    Before 18 CREATE EXTENSION finds only what is installed with the server, so the statements of
    the extension's script are run; the server finds the library by ``dynamic_library_path``.
    Raises psycopg.Error.
    """
    if connection.info.server_version >= FINDS_EXTENSIONS:
        connection.execute(
            sql.SQL("CREATE EXTENSION IF NOT EXISTS {}").format(sql.Identifier(name))
        )
        return
    known = connection.execute("SELECT FROM pg_proc WHERE probin = %s LIMIT 1", [name])
    if known.fetchone() is None:
        script = (EXTENSIONS / name / f"{name}--1.0.sql").read_bytes()
        # Its first line is for psql, which would otherwise run it outside of CREATE EXTENSION.
        _, _, statements = script.partition(b"\\quit\n")
        connection.execute(statements.replace(b"MODULE_PATHNAME", name.encode()))


def source_digests(names: Iterable[str | None]) -> dict[str, str]:
    """A digest of what each of these extensions is built from."""
    return {name: _digest(*(EXTENSIONS / name).glob("*")) for name in names if name}


def build_library(name: str) -> Path:
    """Build a library that any server can be started with, by LD_PRELOAD, as ``build`` does.

    Raises CannotRun with the first thing that is missing.
    """
    compiler = find_compiler()
    command = [*compiler, "-O2", "-shared", "-fPIC", "-o", f"{name}.so", f"{name}.c"]
    return _kept(name, name, [*command, "-ldl", "-lpthread"], compiler, []) / f"{name}.so"


def _kept(name: str, words: str, command: list[str], compiler: list[str], more: list[str]) -> Path:
    """The cache directory with what ``command`` builds, once, from the source of ``name``.

    Its name is ``words`` and a digest of the source, the compiler and ``more``.
    """
    source = EXTENSIONS / name
    if not source.is_dir():
        raise CannotRun(f"there is no extension {name}")
    key = [name, *more, _digest(*source.iterdir()), f"{compiler}{compiler_version(compiler)}"]
    mark = hashlib.sha256("\0".join(key).encode()).hexdigest()[:12]
    home = cache_dir() / "extensions"
    built = home / f"{words}-{mark}"
    try:
        if not is_finished(built):
            make_open_directory(home)
            require_own(home)
            _build(source, command, built)
        require_unchanged(built)
    except OSError as error:
        full = cannot_write(error, home, "PGSTUDIES_CACHE")
        raise CannotRun(str(full).rstrip(".")) from error
    except (ServerError, SpaceError) as error:
        raise CannotRun(str(error).rstrip(".")) from error
    account = server_account()
    if not can_execute(account, built):
        raise CannotRun(
            f"the servers' account {account.name} cannot read {home}: set PGSTUDIES_CACHE to a "
            f"directory that others may enter"
        )
    return built


def _build(source: Path, command: list[str], built: Path) -> None:
    with temporary_directory(built.parent) as aside:
        work, result = aside / "source", aside / "built"
        copy_tree(source, work)
        # Only what has been made: make install would choose directories by the words in their path.
        done = run_with_us(command, cwd=work, environment=build_environment())
        libraries = [p for p in work.glob(f"{source.name}.*") if p.suffix in {".so", ".dylib"}]
        if done.returncode != 0 or not libraries:
            output = (done.stderr or done.stdout).decode(errors="replace")
            lines = output.strip().splitlines() or ["it said nothing"]
            trouble = next((line for line in lines if "error" in line.lower()), lines[-1])
            raise CannotRun(f"{source.name} cannot be built: {trouble.strip()}")
        result.mkdir()
        shutil.copy(libraries[0], result)
        for file in [*work.glob(f"{source.name}.control"), *work.glob(f"{source.name}--*.sql")]:
            (result / "extension").mkdir(exist_ok=True)  # the server adds this word to its path
            shutil.copy(file, result / "extension")
        finish(result)
        with suppress(OSError):  # another process was faster
            result.rename(built)
    if not built.is_dir():
        raise CannotRun(f"{source.name} cannot be put into {built.parent}")


def _digest(*files: Path) -> str:
    """A checksum of the files that an extension is built from."""
    digest = hashlib.sha256()
    for file in sorted(files):
        if file.is_file():
            content = file.read_bytes()
            digest.update(f"{file.name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def self_test(name: str, connection: Connection) -> str:
    """Try an extension that has been created; returns what was seen.

    Runs the statements of ``self_test.sql``, parted by empty lines; the last one returns whether
    all is well and what was seen.  What they create goes with the session.  Raises CannotRun if the
    test fails, and psycopg.Error.
    """
    statements = (EXTENSIONS / name / "self_test.sql").read_bytes().split(b"\n\n")
    for statement in statements:
        cursor = connection.execute(statement)
    well, seen = cursor.fetchone() or (False, "nothing")
    if not well:
        raise CannotRun(f"the self-test of {name} failed: {seen}")
    return str(seen)


NAMES = tuple(sorted(source.parent.name for source in EXTENSIONS.glob("*/self_test.sql")))
"""The names of all extensions."""
