"""Lists of studies, records and servers, and what this machine and a server can do."""
