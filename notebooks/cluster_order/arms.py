"""The arms of ``cluster_order.ipynb``: those that the claims need, and those of each variant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pgstudies as pg

if TYPE_CHECKING:
    from collections.abc import Collection

PATCHED = "patched (access method)"
RESERVE = "patched, fillfactor 90 with reserve"


def arms(
    *,
    variants: Collection[str],
    iterations: int,
    cluster_every: int,
    direct_io: bool,
) -> list[pg.Arm]:
    """The arms to be measured, the baseline first."""

    def patched(name: str, description: str, **how: Any) -> pg.Arm:
        how = {"state": "access method"} | how
        return pg.Arm(name, description, extension="cluster_heap", **how)

    stops = {"iterations": 2}
    found = [
        pg.Arm("heap", "Today's PostgreSQL as it is; the post's HEAD."),
        pg.Arm(
            "heap, after 2 iterations",
            "Left alone from then on.",
            options=stops,
        ),
        patched(
            PATCHED,
            "The table's access method asks the index; the post's patch.",
        ),
        patched(
            f"{PATCHED}, after 2 iterations",
            "Left alone from then on.",
            options=stops,
        ),
    ]
    checkpoint = {
        "checkpoint": True,
        "iterations": max(2, iterations // 2),
    }
    ordinal = {1: "", 2: "2nd ", 3: "3rd "}.get(cluster_every, f"{cluster_every}th ")
    more = {
        "checkpoint": [
            pg.Arm(
                "heap, after a checkpoint",
                "One before every INSERT.",
                options=checkpoint,
            ),
            patched(
                f"{PATCHED}, after a checkpoint",
                "One before every INSERT.",
                options=checkpoint,
            ),
        ],
        "fillfactor": [
            pg.Arm(
                "heap, fillfactor 90",
                "A tenth of every page is kept free.",
                state="fillfactor 90",
            ),
        ],
        "CLUSTER": [
            pg.Arm(
                f"heap, CLUSTER every {ordinal}iteration",
                "The order is restored now and then, after the insert.",
                options={"cluster_every": cluster_every},
            ),
        ],
        "reserve": [
            patched(
                RESERVE,
                "The same, and a tenth of every page is kept for neighbours.",
                state="access method, fillfactor 90",
                settings={"cluster_heap.use_reserve": "on"},
            ),
        ],
        "trigger": [
            patched(
                "patched (trigger)",
                "Before each row a trigger asks the index.",
                state="trigger",
            ),
        ],
        "index-only": [
            pg.Arm(
                "heap, index-only scans",
                "As PostgreSQL answers these queries by default since 9.2.",
                settings={"enable_indexonlyscan": "on"},
            ),
        ],
    }
    for variant, those in more.items():
        if variant in variants:
            found += those
    if direct_io:
        direct = {"debug_io_direct": "data"}
        words = "Past the kernel's cache."
        found += [
            pg.Arm("heap, direct I/O", words, settings=direct),
            patched(f"{PATCHED}, direct I/O", "The same.", settings=direct),
        ]
    return found
