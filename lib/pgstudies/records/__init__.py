"""Records on disk: written block by block and never edited, and read back as polars frames.

Every other room may import it: measuring writes records, analysis and the pages read them.
"""
