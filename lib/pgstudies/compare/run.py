"""Measuring a comparison: the notebooks of the studies, each with both servers in its blocks."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import NotebookError, StudyError
from ..orders import Replies
from ..studies.run import run_study
from .measured import read_measured

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .measured import Measured
    from .plan import Fit
    from .request import Request


def measured_blocks(
    request: Request,
    fitted: Fit,
    *,
    since: str = "",
    failed: Callable[[str, StudyError], None] | None = None,
    fresh: bool = False,
) -> Iterator[Measured]:
    """Measure every study of ``fitted`` in turn and give its blocks, also those of earlier runs.

    Blocks from before ``since`` (UTC) do not count; with ``fresh`` no record is continued.
    After Ctrl-C the blocks that are finished are given as well, and then KeyboardInterrupt raised.
    A study that cannot be compared is told to ``failed``, and the others go on; without it, and
    where the others would meet the same (a server, a disk), the error is raised.
    """
    for study, arms in fitted.arms.items():
        comparison = replace(
            request.comparison,
            arms=arms or request.comparison.arms,
            seconds=fitted.limit_s.get(study, 0.0),
            since=since,
            fitted=bool(arms),
        )
        parameters = dict(fitted.parameters.get(study, {})) | dict(request.parameters)
        interrupted = False
        with tempfile.TemporaryDirectory(prefix="pgstudies-") as scratch:
            replies = Path(scratch) / "replies"
            replies.mkdir()
            try:
                done = run_study(
                    study,
                    profile=request.profile,
                    fresh=fresh,
                    server=request.baseline.server,
                    parameters=parameters | {"blocks": fitted.blocks},
                    comparison=comparison.as_dict(),
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
