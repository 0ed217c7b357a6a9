"""Workloads of somebody's own: a schema and scripts as pgbench takes them, read, loaded, counted.

Whatever is in them may come from others: it is loaded and run by a role without rights.  Its
notebook, comparisons and the command line import it.
"""
