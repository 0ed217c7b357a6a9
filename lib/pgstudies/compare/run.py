"""Measuring a comparison: the notebooks of the studies, each with both servers in its blocks."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BlocksCompared, NotebookError, StudyError
from ..measuring.comparison import REQUEST
from ..studies.run import run_study
from .measured import read_measured

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from .measured import Measured
    from .request import Request


def measured_blocks(
    request: Request,
    blocks: Mapping[str, int],
    *,
    fresh: bool = False,
    failed: Callable[[str, StudyError], None] | None = None,
) -> Iterator[Measured]:
    """Measure every study in turn and give its blocks, those of earlier runs included.

    ``blocks`` gives the number of each study in all; with ``fresh`` earlier ones do not count.
    After Ctrl-C the blocks that are finished are given as well, and then KeyboardInterrupt raised.
    A study that cannot be compared is told to ``failed``, and the others go on; without it, and
    where the others would meet the same (a server, a disk), the error is raised.
    """
    since = datetime.now(UTC).isoformat() if fresh else ""
    for study in request.studies:
        with tempfile.TemporaryDirectory(prefix="pgstudies-") as scratch:
            told = Path(scratch) / "fingerprint"
            comparison = replace(request.comparison, told=str(told), since=since)
            os.environ[REQUEST] = comparison.to_json()
            os.environ.pop("PGSTUDIES_REPLAY", None)
            interrupted = False
            try:
                with suppress(BlocksCompared):
                    run_study(
                        study,
                        profile=request.profile,
                        server=request.baseline.server,
                        parameters=dict(request.parameters) | {"blocks": blocks[study]},
                        output=Path(scratch) / f"{study}.ipynb",
                    )
                    raise StudyError(f"The notebook of {study} measures nothing to compare.")
            except KeyboardInterrupt:
                interrupted = True
            except StudyError as error:
                if failed is None or type(error) not in {StudyError, NotebookError}:
                    raise
                failed(study, error)
                continue
            finally:
                del os.environ[REQUEST]
            if told.exists():
                yield read_measured(study, told.read_text(encoding="utf-8"), since)
            if interrupted:
                raise KeyboardInterrupt
