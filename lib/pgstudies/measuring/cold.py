"""A cold cache for our own relations, and how cold it really was."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import polars as pl

from pgservers.programs.versions import EVICTS_BUFFERS, EVICTS_RELATIONS, has

from ..analysis.pairing import wide

if TYPE_CHECKING:
    from pathlib import Path

    import psycopg
    from psycopg.rows import TupleRow

    from pgservers.servers.serve import Server

BLOCK_BYTES = 8192

_FILES = """
    SELECT r.oid, {path}
    FROM pg_class r
         LEFT JOIN pg_index i ON i.indexrelid = r.oid
         JOIN pg_class t ON t.oid = ANY(%s::regclass[])
                         AND coalesce(i.indrelid, r.oid) IN (t.oid, t.reltoastrelid)
"""

_PATH_BEFORE = """
    'base/' || (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())::text
    || '/' || r.relfilenode::text
"""  # without pg_relation_filepath, in the default tablespace


def reason_not_cold(server: Server) -> str | None:
    """Why relations cannot be made cold on this server, or None if they can."""
    if not server.capabilities.has("files"):
        return server.capabilities.reason("files")
    if not hasattr(os, "posix_fadvise"):
        return "this system has no posix_fadvise, so the page cache cannot be emptied"
    return None


def can_evict(server: Server) -> bool:
    """Whether shared buffers can be emptied without a restart (PostgreSQL 17, pg_buffercache)."""
    able = server.version >= EVICTS_BUFFERS and server.capabilities.has("superuser")
    return able and "pg_buffercache" in server.capabilities.contrib


def evict(connection: psycopg.Connection[TupleRow], tables: list[str]) -> None:
    """Empty shared buffers of the tables, their indexes and TOAST tables."""
    relations = [oid for oid, _ in _files(connection, tables)]
    if connection.info.server_version >= EVICTS_RELATIONS:
        connection.execute(
            "SELECT pg_buffercache_evict_relation(r) FROM unnest(%s::regclass[]) r", [relations]
        )
    else:
        connection.execute(
            """
            SELECT pg_buffercache_evict(bufferid)
            FROM pg_buffercache
            WHERE reldatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
              AND relfilenode IN (SELECT pg_relation_filenode(r) FROM unnest(%s::regclass[]) r)
            """,
            [relations],
        )


def _files(connection: psycopg.Connection[TupleRow], tables: list[str]) -> list[tuple[int, str]]:
    """The tables, their indexes and TOAST tables, each by its OID and the path of its file."""
    knows_path = has(connection.info.server_version, "pg_relation_filepath")
    query = _FILES.format(path="pg_relation_filepath(r.oid)" if knows_path else _PATH_BEFORE)
    return list(connection.execute(query.encode(), [tables]))


def drop_from_page_cache(
    connection: psycopg.Connection[TupleRow], tables: list[str], data_directory: Path
) -> None:
    """Let the kernel write out and drop the relations' files, once the buffers are evicted."""
    for _, path in _files(connection, tables):
        main = data_directory / path
        for part in main.parent.glob(f"{main.name}*"):
            if part.name[len(main.name) :][:1] not in {"", ".", "_"}:
                continue  # another relation, whose number begins with ours
            descriptor = os.open(part, os.O_RDONLY)
            try:
                os.fsync(descriptor)  # DONTNEED spares dirty pages
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def cache_state(samples: pl.DataFrame) -> pl.DataFrame:
    """The state of the cache at each statement (cold, lukewarm, warm), by bytes read.

    Takes samples with the metrics ``read_bytes`` and ``buffers_read``.  Returns block, arm, case,
    step, iteration, buffers_read, read_bytes and state: *warm* (nothing came from the device),
    *cold* (at least nine tenths of the bytes of all buffers read did), *lukewarm* (between).
    """
    keys = ["block", "arm", "case", "step", "iteration"]
    metrics = ["buffers_read", "read_bytes"]
    state = (
        pl.when(pl.col("read_bytes") == 0)
        .then(pl.lit("warm"))
        .when(pl.col("read_bytes") >= 0.9 * pl.col("buffers_read") * BLOCK_BYTES)
        .then(pl.lit("cold"))
        .otherwise(pl.lit("lukewarm"))
    )
    of_statements = wide(samples, metrics, keys, statistic="sum").drop_nulls(metrics)
    return of_statements.with_columns(state=state)
