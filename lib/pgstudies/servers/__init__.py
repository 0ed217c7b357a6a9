"""Servers to measure on: managed ones made, started and removed, and somebody else's by address.

Measuring and what stands above it may import it; it knows neither arms nor records.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
