"""Comparing two servers: what is asked, planned and measured, and the text and report of it.

Only the command line imports it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
