"""Several hosts: blocks handed out, kept in a ledger, joined into records."""
