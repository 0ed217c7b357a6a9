"""Counting units of work on one server; counts are cached."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import polars as pl
import psycopg

from pgservers.addresses import EMBEDDED, Address
from pgservers.errors import CannotRun, SpaceError, StudyError
from pgservers.files import find_sealed, read_sealed, write_sealed
from pgservers.host.facts import cpu_model
from pgservers.paths import cache_dir
from pgservers.programs.extensions import build, create_extension
from pgservers.programs.installations import find_binaries
from pgservers.programs.locales import reason_no_locale
from pgservers.programs.versions import has
from pgservers.servers.facts import digest_of
from pgservers.servers.managed import ManagedServer
from pgservers.servers.serve import serve
from pgservers.sessions import prepare_transactions
from pgservers.terminal import Progress
from pgstudies.records.writing import parquet_bytes

from .frames import WHOLE, counted, deviation, per_unit
from .valgrind import count, valgrind_version

if TYPE_CHECKING:
    from collections.abc import Callable

    from .units import Unit


_FORMAT = 4
"""Raise it when counting changes: cached counts of a lower version are not used."""

SETTINGS = {
    "autovacuum": "off",
    "fsync": "off",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "max_parallel_maintenance_workers": "0",
    "client_min_messages": "warning",
    "shared_buffers": "64MB",
    "max_connections": "100",
    "max_locks_per_transaction": "256",
    "checkpoint_timeout": "1h",
}
"""Settings under which units are counted, unless they have their own."""


class Counter:
    """Counts units on one managed server, which is started only for counts that are not known yet.

    ``show`` gets the name of each step, ``advance`` is called after each run of a backend.  Raises
    CannotRun without valgrind and for an external server, ServerError where there is none.
    """

    def __init__(
        self,
        server: str = EMBEDDED,
        *,
        show: Callable[[str], object] = lambda _: None,
        advance: Callable[[], object] = lambda: None,
    ) -> None:
        self._version = valgrind_version()
        self.spec = server
        if Address.parse(self.spec).is_dsn:
            raise CannotRun("a server that is already running cannot be run under valgrind")
        self._binaries = find_binaries(self.spec)
        self._programs = digest_of(self._binaries)
        self._show = show
        self._advance = advance
        self._server: ManagedServer | None = None
        self._is_unprivileged = False
        self._is_stopped = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()

    @property
    def version_text(self) -> str:
        """The server's version, such as PostgreSQL 18.6."""
        return self._binaries.version_text

    def stop(self) -> None:
        """End the count that another thread waits for, with an error there."""
        self._is_stopped = True
        if self._server is not None:
            self._server.end()

    def count(self, unit: Unit, *, twice: bool = True, fresh: bool = False) -> pl.DataFrame:
        """The instructions of one unit; the table of ``counted``.

        Counts of the same programs are cached; with ``fresh`` the cache is neither read nor
        written.  Raises CannotRun where the unit cannot run here.
        """
        settings = self._settings(unit)
        kept = cache_dir() / "counts" / self._key(unit, settings)
        file = None if fresh else find_sealed(kept)
        with suppress(OSError, StudyError):  # else it is counted again
            known = pl.read_parquet(io.BytesIO(read_sealed(file))) if file else None
            if known is not None and not (twice and math.isnan(deviation(known))):
                return known
        first = self._once(unit, settings)
        found = counted(first, self._once(unit, settings) if twice else None)
        if fresh:
            return found
        with suppress(SpaceError):  # it is counted again, then
            write_sealed(kept, parquet_bytes(found), "PGSTUDIES_CACHE")
        return found

    def _once(self, unit: Unit, settings: dict[str, str]) -> pl.DataFrame:
        server = self._serving(unit, settings)

        def run(size: int) -> pl.DataFrame:
            self._require_not_stopped()
            self._show(f"counting {unit.name}, {size} at once")
            sized = settings | {"pgstudies.n": str(size)}
            found = count(server, _state(unit, settings), unit, sized)
            self._advance()
            return found

        small, large = unit.sizes
        first = run(small)
        if unit.inside:
            return first
        found = per_unit(first, run(large), (large - small) * unit.of)
        if found.filter(function=WHOLE)["inclusive"].item() <= 0:
            raise CannotRun(
                f"{large} of it take no more instructions than {small}, as other work of the "
                f"backend varies by more"
            )
        return found

    def _require_not_stopped(self) -> None:
        if self._is_stopped:
            raise CannotRun("the counting was stopped")

    def _serving(self, unit: Unit, settings: dict[str, str]) -> ManagedServer:
        """The server, with the state that the unit begins with."""
        if unit.locale and (no_locale := reason_no_locale(unit.locale)):
            raise CannotRun(no_locale)
        if self._server is not None and self._is_unprivileged != unit.unprivileged:
            self._server.close()
            self._server = None
        if self._server is None:
            self._show("starting a server")
            asked = SETTINGS
            if not has(self._binaries.version, "settings of any prefix"):
                asked = asked | {"custom_variable_classes": "pgstudies"}
            server = serve(self.spec, settings=asked, unprivileged=unit.unprivileged)
            assert isinstance(server, ManagedServer)
            self._server, self._is_unprivileged = server, unit.unprivileged
        server = self._server

        def build_state() -> None:
            self._require_not_stopped()  # what is started meanwhile was not ended with it
            if unit.load is not None:
                unit.load(server)
            prepare_transactions(server, unit.open_transactions, unit.subtransactions)
            with server.connect() as connection:
                sizes = f"{{{unit.sizes[0]},{unit.sizes[1]}}}"
                if unit.extension:
                    create_extension(connection, unit.extension)
                connection.execute("SELECT set_config('pgstudies.sizes', %s, false)", [sizes])
                for statement in unit.prepare:
                    connection.execute(statement.encode())

        self._show(f"preparing {unit.name}")
        try:
            server.prepare(_state(unit, settings), build_state, settings)
        except psycopg.Error as error:
            message = str(error).strip().splitlines()[0]
            raise CannotRun(f"it cannot be prepared: {message}") from error
        return server

    def _settings(self, unit: Unit) -> dict[str, str]:
        extension = build(unit.extension, self._binaries) if unit.extension else {}
        room = {"max_prepared_transactions": str(max(unit.open_transactions, 1))}
        return {**room, **unit.settings, **extension}

    def _key(self, unit: Unit, settings: dict[str, str]) -> str:
        """A digest of everything that the counts depend on."""
        here = [self._version, os.confstr("CS_GNU_LIBC_VERSION"), cpu_model()]
        what = [_FORMAT, self._programs, *here, SETTINGS, settings, unit.what_counts()]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:24]


def _state(unit: Unit, settings: dict[str, str]) -> str:
    return f"{unit.state} {sorted(settings.items())}"


def instructions(unit: Unit, *, server: str = EMBEDDED, top: int | None = 10) -> pl.DataFrame:
    """The instructions that one unit executes, and in which functions.

    A single-user backend of ``server`` (``embedded``, a release or a directory) runs both of the
    unit's sizes under valgrind's callgrind, on a copy of the prepared data; the difference is
    divided by that of the sizes.  One row for the whole (its ``function`` is ``WHOLE``), then the
    ``top`` functions by what each executes itself, None for all.  Columns: ``function``;
    ``inclusive`` and ``own``, instructions with and without what it calls; ``again``, ``inclusive``
    by a second count; ``share``, ``own`` as a part of the whole.

    Counts of the same programs are cached.  Raises CannotRun where the unit cannot be counted,
    ServerError where there is no such server.
    """
    with (
        Progress("counting", total=2 * unit.runs) as progress,
        Counter(server, show=progress.show, advance=progress.advance) as counter,
    ):
        found = counter.count(unit)
    return found if top is None else found.head(top + 1)
