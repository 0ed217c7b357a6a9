"""Which commit: builds of a repository's revisions, and bisection by exact counts."""
