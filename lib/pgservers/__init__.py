"""PostgreSQL servers for whoever measures them: programs, servers, and the machine below them."""
