"""Prediction of a server's plans on another release, or with other settings.

A managed server gets the original's schema and optimizer statistics, without a row of its data, and
both are asked for the plans of the same queries.
"""
