"""The command line: the commands of pgstudies, their words and their lists.

Nothing imports it; the entry point asks for `main`.
"""

from .app import main

__all__ = ["main"]
