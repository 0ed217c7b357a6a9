"""Charts and tables in the one style of the notebooks, the pages and the reports.

The book, compare, fleet and notebooks may import it; it draws what analysis worked out.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
