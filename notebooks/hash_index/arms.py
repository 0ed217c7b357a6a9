"""The arms of ``hash_index.ipynb``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pgstudies as pg
from pgapps.builds.served import on_commits

from .tables import COLLATED, LOCALE, POST, wanted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OF_TEXT = 139
"""Entries of a bucket where values are stored: text was taken to be 32 bytes wide."""

BEFORE, AFTER = "440b3384b0", "4adc2f72a4"
COMMITS = {
    "before": (BEFORE, "hash", "The index of values: 8.4devel, 15 September 2008."),
    "after": (AFTER, "hash", "The index of codes: 8.4devel, the next commit."),
    "btree, before": (BEFORE, "btree", "A btree on the server before the commit."),
}
"""The commit of each of these arms, its index, and what it is."""


def arms(
    *,
    rows: int,
    few_buffers: int,
    widths: Sequence[int],
    collations: bool,
    releases: Sequence[str],
    repo: str,
) -> list[pg.Arm]:
    """The arms, those of the commits and of other releases last.

    The indexes of 2008 are on the post's tables and on texts in at most one locale besides C.
    ``few_buffers`` counts shared buffers of 8 kB.
    """
    more = wanted(widths, collations=collations)
    in_two_locales = [t for t in more if t in POST or COLLATED.get(t) == LOCALE]

    def of_2008(name: str, description: str, **how: Any) -> pg.Arm:
        how = {"tables": in_two_locales} | how
        return _arm(name, description, extension="hash_2008", **how)

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
        _arm("btree", "A btree on the value.", index="btree", tables=more),
        _arm(
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
    listed += of_commits(repo)
    listed += [
        _arm(
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


def of_commits(repo: str) -> list[pg.Arm]:
    """The hash index before and after the commit, and a btree, on servers of 2008."""
    listed = [
        (_arm(name, said, index=index, of_commit=True), commit)
        for name, (commit, index, said) in COMMITS.items()
    ]
    return on_commits(repo, listed)


def _arm(
    name: str,
    description: str,
    *,
    tables: Sequence[str] = POST,
    release: str | None = None,
    settings: Mapping[str, str] | None = None,
    extension: str | None = None,
    **options: Any,
) -> pg.Arm:
    return pg.Arm(
        name,
        description,
        state="more tables" if set(tables) > set(POST) else "tables",
        settings=settings or {},
        options={"tables": tables} | options,
        server=release,
        extension=extension,
        not_run=pg.reason_not_available(release) if release else None,
    )
