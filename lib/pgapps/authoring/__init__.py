"""A study of one's own: made from a template, and checked for what it lacks."""
