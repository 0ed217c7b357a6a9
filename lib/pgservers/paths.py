"""Absolute paths: of the project's files, and of the user's own directories."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

_PACKAGE = Path(__file__).resolve().parent

INSTALLED = (_PACKAGE / "checkout").is_dir()
"""Whether this runs from an installed wheel, whose copy of the checkout is read-only."""

ROOT = _PACKAGE / "checkout" if INSTALLED else _PACKAGE.parents[1]
"""The checkout, with notebooks, prose, data and the sources of extensions."""

BOOK = ROOT / "book"
"""The prose of the book."""

_OWN = os.environ.get("PGSTUDIES_NOTEBOOKS")

OWN = Path(_OWN).expanduser().resolve() if _OWN else None
"""The directory of the user's own studies, ``$PGSTUDIES_NOTEBOOKS``; None without one."""

NOTEBOOKS = (*([OWN] if OWN else []), ROOT / "notebooks")
"""The directories of the studies, the user's own first: see ``rooms``."""

BUILD = (OWN or (Path.cwd() if INSTALLED else ROOT)) / "_build"
"""What can be made again: the built book and verdicts.  With studies elsewhere, the checkout does
not change."""

SITE = BUILD / "site" if OWN or INSTALLED else ROOT
"""The source directory of the book: the checkout, or a copy of its pages."""

STUDIES = SITE / "book" / "studies"
"""Executed notebooks, made by a run and never committed."""

RELEASES = ROOT / "data" / "releases.toml"
MINOR_RELEASES = ROOT / "data" / "minor_releases.toml"
"""Where the programs of other PostgreSQL releases come from."""

EXTENSIONS = ROOT / "lib" / "extensions"
"""The source of our C extensions, one directory each."""

REFERENCE_RECORDS = ROOT / "data" / "records"
"""Dated reference runs of this project."""

LAYOUT_RECORDS = ROOT / "data" / "layout"
"""Comparisons whose programs were relinked in every block, to see how much that changes times."""

COMPARISONS = ROOT / "data" / "comparisons"
"""Comparisons of two servers by this project, which *What to do today* shows."""

HTML = BUILD / "html"
"""The built book."""

JUDGED = BUILD / "judged"
"""Verdicts on claims, one file for each record that a notebook has judged; can be made again."""


def records_dir() -> Path:
    """The directory of this user's records: ``$PGSTUDIES_RECORDS``, else the user's data directory.

    Not in the checkout: records are never edited, and outlive ``make clean``.
    """
    configured = os.environ.get("PGSTUDIES_RECORDS")
    if configured:
        return Path(configured).expanduser().resolve()
    return platformdirs.user_data_path("pgstudies") / "records"


def cache_dir() -> Path:
    """The cache directory: ``$PGSTUDIES_CACHE``, else the user's cache.

    For root it is outside every private home, because the servers of root run as another account.
    """
    configured = os.environ.get("PGSTUDIES_CACHE")
    if configured:
        return Path(configured).expanduser().resolve()
    if os.geteuid() == 0:
        return Path("/var/cache/pgstudies")
    return platformdirs.user_cache_path("pgstudies")


def run_dir() -> Path:
    """The directory for the data of managed servers: ``$PGSTUDIES_RUN_DIR``, else a default.

    For root it is outside every private home, as the cache is.
    """
    configured = os.environ.get("PGSTUDIES_RUN_DIR")
    if configured:
        # Not resolved: the owner of a link is checked before the directory is used.
        return Path(configured).expanduser().absolute()
    if os.geteuid() == 0:
        return Path("/var/tmp/pgstudies-root")  # noqa: S108  (created with mode 0711, owner checked)
    return cache_dir() / "servers"


def for_display(path: Path) -> str:
    """The path, relative to the working directory if it lies below that."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def in_checkout(path: Path) -> str:
    """The path relative to the checkout; for a file elsewhere its name."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
