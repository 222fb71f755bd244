"""Amplification: a node may count one CPU as more than one. Ratios of 1 or less, and resources without a ratio, change nothing."""

from collections.abc import Mapping
from math import ceil

from koord_numa.core.amounts import Amounts


def amplify(amount: int, ratio: float | None) -> int:
    """``amount * ratio``, rounded up to the whole unit (Koordinator's ``extension.Amplify``)."""
    return amount if ratio is None or ratio <= 1 else ceil(amount * ratio)


def amplify_all(amounts: Amounts, ratios: Mapping[str, float]) -> Amounts:
    """Every amount by the ratio of its resource."""
    if not ratios:
        return amounts
    return {name: amplify(amount, ratios.get(name)) for name, amount in amounts.items()}
