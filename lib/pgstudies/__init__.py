"""PostgreSQL performance studies, reproduced: the helper library of the notebooks.

The names here are those that two notebooks or more use; ``__init__.pyi`` lists them, with the
module of each.  What one notebook alone needs it imports from there.  Each is imported when it is
first asked for, so that the command line starts without polars and Altair.
"""

import ast
import sys
from importlib import import_module
from pathlib import Path

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_HOMES = {
    alias.name: "." * node.level + str(node.module)
    for node in _STUB.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}

__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return __all__


if "ipykernel" in sys.modules:  # in a notebook, tables are drawn in the book's style from the start
    from .charts import style as _style  # noqa: F401
