"""Counting: how many instructions one unit of a study's work executes, exactly, under valgrind.

Notebooks, compare and the command line may import it; it times, draws and judges nothing.
"""
