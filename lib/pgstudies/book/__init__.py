"""The book: what its pages show of records and claims, and how it is built."""

from typing import Any


def __getattr__(name: str) -> Any:
    if name in {"setup", "VegaLiteRenderer"}:  # Sphinx and MyST-NB ask for these
        from . import sphinx  # noqa: PLC0415

        return getattr(sphinx, name)
    raise AttributeError(name)
