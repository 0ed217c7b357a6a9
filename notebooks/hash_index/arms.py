"""The arms of ``hash_index.ipynb``, and the space that their tables need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pgstudies as pg

if TYPE_CHECKING:
    from collections.abc import (
        Collection,
        Container,
        Iterable,
        Mapping,
        Sequence,
        Set,
    )


def arms(
    *,
    post: Sequence[str],
    more: Sequence[str],
    in_two_locales: Sequence[str],
    few_buffers: int,
    releases: Sequence[str],
) -> list[pg.Arm]:
    """The arms, those of other releases last.

    ``post`` are the post's tables, ``more`` all that the parameters ask for, ``in_two_locales``
    those of the stand-ins.  ``few_buffers`` counts shared buffers of 8 kB.
    """

    def arm(
        name: str,
        description: str,
        *,
        tables: Sequence[str] = post,
        **how: Any,
    ) -> pg.Arm:
        return _arm(name, description, tables, set(post), **how)

    few = {"shared_buffers": f"{8 * few_buffers}kB"}
    listed = [
        arm("btree", "A btree on the value.", index="btree", tables=more),
        arm(
            "hash",
            "A hash index on the value; it stores the hash code.",
            index="hash",
            tables=more,
        ),
        arm(
            "hash with chains",
            "The same with full pages.",
            index="hash with chains",
        ),
        arm(
            "code",
            "A btree on the hash code: stands in for the patched index.",
            index="code",
            tables=in_two_locales,
        ),
        arm(
            "code and value",
            "A btree on the hash code and the value: stands in for the old one.",
            index="code and value",
            tables=in_two_locales,
        ),
        arm(
            "few buffers",
            "A hash index is built with fewer shared buffers than it has pages.",
            tables=["wide"],
            settings=few,
        ),
        arm(
            "few buffers, wrong estimate",
            "The same, and the table is believed to have a hundredth of its rows.",
            tables=["wide"],
            settings=few,
            believed=0.01,
        ),
    ]
    listed += [
        arm(
            f"{index}, {release}",
            f"The same on release {release}.",
            index=index,
            release=release,
        )
        for release in releases
        for index in ("btree", "hash")
    ]
    return listed


def _arm(
    name: str,
    description: str,
    tables: Sequence[str],
    post: Set[str],
    *,
    index: str | None = None,
    release: str | None = None,
    settings: Mapping[str, str] | None = None,
    **options: Any,
) -> pg.Arm:
    return pg.Arm(
        name,
        description,
        state="more tables" if set(tables) > post else "tables",
        settings=settings or {},
        options={"index": index, "tables": tables} | options,
        server=release,
        not_run=pg.reason_not_available(release) if release else None,
    )


def bytes_needed(
    tables: Collection[str],
    *,
    rows: int,
    narrow: Container[str],
    widths: Iterable[int],
) -> float:
    """What tables and the largest index on them take, as the kept copy and as the one in use.

    ``narrow`` are the tables of bigints, ``widths`` the characters of texts of other widths.
    """
    of_values = sum(8 if table in narrow else 100 for table in tables)
    a_row = 150 * len(tables) + 2.5 * (of_values + sum(widths))
    return 2 * rows * a_row
