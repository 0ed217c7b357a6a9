"""What callgrind_annotate prints is read right, whatever shape a function has."""

from __future__ import annotations

import pytest

from pgapps.counting.valgrind import _row


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ("64,592,652  PROGRAM TOTALS", ("", 64592652)),
        ("2,760  ???:hash_search [/usr/bin/postgres]", ("hash_search", 2760)),
        ("  410  ./string/memset.S:__memset_avx2 [/usr/lib/libc.so.6]", ("__memset_avx2", 410)),
        ("   12  ???:exec_stmts'2 [/usr/lib/plpgsql.so]", ("exec_stmts", 12)),
        ("   12  ???:recordDependencies.part.0'2 [/usr/bin/postgres]", ("recordDependencies", 12)),
        ("   12  ???:main.constprop.0.isra.1 [/usr/bin/postgres]", ("main", 12)),
        ("    7  ???:0x00000000004aab10 [/usr/bin/postgres]", ("(no name) in postgres", 7)),
        ("   12  ???:(below main) [/usr/bin/postgres]", ("(below main)", 12)),
        ("Events shown:     Ir", None),
        ("--------------------", None),
        ("Ir                   file:function", None),
    ],
)
def test_a_line_is_a_function_and_its_count(line: str, row: tuple[str, int] | None) -> None:
    assert _row(line) == row
