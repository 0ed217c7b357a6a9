"""Sweeps over several hosts: the plan, the ledger of blocks, and the workers that measure them."""
