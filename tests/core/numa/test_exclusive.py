"""Pods that may share a NUMA node."""

import pytest

from koord_numa.core.numa.policies import NumaExclusivity, NumaOccupancy
from koord_numa.core.objects.vocabulary import NumaExclusive
from tests.tables import each_row

IDLE, SINGLE, SHARED = NumaOccupancy(), NumaOccupancy(single=1), NumaOccupancy(shared=1)


@each_row(
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
def test_disturbance(mask: int, uses: tuple[NumaOccupancy, ...], disturbs: bool) -> None:
    occupancy = NumaOccupancy(
        single=sum(use.single << numa for numa, use in enumerate(uses)),
        shared=sum(use.shared << numa for numa, use in enumerate(uses)),
    )
    assert occupancy.disturbs(mask) == disturbs
    size = mask.bit_count()
    assert bool(NumaExclusivity(NumaExclusive.REQUIRED, occupancy).denied(size) & mask) == disturbs
    assert NumaExclusivity(NumaExclusive.PREFERRED, occupancy).denied(size) == 0
    assert NumaExclusivity(NumaExclusive.PREFERRED, occupancy).score(mask, 7) == (0 if disturbs else 7)
    assert NumaExclusivity(NumaExclusive.REQUIRED, occupancy).score(mask, 7) == 7
    assert NumaExclusivity(NumaExclusive.NONE, occupancy).denied(size) == 0
