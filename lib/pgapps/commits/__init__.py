"""Which commit: builds of a repository's revisions, and bisection by exact counts.

The command line may import it; it knows git, compilers and counts.
"""
