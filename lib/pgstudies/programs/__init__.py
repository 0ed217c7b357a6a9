"""PostgreSQL's programs on this machine: found, fetched, built, and run as whom."""
