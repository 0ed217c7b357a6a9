"""PostgreSQL's programs: releases fetched, installations found, extensions built.

Servers, measuring and the command line may import it; nothing in it starts a server that stays.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
