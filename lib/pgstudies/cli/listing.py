"""Plain-text lists for the command line: studies, their parameters, records, servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from .. import paths
from ..addresses import EMBEDDED
from ..errors import ServerError
from ..programs import reason_not_available, releases, releases_dir
from ..programs.installations import find_binaries
from ..records import reading as recorded
from ..studies import PROFILES, plan
from ..studies import studies as names_of_studies
from ..studies.parameters import declared, spelled

if TYPE_CHECKING:
    from ..programs import Release
    from ..studies.parameters import Parameter


_PREFIXES = ["B", "kB", "MB", "GB", "TB"]


def studies() -> str:
    """One line for each study: its name and the title of its page."""
    names = names_of_studies()
    width = max(map(len, names), default=0)
    return "\n".join(f"{name:{width}}  {_title(name)}" for name in names)


def parameters(study: str) -> str:
    """Two lines for each parameter: its values in all profiles, then its help and limits.

    Raises StudyError for an unknown study.
    """
    profiles: dict[str, dict[str, Any]] = {}
    for profile in PROFILES:
        if profile == "quick" or (paths.PARAMETERS / profile / f"{study}.yaml").exists():
            profiles[profile] = plan(study, profile=profile).parameters
    entries = [
        _entry(parameter, profiles) for parameter in declared(paths.NOTEBOOKS / f"{study}.ipynb")
    ]
    return "\n".join([f"{study}: {_title(study)}", *entries])


def records(study: str | None = None) -> str:
    """Two lines for each record, the first of at most 80 columns; the second is its directory."""
    found = recorded.list_records(study)
    if found.is_empty():
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
    most = (15, 16, 11, 7, 8, 11, 6)  # with a space between, 80 columns
    widths = [
        min(limit, max(len(row[i]) for row in [titles, *rows])) for i, limit in enumerate(most)
    ]
    lines = [
        " ".join(_fitted(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [titles, *rows]
    ]
    under = (f"  {_from_home(Path(path))}" for path in found["path"])
    pairs = (line for pair in zip(lines[1:], under, strict=True) for line in pair)
    return "\n".join([lines[0], *pairs])


def servers() -> str:
    """One line for the embedded server and for each release: its version, and whether it is here.

    Then what would be fetched, and where to.
    """
    rows = [_embedded(), *((r.name, r.version, _state(r)) for r in releases())]
    lines = [f"{name:9} {version:8} {state}" for name, version, state in rows]
    absent = [
        r.size_bytes for r in releases() if not r.cached and reason_not_available(r.name) is None
    ]
    if absent:
        lines.append(f"\n`pgstudies servers fetch all` would fetch {_bytes(sum(absent))}.")
    return "\n".join([*lines, f"Releases are kept in {_from_home(releases_dir())}."])


def _embedded() -> tuple[str, str, str]:
    try:
        found = find_binaries(EMBEDDED)
    except ServerError as error:
        return EMBEDDED, "", f"not here: {error}"
    number = found.version_text.removeprefix("PostgreSQL ").split()[0]
    return EMBEDDED, number, f"installed: {found.source}"


def _state(release: Release) -> str:
    reason = reason_not_available(release.name)
    if reason is not None:
        return reason.removeprefix(f"PostgreSQL {release.version} ")
    return "cached" if release.cached else f"would be fetched ({_bytes(release.size_bytes)})"


def _title(study: str) -> str:
    cells = json.loads((paths.NOTEBOOKS / f"{study}.ipynb").read_text(encoding="utf-8"))["cells"]
    lines = (
        line.strip("# \n")
        for cell in cells
        if cell["cell_type"] == "markdown"
        for line in "".join(cell["source"]).splitlines()
        if line.startswith("# ")
    )
    return next(lines, "")


def _entry(parameter: Parameter, profiles: dict[str, dict[str, Any]]) -> str:
    quick = profiles["quick"].get(parameter.name, parameter.default)
    others = [
        f"{profile} {spelled(values[parameter.name])}"
        for profile, values in profiles.items()
        if parameter.name in values and values[parameter.name] != quick
    ]
    also = f"  ({', '.join(others)})" if others else ""
    limits = f"; {parameter.limits}" if parameter.limits else ""
    return f"\n-p {parameter.name}={spelled(quick)}{also}\n    {parameter.help}{limits}"


def _size(path: str) -> str:
    return _bytes(sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file()))


def _bytes(size: float) -> str:
    for prefix in _PREFIXES:
        if size < 1000 or prefix == _PREFIXES[-1]:
            decimals = 1 if size < 10 and prefix != _PREFIXES[0] else 0
            return f"{size:.{decimals}f} {prefix}"
        size /= 1000
    raise AssertionError


def _fitted(cell: str, width: int) -> str:
    return f"{cell:{width}}" if len(cell) <= width else f"{cell[: width - 1]}~"


def _from_home(path: Path) -> Path:
    home = Path.home()
    return Path("~") / path.relative_to(home) if path.is_relative_to(home) else path
