"""The book: what its pages show of records and claims, and how it is built.

Fleet, the command line and the notebook of the scorecard may import it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
