"""Exact counts of the instructions that one unit of a study's work executes, under valgrind."""
