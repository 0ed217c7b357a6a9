"""Servers to measure on: managed ones made, started and removed, and somebody else's by address.

Measuring and what stands above it may import it; it knows neither arms nor records.
"""
