"""The verdicts a study's notebook gives on one record, kept so that each is replayed only once."""

from __future__ import annotations

import hashlib
import io
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from .. import paths
from ..errors import StudyError
from ..files import write_file
from ..records.reading import read_info
from ..studies.run import run_study
from ..terminal import say

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..studies import Executed


def judged(record: str | Path) -> pl.DataFrame:
    """The claims as the notebook of the record's study judges them: the table of ``judge``.

    A record not yet judged by this notebook, these claims and this library is replayed, which takes
    about ten seconds and is said on stderr.  Raises StudyError when there is no such record or its
    study judges no claim, and NotebookError when the notebook fails.
    """
    directory = Path(record).expanduser().resolve()
    study = read_info(directory)["study"]
    kept = _place(study, directory)
    if not kept.exists():
        say(f"judging {study} by {directory.name}, once")
        with tempfile.TemporaryDirectory(prefix="pgstudies-") as scratch:
            done = run_study(study, replay=directory, output=Path(scratch) / f"{study}.ipynb")
        keep(done)
    if not kept.exists():
        raise StudyError(f"{study} judges no claim.")
    return pl.read_parquet(kept)


def keep(done: Executed) -> None:
    """Keep the verdicts of a notebook that was executed, if it judged a record."""
    if done.record is None or done.verdicts is None:
        return
    buffer = io.BytesIO()
    done.verdicts.write_parquet(buffer)
    write_file(_place(read_info(done.record)["study"], done.record), buffer.getvalue())


def _place(study: str, record: Path) -> Path:
    """Where the verdicts are, named for all that they depend on."""
    judges = [paths.NOTEBOOKS / f"{study}.ipynb", paths.CLAIMS, *paths.PUBLISHED.iterdir()]
    library = Path(__file__).parents[1].rglob("*.py")
    measured = [record / "record.json", *record.rglob("*.parquet")]
    digest = hashlib.sha256()
    for files in (judges, library, measured):
        digest.update(_digest(files))
    return paths.JUDGED / study / f"{record.name}-{digest.hexdigest()[:16]}.parquet"


def _digest(files: Iterable[Path]) -> bytes:
    """One digest of the contents, in the order of the names."""
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.digest()
