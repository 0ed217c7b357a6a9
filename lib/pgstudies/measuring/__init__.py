"""Measuring: the arms of a study in blocks, each trial timed and counted, into a record.

Notebooks, compare and the command line may import it; it draws and judges nothing.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
