"""Executing a notebook: a run checked before it starts, and a kernel of its own."""
