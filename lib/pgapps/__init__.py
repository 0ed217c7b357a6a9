"""What is built on the library of the studies: one directory for each application."""
