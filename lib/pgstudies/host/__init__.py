"""The machine that is measured on: what it is, what disturbs it, whose turn it is."""
