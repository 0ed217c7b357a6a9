"""A user's own study: made from a template, and checked for what it lacks."""
