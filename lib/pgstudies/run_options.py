"""What a run and its notebook pass to each other, and the environment variables of both.

A notebook is executed in a kernel of its own, by ``pgstudies`` or by hand in JupyterLab, so all of
it goes by environment variables and by files.  From the user, for every notebook:

``PGSTUDIES_SERVER``
    The server of a study whose parameter ``server`` is empty.
``PGSTUDIES_REPLAY``
    A record, or a directory of records, to analyse instead of measuring.
``PGSTUDIES_FRESH``
    If not empty, an unfinished record is not continued.

From the run to its notebook, ours alone:

``PGSTUDIES_RUN_OPTIONS``
    The rest of ``RunOptions``, as JSON.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import polars as pl

_RUN_OPTIONS = "PGSTUDIES_RUN_OPTIONS"


@dataclass(frozen=True)
class RunOptions:
    """What a notebook is to do.

    Attributes:
        server: The server that a study runs on unless its parameter says otherwise; may be empty.
        replay: What to analyse instead of measuring; empty: measure.
        fresh: Whether an unfinished record is left alone.
        profile: The size that the parameters are of; None where it is not given.
        states: The directory where sessions leave each other prepared states, or empty.
        replies: The directory for the replies; empty where nobody waits for them.

    """

    server: str = ""
    replay: str = ""
    fresh: bool = False
    profile: str | None = None
    states: str = ""
    replies: str = ""

    @classmethod
    def given(cls) -> Self:
        """The options of this process, read once at its start."""
        more = json.loads(os.environ.get(_RUN_OPTIONS) or "{}")
        return cls(
            server=os.environ.get("PGSTUDIES_SERVER", ""),
            replay=_as_set(os.environ.get("PGSTUDIES_REPLAY", "")),
            fresh=bool(os.environ.get("PGSTUDIES_FRESH")),
            **more,
        )

    def server_for(self, named: str | None) -> str:
        """``named`` by a parameter or an option, else the server of these options or embedded."""
        from pgservers.addresses import EMBEDDED  # noqa: PLC0415  (imports psycopg)

        return named or self.server or EMBEDDED

    def environment(self) -> dict[str, str]:
        """The environment variables that hand these options, but for ``states``, to a process."""
        more = {"profile": self.profile, "replies": self.replies}
        return {
            "PGSTUDIES_SERVER": self.server,
            "PGSTUDIES_REPLAY": self.replay,
            "PGSTUDIES_FRESH": "1" if self.fresh else "",
            _RUN_OPTIONS: json.dumps(more),
        }

    def reply(self) -> Replies | None:
        """Where to leave replies; None if nobody waits for them."""
        return Replies(Path(self.replies)) if self.replies else None


def _as_set(path: str) -> str:
    """The path as the shell meant it that set it: a kernel works in its notebook's directory."""
    there = Path(os.environ.get("PWD", ""), path)
    return str(there) if path and not Path(path).exists() and there.exists() else path


@dataclass(frozen=True)
class Replies:
    """A directory in which a notebook leaves its record's path and its verdicts for its caller."""

    directory: Path

    @property
    def record(self) -> Path | None:
        """The notebook's record; None before it has measured or read one."""
        file = self.directory / "record"
        return Path(file.read_text(encoding="utf-8")) if file.exists() else None

    @property
    def verdicts(self) -> pl.DataFrame | None:
        """The table of ``judge``; None where no claim was judged."""
        import polars as pl  # noqa: PLC0415  (takes a quarter of a second)

        file = self.directory / "verdicts.parquet"
        return pl.read_parquet(file) if file.exists() else None

    def tell_record(self, path: Path) -> None:
        """Leave the path of the notebook's record."""
        (self.directory / "record").write_text(str(path), encoding="utf-8")

    def tell_verdicts(self, verdicts: pl.DataFrame) -> None:
        """Leave the verdicts on the study's claims."""
        verdicts.write_parquet(self.directory / "verdicts.parquet")
