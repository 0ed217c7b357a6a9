"""A user's own study: created from a template, and checked."""
