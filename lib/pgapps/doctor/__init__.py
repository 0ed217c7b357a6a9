"""What there is and what it can do: studies, records, servers, this machine."""
