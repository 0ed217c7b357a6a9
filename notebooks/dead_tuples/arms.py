"""The arms of ``dead_tuples.ipynb``: a structure each, and VACUUM on each server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pgstudies as pg
from pgapps.builds.served import on_commits

if TYPE_CHECKING:
    from collections.abc import Sequence

STRUCTURES = {
    "array": "A sorted array, binary-searched.",
    "hash": "A hash table of TIDs.",
    "intset": "A set of integers, packed, with a tree above.",
    "tbm": "A hash table of pages, with a bitmap for each.",
    "radix": "A radix tree with packed nodes.",
    "radix_tree": "The server's radix tree.",
    "tidstore": "The server's radix tree of pages, with a bitmap for each.",
}
DENSE_MB = {"array": 520, "hash": 3_200, "intset": 90, "tbm": 100}
"""What structures take in the post's dense case; the others take up to 40 MB."""
DENSE_PAGES = 1_000_000
"""Of the post's dense case, whose dead TIDs take 520 MB."""
COMMITS = {
    "VACUUM, before": ("d5d2205c8d", "By an array: 17devel, 2 April 2024."),
    "VACUUM, after": ("667e65aac3", "By the TID store: 17devel, the next commit."),
}
"""The commit of each of these arms, and what it is."""


def arms(
    *,
    releases: Sequence[str],
    dense_pages: int,
    dense_hash: bool,
    real_table: bool,
    repo: str,
) -> list[pg.Arm]:
    """The structures, then VACUUM: on the run's server, on releases and on the commits."""
    structures = [
        pg.Arm(
            name,
            what,
            state="a table" if real_table else "nothing",
            options={"structure": name},
            extension="tidbench",
            memory_bytes=0
            if name == "hash" and not dense_hash
            else held_bytes(name, dense_pages),
        )
        for name, what in STRUCTURES.items()
    ]
    own = pg.Arm("VACUUM", "On the server of the run.", state="dead rows")
    others = [
        pg.Arm(
            f"VACUUM, {release}",
            f"On release {release}.",
            state="dead rows",
            server=release,
            not_run=pg.reason_not_available(release),
        )
        for release in releases
    ]
    return [*structures, own, *others, *of_commits(repo)]


def of_commits(repo: str) -> list[pg.Arm]:
    """VACUUM by the array, and by the TID store that took its place."""
    listed = [
        (pg.Arm(name, said, state="dead rows"), commit)
        for name, (commit, said) in COMMITS.items()
    ]
    return on_commits(repo, listed)


def held_bytes(structure: str, dense_pages: int) -> int:
    """What the dead TIDs of the dense case and the structure take."""
    in_post = 520 + DENSE_MB.get(structure, 40)
    return in_post * dense_pages // DENSE_PAGES * 2**20
