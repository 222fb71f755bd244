"""DistributeEvenly: the same share from every NUMA node."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.cpus.bind_policies import even_shares, take_evenly
from koord_numa.core.cpus.cpu_request import UNOCCUPIED, CpuRequest, NotEnoughCpus
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.vocabulary import CpuBindPolicy, CpuExclusivePolicy, NumaAllocateStrategy
from tests.machines import machine
from tests.strategies import asks, cpusets_of, machines, occupancies
from tests.tables import each_row

EVENLY = NumaAllocateStrategy.DISTRIBUTE_EVENLY
FULL, SPREAD = CpuBindPolicy.FULL_PCPUS, CpuBindPolicy.SPREAD_BY_PCPUS


@each_row(
    ("free", "bind", "count", "expected"),
    [
        pytest.param("0-31", FULL, 8, "0-1,8-9,16-17,24-25", id="a-core-from-each"),
        pytest.param("0-31", SPREAD, 8, "0,2,8,10,16,18,24,26", id="spread-inside-each"),
        pytest.param("0-31", FULL, 6, "0-1,8-9,16-17", id="cores-do-not-divide"),
        pytest.param("4-31", FULL, 6, "8-9,16-17,24-25", id="the-emptier-give-more"),
        pytest.param("6-31", FULL, 16, "6-13,16-19,24-27", id="a-small-one-gives-what-it-has"),
        pytest.param("0-31", FULL, 9, "0-2,8-9,16-17,24-25", id="an-odd-cpu"),
        pytest.param("1,3,5,7,9,11,13,15", FULL, 4, "1,3,9,11", id="no-whole-cores"),
    ],
)
def test_shares(free: str, bind: CpuBindPolicy, count: int, expected: str) -> None:
    request = CpuRequest(count, bind, CpuExclusivePolicy.NONE, EVENLY)
    found = take_evenly(request, machine("2x2x4x2"), CpuSet.parse(free))
    assert str(found) == expected


def test_preferred_cpus_come_first() -> None:
    node = machine("2x1x4x2")
    request = CpuRequest(6, FULL, CpuExclusivePolicy.NONE, EVENLY)
    assert str(take_evenly(request, node, node.all, UNOCCUPIED, CpuSet.parse("12-15"))) == "0-1,12-15"


def test_no_is_a_value_with_numbers() -> None:
    request = CpuRequest(6, FULL, CpuExclusivePolicy.NONE, EVENLY)
    assert take_evenly(request, machine("2x1x4x2"), CpuSet.parse("0-4")) == NotEnoughCpus(6, 5)


@given(st.dictionaries(st.integers(0, 63), st.integers(0, 40), max_size=8), st.integers(0, 200))
def test_shares_differ_only_where_capacity_ends(capacity: dict[int, int], units: int) -> None:
    shares = even_shares(capacity, units)
    assert sum(shares.values()) == min(units, sum(capacity.values()))
    unfilled = [share for numa, share in shares.items() if share < capacity[numa]]
    assert not unfilled or max(shares.values()) - min(unfilled) <= 1
    assert all(share <= capacity[numa] for numa, share in shares.items())


@given(st.data())
def test_chosen_cpus_are_free_and_exact_in_number(data: st.DataObject) -> None:
    node = data.draw(machines())
    free, request = data.draw(cpusets_of(node)), data.draw(asks(len(node.cpus)))
    found = take_evenly(request, node, free, data.draw(occupancies(node)), data.draw(cpusets_of(node)))
    if request.count > len(free):
        assert found == NotEnoughCpus(request.count, len(free))
    else:
        assert isinstance(found, CpuSet)
        assert (len(found), found <= free) == (request.count, True)
