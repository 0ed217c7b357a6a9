"""The order of arms: random, repeatable, balanced over each pair of blocks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pgstudies.measuring._arms import block_orders

ARMS = st.lists(st.text(min_size=1), min_size=1, max_size=6, unique=True)


@given(ARMS, st.integers(0, 20), st.integers())
def test_every_block_holds_every_arm_once(arms: list[str], blocks: int, seed: int) -> None:
    orders = block_orders(arms, blocks, seed)
    assert len(orders) == blocks
    assert all(sorted(order) == sorted(arms) for order in orders)


@given(ARMS, st.integers(0, 10), st.integers())
def test_the_second_block_of_a_pair_is_the_first_reversed(
    arms: list[str], pairs: int, seed: int
) -> None:
    orders = block_orders(arms, 2 * pairs, seed)
    assert all(b == a[::-1] for a, b in zip(orders[::2], orders[1::2], strict=True))


@given(ARMS, st.integers(0, 20), st.integers(0, 20), st.integers())
def test_blocks_added_later_change_no_earlier_one(
    arms: list[str], few: int, more: int, seed: int
) -> None:
    assert block_orders(arms, few + more, seed)[:few] == block_orders(arms, few, seed)


def test_different_seeds_give_different_orders() -> None:
    arms = list("abcdef")
    assert len({str(block_orders(arms, 4, seed)) for seed in range(20)}) == 20
