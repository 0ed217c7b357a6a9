"""Measuring a comparison: the notebooks of the studies, each with both servers in its blocks."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .compared import read_measured
from .comparison import REQUEST, Comparison
from .errors import BlocksCompared, NotebookError, StudyError
from .runner import run_study
from .sides import Side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from .compared import Measured


@dataclass(frozen=True)
class Request:
    """What ``pgstudies compare`` was asked for; a report keeps it, to be asked again.

    ``blocks`` and ``minutes`` are what the command said, or None.
    """

    baseline: Side
    candidate: Side
    studies: tuple[str, ...]
    profile: str = "quick"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    arms: tuple[str, ...] = ()
    case: str | None = None
    copies: bool = True
    pin: bool = True
    margin: float = 0.02
    blocks: int | None = None
    minutes: float | None = None

    @property
    def comparison(self) -> Comparison:
        """The part that the notebooks need."""
        seconds = 60 * self.minutes / len(self.studies) if self.minutes else 0.0
        return Comparison(self.baseline, self.candidate, self.arms, self.copies, self.pin, seconds)

    def as_dict(self) -> dict[str, Any]:
        """The request in the types of JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Request:
        """The request of which ``as_dict`` made this; raises StudyError for anything else."""
        try:
            sides = {name: Side(**values[name]) for name in ("baseline", "candidate")}
            lists = {name: tuple(values[name]) for name in ("studies", "arms")}
            return cls(**{**values, **sides, **lists})
        except (TypeError, KeyError) as error:
            raise StudyError(f"This is no request for a comparison: {error}.") from None


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
