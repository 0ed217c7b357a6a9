"""Users' own workloads, a schema and scripts as pgbench takes them: read, loaded and counted.

They may come from others, so they are loaded and run by a role without rights.
"""
