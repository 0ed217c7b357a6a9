"""The random order in which the arms of each block run."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def block_orders(arms: Sequence[str], blocks: int, seed: int) -> list[list[str]]:
    """The order of arms in every block, the same for the same seed.

    Blocks come in pairs: the first of a pair is shuffled, the second runs in reverse, so that over
    a pair no arm is on average earlier than another.  The order of a block does not depend on how
    many blocks follow it.
    """
    orders: list[list[str]] = []
    shuffle = random.Random(seed).shuffle  # noqa: S311  (an experiment's order, not a secret)
    while len(orders) < blocks:
        order = list(arms)
        shuffle(order)
        orders += [order, order[::-1]]
    return orders[:blocks]
