"""A server's log as a workload: its entries in every format, and scripts of the queries in it."""
