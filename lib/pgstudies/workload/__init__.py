"""Workloads of somebody's own: a schema and scripts as pgbench takes them, read, loaded, counted.

Whatever is in them may come from others: it is loaded and run by a role without rights.  Its
notebook, comparisons and the command line import it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
