"""Measuring: arms in blocks, each trial from restored state."""
