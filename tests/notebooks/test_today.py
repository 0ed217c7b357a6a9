"""How the page of today shows what the records mean."""

from __future__ import annotations

import polars as pl

from pgstudies.rooms import study_module

CARDS = study_module("today", "cards")
ROW = {
    **{"study": "hash_index", "claim": "wide", "about": "keys", "sentence": "Use <hash>."},
    **{"name": "wide keys", "metric": "cpu_s", "baseline": "btree", "candidate": "hash"},
    **{"before": 16.0, "after": 17.0, "ratio": 2.0, "low": 1.5, "high": 2.5},
    "published_ratio": 2.5,
    **{"verdict": "holds", "where": "here"},
}


def test_a_card_has_its_sentence_and_what_it_rests_on() -> None:
    shown = CARDS.advice_cards(pl.DataFrame([ROW, ROW | {"about": "more"}])).data
    assert shown.count("<dt>") == 2
    assert "Use &lt;hash&gt;. (From 16 to 17.)" in shown
    assert "2.00 times as much (50.0 % more to 2.50 times as much)" in shown
    assert "published 2.50, now 2.00 (1.50 to 2.50). Judged on here." in shown
    assert shown.count("<code>pgstudies run hash_index --server") == 2
    assert "No claim" in CARDS.advice_cards(pl.DataFrame([ROW]).clear()).data
