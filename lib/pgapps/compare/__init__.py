"""Comparison of two servers: request, plan, measurement, and the text and report of the result."""
