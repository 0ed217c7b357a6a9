"""Analysis: from samples to effects with exact intervals, verdicts, and the agreement with a post.

Charts, the book, compare and notebooks may import it; it knows numbers and no server.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
