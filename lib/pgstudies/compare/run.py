"""Measuring a comparison: the notebooks of the studies, each with both servers in its blocks."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import NotebookError, StudyError
from ..orders import Replies
from ..studies.run import run_study
from .measured import read_measured

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..measuring import Comparison
    from .measured import Measured
    from .plan import Fit
    from .request import Request


def measured_blocks(
    request: Request,
    blocks: int = 0,
    *,
    fitted: Fit | None = None,
    fresh: bool = False,
    failed: Callable[[str, StudyError], None] | None = None,
) -> Iterator[Measured]:
    """Measure every study in turn and give its blocks, those of earlier runs included.

    ``blocks`` are those of each study in all, unless they are ``fitted`` into a time; with
    ``fresh`` earlier blocks do not count.
    After Ctrl-C the blocks that are finished are given as well, and then KeyboardInterrupt raised.
    A study that cannot be compared is told to ``failed``, and the others go on; without it, and
    where the others would meet the same (a server, a disk), the error is raised.
    """
    since = datetime.now(UTC).isoformat() if fresh else ""
    comparison = replace(request.comparison, since=since)
    blocks = fitted.blocks if fitted else blocks
    for study in fitted.arms if fitted else request.studies:
        interrupted = False
        with tempfile.TemporaryDirectory(prefix="pgstudies-") as scratch:
            replies = Path(scratch) / "replies"
            replies.mkdir()
            try:
                done = run_study(
                    study,
                    profile=request.profile,
                    server=request.baseline.server,
                    parameters=dict(request.parameters) | {"blocks": blocks},
                    comparison=_fitted(comparison, fitted, study).as_dict(),
                    replies=replies,
                    output=Path(scratch) / f"{study}.ipynb",
                )
                if done.record is None:
                    raise StudyError(f"The notebook of {study} measures nothing to compare.")
            except KeyboardInterrupt:
                interrupted = True
            except StudyError as error:
                if failed is None or type(error) not in {StudyError, NotebookError}:
                    raise
                failed(study, error)
                continue
            mark = Replies(replies).fingerprint
        if mark is not None:
            yield read_measured(study, mark, since)
        if interrupted:
            raise KeyboardInterrupt


def _fitted(comparison: Comparison, fitted: Fit | None, study: str) -> Comparison:
    if fitted is None:
        return comparison
    arms = fitted.arms[study] or comparison.arms
    return replace(comparison, arms=arms, seconds=fitted.seconds[study])
