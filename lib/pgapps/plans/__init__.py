"""Foreseeing plans: what a server's queries would get on another release, or by other settings.

A copy is made of a server's schema and optimizer statistics, without a row of its data, and both
are asked for the plans of the same queries.  Only the command line imports it.
"""
