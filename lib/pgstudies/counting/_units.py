"""Units of work: the SQL that does a number of them, and what has to be there before."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..errors import StudyError
from ..paths import UNITS

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Unit:
    """So much work of one kind that a backend can do alone.

    Attributes:
        name: What the pages call it, such as ``one function created``.
        statements: SQL that does it ``current_setting('pgstudies.n')`` times.
        sizes: Two such numbers; what a unit costs is the difference between them.
        prepare: SQL that is run before, in a session of its own, in which
            ``current_setting('pgstudies.sizes')`` is an array of both sizes.
        inside: Instead of a difference: only what the first of these functions executes, without
            what the others do within it.
        settings: Server settings.
        extension: One of our extensions that it needs.
        study: The study whose work it is.
        varies: Whether it is counted with open transactions as well.
        open_transactions: So many prepared transactions are open, with an XID each.
        subtransactions: So many has each of them, with an XID each, too.

    """

    name: str
    statements: tuple[str, ...]
    sizes: tuple[int, int] = (100, 300)
    prepare: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    extension: str | None = None
    study: str = ""
    varies: bool = False
    open_transactions: int = 0
    subtransactions: int = 0

    def __post_init__(self) -> None:
        small, large = self.sizes
        if not 0 < small < large:
            raise StudyError(f"The sizes of {self.name!r} must be two numbers, the smaller first.")

    @property
    def script(self) -> str:
        """What a single-user backend reads: one statement a line."""
        return "".join(f"{' '.join(text.split())}\n" for text in self.statements)

    @property
    def runs(self) -> int:
        """How often a backend is run to count it."""
        return 2 if self.inside else 4

    @property
    def state(self) -> str:
        """A name for what has to be there before, the same for units that need the same."""
        return repr(
            (self.prepare, self.sizes if self.prepare else (), self.extension, self._holders)
        )

    @property
    def _holders(self) -> tuple[int, int]:
        return self.open_transactions, self.subtransactions

    def with_open(self, transactions: int, subtransactions: int = 0) -> Unit:
        """The same unit while so many transactions are open."""
        return replace(self, open_transactions=transactions, subtransactions=subtransactions)

    def what_counts(self) -> list[Any]:
        """All that a count depends on, in the types of JSON."""
        work = [self.script, self.sizes, self.prepare, self.inside]
        return [*work, dict(self.settings), self.extension, *self._holders]


@functools.cache
def units(study: str | None = None) -> tuple[Unit, ...]:
    """The units of ``data/units.toml``, in its order; of one study, or of all."""
    tables = tomllib.loads(UNITS.read_text(encoding="utf-8"))["unit"]
    known = (Unit(**{k: _plain(v) for k, v in table.items()}) for table in tables)
    return tuple(unit for unit in known if study in {None, unit.study})


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
