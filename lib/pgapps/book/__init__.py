"""The book: what its pages show of records and claims, and how it is built.

Fleet, the command line and the notebook of the scorecard may import it.
"""
