"""Charts and tables, drawn alike in the book, in JupyterLab and in a report."""

from . import style as style
