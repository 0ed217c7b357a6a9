"""Several hosts: a sweep's plan, its ledger of blocks, the workers that measure them.

Only the command line imports it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
