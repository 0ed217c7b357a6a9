"""The book: its pages, drawn from records and claims, and its build."""
