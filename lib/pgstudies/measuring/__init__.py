"""Measuring: the arms of a study in blocks, each trial timed and counted, into a record.

Notebooks, compare and the command line may import it; it draws and judges nothing.
"""
