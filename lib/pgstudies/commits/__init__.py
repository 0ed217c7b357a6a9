"""Which commit: builds of a repository's revisions, and bisection by exact counts.

The command line may import it; it knows git, compilers and counts.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
