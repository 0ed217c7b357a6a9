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

OF_TEXT = 139
"""Entries of a bucket where values are stored: text was taken to be 32 bytes wide."""


def arms(
    *,
    post: Sequence[str],
    more: Sequence[str],
    in_two_locales: Sequence[str],
    rows: int,
    few_buffers: int,
    releases: Sequence[str],
) -> list[pg.Arm]:
    """The arms, those of other releases last.

    ``post`` are the post's tables, ``more`` all that the parameters ask for, ``in_two_locales``
    those of the indexes of 2008.  ``few_buffers`` counts shared buffers of 8 kB.
    """

    def arm(
        name: str,
        description: str,
        *,
        tables: Sequence[str] = post,
        **how: Any,
    ) -> pg.Arm:
        return _arm(name, description, tables, set(post), **how)

    def of_2008(name: str, description: str, **how: Any) -> pg.Arm:
        how = {"tables": in_two_locales} | how
        return arm(name, description, extension="hash_2008", **how)

    def build(name: str, description: str, cache: int) -> pg.Arm:
        settings = {
            "shared_buffers": f"{8 * few_buffers}kB",
            "effective_cache_size": f"{8 * cache}kB",
        }
        return of_2008(
            name,
            description,
            index=name.partition(",")[0],
            tables=["wide"],
            builds_only=True,
            settings=settings,
        )

    cache = cache_of_2008(rows)
    listed = [
        arm("btree", "A btree on the value.", index="btree", tables=more),
        arm(
            "hash",
            "Today's hash index: what became of the patched one.",
            index="hash",
            tables=more,
        ),
        of_2008("value", "The hash index before the patch.", index="value"),
        of_2008("code", "The patched hash index.", index="code"),
        build(
            "value, few buffers",
            "Built with fewer shared buffers than it has pages; sorted first, by the rule of 2008.",
            cache,
        ),
        build(
            "code, few buffers",
            "The same; not sorted, by the same rule, because the index is smaller.",
            cache,
        ),
        build(
            "code, few buffers, sorted",
            "The same with effective_cache_size less than the index: sorted first.",
            cache // 4,
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


def cache_of_2008(rows: int) -> int:
    """Pages that effective_cache_size has, as against the table of the post its default then.

    They are as many as the buckets of the larger index: 16,384, or 128 MB, for the post's rows.
    """
    return 1 << max(2, (rows // OF_TEXT).bit_length())


def _arm(
    name: str,
    description: str,
    tables: Sequence[str],
    post: Set[str],
    *,
    release: str | None = None,
    settings: Mapping[str, str] | None = None,
    extension: str | None = None,
    **options: Any,
) -> pg.Arm:
    return pg.Arm(
        name,
        description,
        state="more tables" if set(tables) > post else "tables",
        settings=settings or {},
        options={"tables": tables} | options,
        server=release,
        extension=extension,
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
