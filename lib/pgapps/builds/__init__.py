"""Builds of the commits of a git repository, alike in everything but their source."""
