"""Comparison of two servers: request, measurement, judgement, and the text and report of it."""
