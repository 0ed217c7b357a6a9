"""Tests, a folder for each room of the library."""
