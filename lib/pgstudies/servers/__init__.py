"""Servers that studies run on: ours, or somebody else's."""
