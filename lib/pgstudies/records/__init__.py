"""Records on disk: written block by block and never edited, and read back as polars frames.

Every other room may import it: measuring writes records, analysis and the pages read them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
