"""Analysis: from samples to effects with exact intervals, verdicts, and the agreement with a post.

Charts, the book, compare and notebooks may import it; it knows numbers and no server.
"""
