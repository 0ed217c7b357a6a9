"""The arms of ``mvcc_catalog.ipynb``: servers, and the transactions held open in them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pgstudies as pg
from pgapps.builds.served import on_commits

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

THIS_SERVER = "this server"
NOTES = {
    "9.3": "The last release whose catalogs are read with SnapshotNow.",
    "9.6": "MVCC catalogs, as committed for 9.4: a snapshot is kept until a catalog changes.",
    "13": "The last release before snapshots were made scalable.",
    "14": "Snapshots from dense arrays, and kept while no transaction with an XID has ended.",
    THIS_SERVER: "The server of the parameter `server`.",
}
COMMITS = {
    "before": ("384f933046", "SnapshotNow: 9.4devel, 1 July 2013."),
    "after": ("568d4138c6", "MVCC catalogs: 9.4devel, the next commit."),
}
"""The commit of each of these servers, and what it is."""

MB_PER_SESSION = 2


def arms(
    *,
    server: str,
    releases: Sequence[str],
    prepared: Iterable[int],
    sessions: Iterable[int],
    repo: str,
) -> list[pg.Arm]:
    """Every release with no transaction open, and with each number of them, the baseline first.

    A server of the user's own comes after them, or alone, and the commits last. Without any release
    that can be had, as without Maven, the embedded server takes its place. Sessions hold
    transactions in the first two releases, in that server and in the commits; the baseline's arms
    with prepared transactions come twice.
    """
    numbers, of_sessions = sorted(set(prepared)), sorted(set(sessions))
    none = all(pg.reason_not_available(release) for release in releases)
    own = [THIS_SERVER] if server or none else []
    found = []
    for release in [*releases, *own]:
        found.append(arm(release, 0, "none"))
        found += [arm(release, number, "prepared") for number in numbers]
        if release in [*releases[:2], THIS_SERVER]:
            found += [arm(release, number, "sessions") for number in of_sessions]
        if release in releases[:1]:
            found += [
                arm(release, number, "prepared", again=True) for number in numbers
            ]
    return found + of_commits(repo, numbers, of_sessions)


def of_commits(
    repo: str, prepared: Sequence[int], sessions: Sequence[int]
) -> list[pg.Arm]:
    """The same of the commit and its parent, whose fewest and most prepared come twice."""
    found = []
    for name in COMMITS:
        found.append(arm(name, 0, "none"))
        found += [arm(name, number, "prepared") for number in prepared]
        found += [arm(name, number, "sessions") for number in sessions]
    parent = next(iter(COMMITS))
    for number in sorted({*prepared[:1], *prepared[-1:]}):
        found.append(arm(parent, number, "prepared", again=True))
    # Each grows within its group, and is compared with the other's there.
    together = [replace(one, together="the commits") for one in found]
    return on_commits(repo, [(a, COMMITS[a.options["release"]][0]) for a in together])


def arm(release: str, number: int, holder: str, *, again: bool = False) -> pg.Arm:
    """An arm of a release, of the user's server, or of a commit by its name in COMMITS."""
    name = f"{release}, {number} {holder}" if number else f"{release}, none"
    by_sessions = holder == "sessions"
    said = COMMITS[release][1] if release in COMMITS else NOTES.get(release, "")
    is_release = release not in {*COMMITS, THIS_SERVER}
    return pg.Arm(
        f"{name} (again)" if again else name,
        f"The same as {name}." if again else said,
        state=f"{number} prepared" if number and holder == "prepared" else "plain",
        options={
            "release": release,
            "open": number,
            "holder": holder if number else "none",
        },
        server=release if is_release else None,
        copy_of=name if again else None,
        memory_bytes=MB_PER_SESSION * 2**20 * number if by_sessions else 0,
        not_run=pg.reason_not_available(release) if is_release else None,
    )
