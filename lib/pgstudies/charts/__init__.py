"""Charts and tables in the one style of the notebooks, the pages and the reports.

The book, compare, fleet and notebooks may import it; it draws what analysis worked out.
"""
