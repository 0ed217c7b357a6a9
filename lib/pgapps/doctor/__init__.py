"""Lists of studies, records and servers; checks of this machine and of a server; newer releases."""
