"""The applications on top of the library, one directory each."""
