"""Builds of a repository's commits, alike in all but their source; and a user's own build trees."""
