"""The machine: what it is, what else it does, its disks, and one measurement at a time on it.

Whatever measures may import it; it knows no server and no record.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
