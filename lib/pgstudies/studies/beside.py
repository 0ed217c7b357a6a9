"""Modules beside a notebook: what its study needs, and a reader of its page does not."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

from .. import paths
from ..errors import StudyError

if TYPE_CHECKING:
    from types import ModuleType


def beside(name: str) -> ModuleType:
    """The module ``name``.py beside the notebooks, wherever the notebook is executed.

    Its name begins with the study's and an underscore: then a change of it makes a run another run.
    Raises StudyError when there is none.
    """
    file = paths.NOTEBOOKS / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise StudyError(f"There is no module {file}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
