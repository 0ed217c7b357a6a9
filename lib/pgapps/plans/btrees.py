"""The btrees of an empty copy, as high as the original's: a descent is planned by its height."""

from __future__ import annotations

import math
import struct
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

_BLOCK = 8192
_HEADER, _SPECIAL = 24, 16
_MAGIC = 0x053162

_FILL = 0.9
"""How full CREATE INDEX leaves leaf pages."""

_MOST_ALIKE = _BLOCK // 10 // 6
"""The most rows of one entry, of a tenth of a page (nbtsort.c)."""

_INNER_FILL = 0.7
"""How full CREATE INDEX leaves inner pages (nbtree.h), and about how full random splits do."""

ENTRIES = """
    SELECT pg_catalog.format('%I.%I', n.nspname, c.relname),
           CASE WHEN a.attlen > 0 THEN a.attlen ELSE COALESCE(s.avg_width, 16) END,
           COALESCE(s.n_distinct, 0) = -1
    FROM pg_catalog.pg_index i
    JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid AND c.relkind = 'i' AND c.oid >= 16384
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace AND n.nspname !~ '^pg_'
    JOIN pg_catalog.pg_am m ON m.oid = c.relam AND m.amname = 'btree'
    JOIN pg_catalog.pg_class t ON t.oid = i.indrelid
    JOIN pg_catalog.pg_namespace o ON o.oid = t.relnamespace
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum <= i.{keys}
    LEFT JOIN pg_catalog.pg_attribute b
        ON b.attrelid = t.oid AND b.attnum = i.indkey[a.attnum - 1]
    LEFT JOIN pg_catalog.pg_stats s
        ON s.schemaname = o.nspname AND s.tablename = t.relname AND s.attname = b.attname
        AND NOT s.inherited
    ORDER BY 1, a.attnum
"""
"""For each key column of each btree: the index, the column's width, whether it is unique."""


def entry_bytes(rows: Iterable[tuple[object, ...]]) -> Mapping[str, int]:
    """The size of an entry of an inner page, with its line pointer, by index; of ``ENTRIES``.

    Columns after one that is unique are cut off there.
    """
    found = {}
    for index, columns in groupby(rows, key=itemgetter(0)):
        size = 8  # the header of a tuple
        for _, width, is_unique in columns:
            size += max(int(str(width)), 0)
            if is_unique:
                break
        found[str(index)] = -(-size // 8) * 8 + 4
    return found


MADE = """
    SELECT pg_catalog.format('%%I.%%I', n.nspname, c.relname), m.amname,
           pg_catalog.format('%%I.%%I', o.nspname, t.relname),
           pg_catalog.pg_get_expr(i.indpred, i.indrelid), e.width,
           CASE WHEN i.indisunique OR i.indnatts > i.indnkeyatts THEN '{-1}' ELSE e.counts END
    FROM pg_catalog.pg_index i
    JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid AND c.relkind = 'i'
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_catalog.pg_am m ON m.oid = c.relam
    JOIN pg_catalog.pg_class t ON t.oid = i.indrelid
    JOIN pg_catalog.pg_namespace o ON o.oid = t.relnamespace
    CROSS JOIN LATERAL (
        SELECT pg_catalog.sum(CASE WHEN a.attlen > 0 THEN a.attlen
                                   ELSE COALESCE(s.avg_width, 16) END),
               pg_catalog.array_agg(COALESCE(s.n_distinct, -1))
        FROM pg_catalog.pg_attribute a
        LEFT JOIN pg_catalog.pg_attribute b
            ON b.attrelid = t.oid AND b.attnum = i.indkey[a.attnum - 1]
        LEFT JOIN pg_catalog.pg_stats s
            ON s.schemaname = o.nspname AND s.tablename = t.relname AND s.attname = b.attname
            AND NOT s.inherited
        WHERE a.attrelid = c.oid
    ) AS e (width, counts)
    WHERE c.oid = ANY (%s)
    ORDER BY 1
"""
"""Of indexes by OID: name, access method, table, predicate, width of an entry's columns (bytes),
and n_distinct of each column."""


def leaves(rows: float, width: float, distinct: Sequence[float]) -> int:
    """The pages of a btree that CREATE INDEX makes of so many rows: the first, leaves and a root.

    ``width`` is of all columns of an entry (bytes), ``distinct`` as n_distinct of pg_stats.  Equal
    keys share one entry, with six bytes for each row, as far as it fits into a tenth of a page.
    """
    values = math.prod(count if count > 0 else -count * rows for count in distinct)
    alike = max(rows / max(min(values, rows), 1), 1)
    entry = -(-(8 + width) // 8) * 8 + 4
    if alike > 1:
        entry = min(entry, 6 + entry / min(alike, _MOST_ALIKE))
    pages = math.ceil(rows * entry / (_FILL * (_BLOCK - _HEADER - _SPECIAL)))
    return 1 + pages + (pages > 1)


def height(pages: int, entry: int) -> int:
    """The levels above the leaves of a btree of so many pages, by the size of an inner entry."""
    fanout = max(_INNER_FILL * (_BLOCK - _HEADER - _SPECIAL) / entry, 2)
    blocks, levels = (pages - 1) * (1 - 1 / fanout), 0
    while blocks > 1:
        blocks = math.ceil(blocks / fanout)
        levels += 1
    return levels


def grow(index: Path, levels: int) -> None:
    """Give an empty btree of a stopped server a root of so many levels.

    One page lies below the other, down to an empty leaf: the planner may look for the largest key.
    """
    with index.open("r+b") as file:
        meta = bytearray(file.read(_BLOCK))
        (version,), (magic,) = (
            struct.unpack_from("=H", meta, 18),
            struct.unpack_from("=I", meta, 24),
        )
        if version & 0xFF00 != _BLOCK or magic != _MAGIC:
            return
        struct.pack_into("=4I", meta, 32, 1, levels, 1, levels)  # the root, and the fast root
        file.seek(0)
        file.write(meta)
        for block in range(1, levels + 2):
            file.write(_page(block, levels + 1 - block))


def _page(block: int, level: int) -> bytes:
    """A leaf without a row, or an inner page whose only entry leads to the next block."""
    page = bytearray(_BLOCK)
    lower, special = _HEADER, _BLOCK - _SPECIAL
    upper = special
    if level:
        lower, upper = lower + 4, special - 8
        struct.pack_into("=I", page, _HEADER, upper | 1 << 15 | 8 << 17)
        struct.pack_into("=4H", page, upper, 0, block + 1, 0, 0x2000 | 8)  # no key: minus infinity
    struct.pack_into("=5H", page, 10, 0, lower, upper, special, _BLOCK | 4)
    flags = (1 if level == 0 else 0) | (2 if block == 1 else 0)
    struct.pack_into("=3I2H", page, special, 0, 0, level, flags, 0)
    return bytes(page)
