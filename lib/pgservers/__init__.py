"""PostgreSQL servers to measure: programs, servers, and the machine below them."""
