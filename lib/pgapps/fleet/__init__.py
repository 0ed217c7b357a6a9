"""Several hosts: a sweep's plan, its ledger of blocks, the workers that measure them.

Only the command line imports it.
"""
