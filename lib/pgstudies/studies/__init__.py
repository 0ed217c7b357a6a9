"""Studies: their parameters and sizes, and running a notebook in a kernel of its own.

The book, compare, fleet and the command line may import it; it analyses nothing.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
