"""Lists of studies, records and servers, what this machine and a server can do, newer releases."""
