"""Links by which a reader of a page takes the measured values away."""

from __future__ import annotations

import base64
import html
from typing import TYPE_CHECKING

from IPython.display import HTML

if TYPE_CHECKING:
    from .records import Record

LARGEST_BYTES = 8_000_000


def downloads(record: Record) -> HTML:
    """Links to the record's files, which are inside the links: they work wherever the page is.

    A file above ``LARGEST_BYTES`` is named with its path instead.
    """
    items = []
    for name in ("samples.parquet", "record.json"):
        path = record.path / name
        size = path.stat().st_size
        label = f"{record.info['study']}-{name}"
        if size > LARGEST_BYTES:
            items.append(f"<li>{html.escape(str(path))} ({size / 1e6:,.1f} MB)</li>")
            continue
        content = base64.b64encode(path.read_bytes()).decode("ascii")
        items.append(
            f'<li><a download="{html.escape(label)}" '
            f'href="data:application/octet-stream;base64,{content}">{html.escape(label)}</a> '
            f"({size / 1e3:,.1f} kB)</li>"
        )
    return HTML(f"<ul>{''.join(items)}</ul>")  # type: ignore[no-untyped-call]
