"""What this machine and a server can do, and what will be left out, one line each."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import tempfile
from collections import Counter
from importlib.metadata import version
from itertools import chain
from typing import TYPE_CHECKING

import psutil

from pgservers.addresses import EMBEDDED
from pgservers.errors import CannotRun, SpaceError, StudyError
from pgservers.files import is_full, size_text
from pgservers.host.facts import git_revision, mount_of, nearest_existing
from pgservers.host.gate import gate
from pgservers.host.hardware import reason_no_counter
from pgservers.host.usage import device_bytes
from pgservers.host.wakeups import wake_up_seconds
from pgservers.paths import records_dir, run_dir
from pgservers.programs.accounts import server_account
from pgservers.programs.releases import is_release, reason_not_available, releases
from pgservers.programs.versions import has
from pgservers.servers.serve import serve
from pgservers.tools import installing, missing
from pgstudies.analysis.claims import claims, origins
from pgstudies.measuring.cold import can_evict, reason_not_cold
from pgstudies.measuring.counters import StatementCounters, cpu_seconds
from pgstudies.measuring.requirements import unmet_requirements
from pgstudies.records.counts import INSTRUCTIONS, claims_counted

from ..counting.valgrind import reason_no_valgrind, valgrind_version
from .checks import Check, examine_extensions
from .reading import examine_reading

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pgservers.servers.base import Right
    from pgservers.servers.serve import Server
    from pgstudies.analysis.agreement import Claim


_FICLONE = 0x40049409  # ioctl of Linux: make one file share the blocks of another


def examine(spec: str | None, *, otherwise: str = EMBEDDED) -> Iterator[Check]:
    """Check the machine and the server ``spec`` (as for ``serve``), which is left as it was.

    A server that is named comes first; without a name, ``otherwise`` is checked last.
    """
    machine, served = chain(_software(), _machine()), _served(spec or otherwise)
    yield from chain(machine, served) if spec is None else chain(served, machine)


def _served(spec: str) -> Iterator[Check]:
    """The checks of a server; if it cannot be used by studies, whether it can be read."""
    try:
        with serve(spec, limits="modelled") as server:
            yield from _server(server)
    except StudyError as error:
        reading = examine_reading(spec)
        if reading is None or reading.ok is False:
            yield Check("server", False, str(error), error.exit_code)
        else:
            why = str(error).rstrip(".")
            yield Check("server", None, f"studies, comparisons and workloads: not run: {why}")
        if reading is not None:
            yield reading


def exit_code(checks: Sequence[Check]) -> int:
    """0, or the exit code of the first check that failed."""
    return next((check.exit_code for check in checks if check.ok is False), 0)


def _software() -> Iterator[Check]:
    names = ["pgstudies", "polars", "psycopg", "altair", "papermill"]
    packages = ", ".join(f"{name} {version(name)}" for name in names)
    yield Check("software", True, f"Python {platform.python_version()}, {packages}")
    if git := git_revision():
        changed = ", with changes that are not committed" if git["dirty"] else ""
        yield Check("git", True, f"revision {str(git['revision'])[:10]}{changed}")
    else:
        yield Check("git", None, "not a git checkout; records will lack the revision")
    yield _tools()
    yield _releases()
    yield _valgrind()


def _tools() -> Check:
    lacking = missing()
    needs = "; ".join(f"no {tool.name}: not run: {tool.need}" for tool in lacking)
    command = installing(*(tool.name for tool in lacking))
    return _able("tools", not lacking, "all that studies and tests need", f"{needs} ({command})")


def _releases() -> Check:
    known = releases()
    cached = sum(release.cached for release in known)
    reasons = {r.name: why for r in known if (why := reason_not_available(r.name))}
    lacking = "other releases" if len(reasons) == len(known) else ", ".join(reasons)
    found = f"{len(known)} of PostgreSQL, {known[0].name} to {known[-1].name}, {cached} cached"
    return _able(
        "releases",
        not reasons,
        found if cached == len(known) else f"{found}; mvn fetches the others when they are needed",
        f"{found}; arms on {lacking}: not run: {'; '.join([*reasons.values()][-1:])}",
    )


def _valgrind() -> Check:
    if reason := reason_no_valgrind():
        return Check("valgrind", None, f"counts of instructions: not run: {reason}")
    return Check("valgrind", True, f"instructions are counted under {valgrind_version()}")


def _machine() -> Iterator[Check]:
    memory = psutil.virtual_memory()
    yield Check(
        "machine",
        True,
        f"{platform.system()} {platform.release()}, {_usable_cores()} cores, "
        f"{size_text(memory.total)} of memory, {size_text(memory.available)} available",
    )
    yield _wake_up()
    yield _space("records", records_dir(), "PGSTUDIES_RECORDS")
    yield _space("server data", run_dir(), "PGSTUDIES_RUN_DIR")
    quiet = Check("quiet", True, "nothing was found that would disturb a measurement")
    yield from [Check(f.name, None, f.sentence) for f in gate(run_dir())] or [quiet]


def _server(server: Server) -> Iterator[Check]:
    can = server.capabilities
    is_managed = can.has("restart")
    whose = "managed: each run starts and stops it" if is_managed else "external"
    release = f"PostgreSQL {server.version_text.removeprefix('PostgreSQL ')}"
    place = server.spec
    if server.binaries is not None and server.binaries.stands_in:
        place = f"{server.binaries.source}: {server.binaries.stands_in}"
    yield Check("server", True, f"{release} ({place}), {whose}")
    if is_managed and os.geteuid() == 0:
        yield Check("account", True, f"you are root, so servers run as {server_account().name}")
    for right, (name, then, without) in _RIGHTS.items():
        reason = can.reason(right)
        yield _able(name, reason is None, then, f"{without}: {reason}")
    if is_managed:
        yield _able(
            "copies",
            _can_reflink(nearest_existing(run_dir())),
            "data directories are copied by reflink, which takes hardly any time and space",
            "data directories are copied byte by byte: this file system has no reflinks (XFS and "
            "Btrfs have)",
        )
    reason = reason_not_cold(server)
    way = "emptying buffers" if can_evict(server) else "a restart"
    yield _able(
        "cold cache",
        reason is None,
        f"by {way} and dropping the run's own files from the page cache",
        f"steps with a cold cache: not run: {reason}",
    )
    yield from _counters(server)
    yield _features(server)
    yield from examine_extensions(server)
    yield from _claims(server)


_RIGHTS: dict[Right, tuple[str, str, str]] = {
    "superuser": ("superuser", "the role is a superuser", "steps that need a superuser: not run"),
    "restart": (
        "settings",
        "arms may change any setting",
        "arms that change a setting of the whole server: not run",
    ),
    "databases": (
        "states",
        "prepared tables are copied for every block",
        "prepared tables are loaded again for every block, which takes longer",
    ),
    "checkpoint": (
        "checkpoints",
        "each study makes a checkpoint before it measures",
        "no CHECKPOINT before a step, so one may fall into it",
    ),
    "limits": (
        "limits",
        "a slow disk and a small memory can be modelled for the server",
        "steps with a slow disk or a small memory: not run",
    ),
    "pgbench": (
        "pgbench",
        "pgbench times transactions of microseconds",
        "steps that need pgbench: not run",
    ),
}
"""For each right: its name, what it makes possible, and what happens without it."""


def _counters(server: Server) -> Iterator[Check]:
    with server.connect() as connection:
        counted = StatementCounters(connection).available
    yield _able(
        "counters",
        counted,
        f"buffers{' and WAL' if has(server.version, 'counts WAL') else ''} are counted for every "
        f"statement",
        "buffers and WAL: not recorded: pg_stat_statements is not in shared_preload_libraries, "
        "or CREATE EXTENSION is not allowed",
    )
    yield _cpu_and_device(server)
    reason = server.capabilities.reason("processes") or reason_no_counter()
    yield _able(
        "instructions",
        reason is None,
        "the processor's counter is read for every timed statement",
        f"instructions of a timed statement: not recorded: {reason}",
    )


def _cpu_and_device(server: Server) -> Check:
    both = "CPU time and bytes read from the device"
    lacking = {}
    if reason := server.capabilities.reason("processes"):
        lacking[both] = reason
    else:
        pids = server.pids()
        if cpu_seconds(*pids) is None:
            lacking["CPU time"] = (
                "this kernel does not account for it in nanoseconds (/proc/<pid>/schedstat); "
                "what would be judged by it is judged by wall time"
            )
        if device_bytes(pids) is None:
            lacking["bytes read from the device"] = "this system hides them (/proc/<pid>/io)"
    said = "; ".join(f"{what}: not recorded: {why}" for what, why in lacking.items())
    return _able("cpu and device", not lacking, f"{both} are recorded", said)


def _claims(server: Server) -> Iterator[Check]:
    """How many claims of each study a quick run can judge there, and why not the others."""
    every = []
    for study in origins():
        found = foreseen(study, server)
        every += found
        able = [claim for claim, reason in found if reason is None]
        summary = f"{len(able)} of {len(found)} claims can be judged on this server"
        beside = [claim for claim in able if any(map(is_release, claim.requires))]
        if beside:
            summary += f" ({len(beside)} by releases that the run starts itself)"
        whys = Counter(reason for _, reason in found if reason is not None)
        others = "".join(f"; {count} cannot: {why}" for why, count in whys.items())
        yield _able(study, not others, summary, summary + others)
    can = sum(reason is None for _, reason in every)
    yield Check("claims", True, f"a quick run of all studies can judge {can} of {len(every)} here")


def _features(server: Server) -> Check:
    """Other features that a build may lack, and that change what is measured."""
    lacks = {
        "lz4 (values are compressed by pglz)": (
            "SELECT 'lz4' = ANY(enumvals) FROM pg_settings WHERE name = 'default_toast_compression'"
        ),
        "ICU (collations are the C library's)": (
            "SELECT count(*) > 0 FROM pg_collation WHERE collprovider = 'i'"
        ),
    }
    if not has(server.version, "default_toast_compression"):
        return Check("features", None, "lz4 and ICU are not checked before release 14")
    with server.connect() as connection:
        missing = [k for k, sql in lacks.items() if connection.execute(sql).fetchone() != (True,)]
    without = f"the server is built without {' and '.join(missing)}"
    return _able("features", not missing, "the server is built with lz4 and ICU", without)


def _wake_up() -> Check:
    try:
        same_s, other_s = wake_up_seconds(same_core=True), wake_up_seconds(same_core=False)
    except CannotRun as reason:
        return Check("wake-up", None, f"the time to wake a process was not measured: {reason}")
    return Check(
        "wake-up",
        True,
        f"waking a process takes {1e6 * other_s:.0f} µs on another core, {1e6 * same_s:.0f} µs on "
        f"the same one; with io_method = worker, the default since 18, each awaited read takes two",
    )


def _able(name: str, able: bool, then: str, otherwise: str) -> Check:
    return Check(name, True, then) if able else Check(name, None, otherwise)


def _space(name: str, directory: Path, variable: str) -> Check:
    """Whether ``directory``, or the nearest one above that exists, can be written to."""
    place = nearest_existing(directory)
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        sentence = f"{directory} cannot be written to: set {variable} to a directory that can"
        return Check(name, False, sentence, SpaceError.exit_code)
    mount = mount_of(place)
    kind = mount.fstype if mount else "unknown file system"
    free = size_text(shutil.disk_usage(place).free)
    return Check(name, True, f"{directory} ({kind}, {free} free); change it by {variable}")


def _can_reflink(directory: Path) -> bool:
    temporary = tempfile.TemporaryFile
    with temporary(dir=directory) as source, temporary(dir=directory) as copy:
        source.write(b"\0" * 8192)
        source.flush()
        try:
            fcntl.ioctl(copy.fileno(), _FICLONE, source.fileno())
        except OSError as error:
            if is_full(error):
                raise
            return False
    return True


def _usable_cores() -> int:
    known = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if known else psutil.cpu_count() or 1


def foreseen(study: str, server: Server) -> list[tuple[Claim, str | None]]:
    """The claims of a study, each with the reason why a quick run cannot judge it, or None.

    Reasons that only measuring shows, such as noise, are not foreseen.  A claim about instructions
    is judged by its commit's counts, if there are any, on every server.
    """
    unmet = unmet_requirements(study, server, {})
    counted = claims_counted().filter("by_commit")["claim"].to_list()
    found = []
    for claim in claims(study, places=origins()[study].places):
        is_counted = claim.judged_by == INSTRUCTIONS and claim.id in counted
        form = claim.by_commit if is_counted and claim.by_commit else claim
        lacking = [unmet[name] for name in form.requires if name in unmet]
        larger = f"this needs --profile {claim.size}" if claim.size else None
        found.append((claim, next(filter(None, [form.not_tested, *lacking, larger]), None)))
    return found
