"""Plain-text lists for the command line: studies, their parameters, records, servers."""

from __future__ import annotations

import io
import itertools
import json
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
from rich.console import Console
from rich.table import Table

from pgservers.addresses import EMBEDDED
from pgservers.errors import ServerError, StudyError
from pgservers.files import size_text
from pgservers.programs.installations import find_embedded, optimization
from pgservers.programs.releases import minor_releases, reason_not_available, releases, releases_dir
from pgservers.terminal import printable
from pgstudies.analysis.claims import origins
from pgstudies.analysis.intervals import MINIMUM_BLOCKS
from pgstudies.parameters import declared, spelled
from pgstudies.records import reading as recorded
from pgstudies.rooms import find_room

from ..compare.design import COMPARED
from ..execution.plan import plan, profiles_of
from ..execution.plan import studies as names_of_studies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgservers.programs.releases import Release
    from pgstudies.parameters import Parameter


def studies() -> str:
    """One line for each study: its name and the title of its page."""
    table = _table("", "")
    for name in names_of_studies():
        table.add_row(name, _title(name))
    return "\n".join(_drawn(table))


def parameters(study: str) -> str:
    """Two lines for each parameter: its values in all profiles, then its help and limits.

    For a study with claims, the blocks that they need come first.  Raises StudyError for an unknown
    study.
    """
    room = find_room(study)
    profiles = {name: plan(study, profile=name).parameters for name in profiles_of(room)}
    lines = [f"{study}: {_title(study)}"]
    if study in origins():
        lines.append(
            f"With fewer than {MINIMUM_BLOCKS} blocks no claimed difference can be significant."
        )
    return "\n".join([*lines, *(_entry(p, profiles) for p in declared(room.notebook))])


def records(study: str | None = None) -> str:
    """Two lines for each record, the first of at most 80 columns; the second is its directory.

    Raises StudyError for an unknown study.
    """
    found = recorded.list_records(study)
    if found.is_empty():
        known = names_of_studies()
        if study is not None and study.removeprefix(COMPARED) not in known:
            raise StudyError(f"There is no study {study}; the studies are: {', '.join(known)}.")
        of = f" of {study}" if study else ""
        return f"There is no record{of} yet: `pgstudies run {study or 'all'}` makes one."
    rows = found.select(
        "study",
        pl.col("started_at").dt.strftime("%Y-%m-%d %H:%M"),
        pl.col("host").fill_null("?"),
        pl.col("server").str.extract(r"(\d\S*)").fill_null("?"),
        pl.format("{}/{}", "blocks_done", "blocks"),
        "status",
        pl.col("path").map_elements(_size, return_dtype=pl.String()).alias("size"),
    ).rows()
    titles = ("study", "started (UTC)", "host", "server", "blocks", "status", "size")
    most = (14, 16, 11, 6, 8, 11, 8)  # with a space between, 80 columns
    table = _table(*titles, most=most)
    for row in rows:
        table.add_row(*map(printable, row))
    heading, *lines = _drawn(table)
    under = (f"  {printable(str(_from_home(Path(path))))}" for path in found["path"])
    return "\n".join([heading, *itertools.chain(*zip(lines, under, strict=True))])


def servers() -> str:
    """A line for the embedded server and each release: version, build, whether it is in the cache.

    The last lines say what would be fetched, and where to.
    """
    table = _table("", "", "", "")
    for row in [_embedded(), *((r.name, r.version, r.built, _state(r)) for r in releases())]:
        table.add_row(*row)
    lines = _drawn(table)
    if names := ", ".join(r.name for r in minor_releases()):
        lines.append(f"\nEarlier minor releases, by their version: {names}.")
    absent = [r for r in releases() if not r.cached and reason_not_available(r.name) is None]
    if absent:
        size = size_text(sum(r.size_bytes for r in absent))
        lines.append(f"\n`pgstudies servers fetch all` would fetch {size}.")
    return "\n".join([*lines, f"Releases are kept in {_from_home(releases_dir())}."])


def _embedded() -> tuple[str, str, str, str]:
    try:
        found = find_embedded(fetches=False)
    except ServerError as error:
        return EMBEDDED, "", "", f"not here: {error}"
    number = recorded.version_number(found.version_text)
    why = f" (because {found.stands_in})" if found.stands_in else ""
    return EMBEDDED, number, optimization(found) or "", f"{found.source}{why}"


def _state(release: Release) -> str:
    reason = reason_not_available(release.name)
    if reason is not None:
        return reason.removeprefix(f"PostgreSQL {release.version} ")
    return "cached" if release.cached else f"would be fetched ({size_text(release.size_bytes)})"


def _title(study: str) -> str:
    cells = json.loads(find_room(study).notebook.read_text(encoding="utf-8"))["cells"]
    prose = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    title = re.search(r"^# (.*)$", prose, re.MULTILINE)
    return title[1].strip("# ") if title else ""


def _entry(parameter: Parameter, profiles: dict[str, dict[str, Any]]) -> str:
    name = parameter.name
    quick = profiles["quick"].get(name, parameter.default)
    others = [
        f"{profile} {spelled(values[name])}"
        for profile, values in profiles.items()
        if values.get(name, quick) != quick
    ]
    also = f"  ({', '.join(others)})" if others else ""
    limits = f"; {parameter.limits}" if parameter.limits else ""
    return f"\n-p {name}={spelled(quick)}{also}\n    {parameter.help}{limits}"


def _size(path: str) -> str:
    return size_text(sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file()))


def _table(*titles: str, most: Sequence[int | None] = ()) -> Table:
    """An empty table without borders; ``most`` has the largest widths of its columns."""
    has_titles = any(titles)
    padding = (0, 1 if has_titles else 2, 0, 0)
    table = Table(box=None, padding=padding, pad_edge=False, show_header=has_titles)
    for title, width in itertools.zip_longest(titles, most):
        table.add_column(title, no_wrap=bool(width), overflow="ellipsis", max_width=width)
    return table


def _drawn(table: Table) -> list[str]:
    """The lines of a table: as wide as a terminal, or else plain text that is never wrapped."""
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else 10_000
    console = Console(
        file=io.StringIO(), width=width, color_system=None, markup=False, highlight=False
    )
    with console.capture() as drawn:
        console.print(table)
    return [line.rstrip() for line in drawn.get().splitlines()]


def _from_home(path: Path) -> Path:
    home = Path.home()
    return Path("~") / path.relative_to(home) if path.is_relative_to(home) else path
