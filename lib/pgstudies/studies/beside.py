"""Modules beside a notebook: what its study needs, and a reader of its page does not."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

from ..errors import StudyError
from ..rooms import find_room

if TYPE_CHECKING:
    from types import ModuleType


def beside(study: str, module: str) -> ModuleType:
    """The module of that name in the room of ``study``, wherever its notebook is executed.

    A change of it makes a run another run.  Raises StudyError when there is none.
    """
    file = find_room(study).directory / f"{module}.py"
    name = f"notebooks.{study}.{module}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise StudyError(f"There is no module {file}.")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded
