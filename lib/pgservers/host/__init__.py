"""The machine: what it is, what else it does, its disks, and one measurement at a time on it.

Whatever measures may import it; it knows no server and no record.
"""
