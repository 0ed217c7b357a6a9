"""An example of a workload, to begin one's own with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgservers.errors import StudyError
from pgservers.files import cannot_write, copy_tree
from pgstudies.rooms import rooms

if TYPE_CHECKING:
    from pathlib import Path


def new_workload(directory: Path) -> list[Path]:
    """Write an example of a workload into a new directory; returns the files.

    Raises StudyError where the directory exists, and where nothing can be written.
    """
    example = next(iter(rooms("workload").values())).directory / "example"
    try:
        directory.expanduser().mkdir(parents=True)
        copy_tree(example, directory.expanduser())
    except FileExistsError:
        raise StudyError(f"There is a {directory} already: use another name.") from None
    except OSError as error:
        raise cannot_write(error, directory) from error
    return sorted(directory.expanduser().iterdir())
