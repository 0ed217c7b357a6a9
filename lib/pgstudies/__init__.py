"""PostgreSQL performance studies, reproduced: the helper library of the notebooks.

The names here are those that two notebooks or more use; ``__init__.pyi`` lists them. What one
notebook alone needs it imports from its room. Each is imported when it is first asked for, so that
the command line starts without polars and Altair.
"""

import sys

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

if "ipykernel" in sys.modules:  # in a notebook, tables are drawn in the book's style from the start
    from .charts import style as _style  # noqa: F401
