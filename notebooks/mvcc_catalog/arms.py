"""The arms of ``mvcc_catalog.ipynb``: releases, and the transactions held open in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pgstudies as pg

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
MB_PER_SESSION = 2


def arms(
    *,
    server: str,
    releases: Sequence[str],
    prepared: Iterable[int],
    sessions: Iterable[int],
) -> list[pg.Arm]:
    """Every release with no transaction open, and with each number of them, the baseline first.

    A server of the user's own comes last, or alone. Sessions hold transactions in the first two
    releases and in that server; the baseline's arms with prepared transactions come twice.
    """
    numbers, of_sessions = sorted(set(prepared)), sorted(set(sessions))
    own = [THIS_SERVER] if server or not releases else []
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
    return found


def arm(release: str, number: int, holder: str, *, again: bool = False) -> pg.Arm:
    name = f"{release}, {number} {holder}" if number else f"{release}, none"
    by_sessions = holder == "sessions"
    is_ours = release == THIS_SERVER
    return pg.Arm(
        f"{name} (again)" if again else name,
        f"The same as {name}." if again else NOTES.get(release, ""),
        state=f"{number} prepared" if number and holder == "prepared" else "plain",
        options={
            "release": release,
            "open": number,
            "holder": holder if number else "none",
        },
        server=None if is_ours else release,
        copy_of=name if again else None,
        memory_bytes=MB_PER_SESSION * 2**20 * number if by_sessions else 0,
        not_run=None if is_ours else pg.reason_not_available(release),
    )
