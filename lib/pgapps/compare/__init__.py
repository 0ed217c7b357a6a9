"""Comparing two servers: what is asked, planned and measured, and the text and report of it.

Only the command line imports it.
"""
