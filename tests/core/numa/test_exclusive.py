"""Pods that may share a NUMA node."""

import pytest

from koord_numa.core.numa.hints import Hint
from koord_numa.core.numa.policies import UNCONSTRAINED, NumaExclusivity, NumaOccupancy, NumaUse
from koord_numa.core.objects.vocabulary import NumaExclusive

IDLE, SINGLE, SHARED = NumaUse.IDLE, NumaUse.SINGLE, NumaUse.SHARED


@pytest.mark.parametrize(
    ("mask", "uses", "disturbs"),
    [
        pytest.param(0b01, (IDLE, SINGLE), False, id="one, idle"),
        pytest.param(0b01, (SHARED, SINGLE), True, id="one, shared"),
        pytest.param(0b01, (SHARED, SHARED), True, id="one, all shared"),
        pytest.param(0b01, (SINGLE, SHARED), False, id="one, beside its like"),
        pytest.param(0b11, (SHARED, SINGLE), True, id="two, one of them single"),
        pytest.param(0b11, (SHARED, IDLE), False, id="two, shared and idle"),
        pytest.param(0b11, (SHARED, SHARED), False, id="two, beside their like"),
    ],
)
def test_disturbance(mask: int, uses: tuple[NumaUse, ...], disturbs: bool) -> None:
    occupancy = NumaOccupancy.of(enumerate(uses))
    assert occupancy.disturbs(mask) == disturbs
    size = mask.bit_count()
    assert bool(NumaExclusivity(NumaExclusive.REQUIRED, occupancy).denied(size) & mask) == disturbs
    assert NumaExclusivity(NumaExclusive.REQUIRED, occupancy).allows(mask) != disturbs
    assert NumaExclusivity(NumaExclusive.PREFERRED, occupancy).denied(size) == 0
    assert NumaExclusivity(NumaExclusive.PREFERRED, occupancy).score(mask, 7) == (0 if disturbs else 7)
    assert NumaExclusivity(NumaExclusive.REQUIRED, occupancy).score(mask, 7) == 7
    assert NumaExclusivity(NumaExclusive.NONE, occupancy).denied(size) == 0


def test_occupancy_goes_by_numa_id() -> None:
    """Ids with gaps: position 1 is not NUMA node 1."""
    assert NumaOccupancy.of([(0, IDLE), (5, SHARED), (63, SINGLE)]) == NumaOccupancy(single=1 << 63, shared=1 << 5)


def test_hints_are_scored_by_the_policy() -> None:
    wish = NumaExclusivity(NumaExclusive.PREFERRED, NumaOccupancy(shared=0b01))
    assert wish.scored(Hint(0b01, True, score=9)) == Hint(0b01, True, score=0)
    assert wish.scored(Hint(0b10, True, score=9)) == Hint(0b10, True, score=9)
    assert wish.scored(Hint(None, True, score=9)) == Hint(None, True, score=9)
    assert UNCONSTRAINED.scored(Hint(0b01, True, score=9)) == Hint(0b01, True, score=9)
