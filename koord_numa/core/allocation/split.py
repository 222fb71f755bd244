"""Splits one amount over NUMA nodes: as evenly as what is free allows. Numbers only."""

from collections.abc import Sequence


def split(amount: int, free: Sequence[int], unit: int = 1) -> tuple[int, ...] | None:
    """
    The share of each NUMA node, in the order of ``free``, or ``None`` when they cannot cover the amount in whole units.

    Served from the one with the least free upwards, each with an equal part of what is left or all that it has; so a caller that has
    more takes over what others lack, and the amount fits exactly when the free whole units add up. As Koordinator's
    node_allocation.go, whose order compares positions instead of NUMA ids; here the order is the one it means.
    """
    # One member takes all or nothing; this is the common case and needs no sorting.
    if len(free) == 1:
        return None if amount % unit or amount > free[0] else (amount,)
    shares = [0] * len(free)
    rest = amount
    waiting = len(free)
    # ``sorted`` is stable: equal amounts keep the order of NUMA ids, so the same input gives the same shares.
    for position in sorted(range(len(free)), key=free.__getitem__):
        # Whole units only. What division leaves stays in ``rest`` and goes to those with more, which come later.
        part = rest // unit // waiting * unit
        shares[position] = min(part, free[position] // unit * unit)
        rest -= shares[position]
        waiting -= 1
    return None if rest else tuple(shares)
