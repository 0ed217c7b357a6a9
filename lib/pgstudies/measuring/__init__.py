"""Measuring: the arms of a study in blocks, each trial timed and counted, into a record.

Notebooks and what measures by them may import it; it draws and judges nothing.
"""
