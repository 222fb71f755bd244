"""Machines with more NUMA nodes than anyone enumerates: elections stay exact in what they promise, and end."""

from collections.abc import Iterable
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.allocation import numa_selection as affinity
from koord_numa.core.allocation.allocate import AllocateOptions, allocate, cpu_occupancy
from koord_numa.core.allocation.demand import NodeRules
from koord_numa.core.allocation.numa_offers import offers
from koord_numa.core.allocation.numa_selection import NumaSets, preferred
from koord_numa.core.cpu_topology import MAX_NUMA
from koord_numa.core.numa.policies import UNCONSTRAINED
from koord_numa.core.objects.verdicts import Placement, Rejection
from koord_numa.core.objects.vocabulary import NumaPolicy, QosClass, RestrictedRule
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.state.numa_free import accounts
from koord_numa.core.value_objects import replace
from tests.core.allocation.nodes import GI, held, node, pod
from tests.tables import each_row

RESTRICTED, SINGLE, BEST_EFFORT = NumaPolicy.RESTRICTED, NumaPolicy.SINGLE_NUMA_NODE, NumaPolicy.BEST_EFFORT


def uneven(free: list[tuple[int, int]]) -> Inventory:
    """One NUMA node per pair of free CPU and memory."""
    made = node(f"1x{len(free)}x4x2")
    return replace(made, zones=tuple((numa, {"cpu": cpu, "memory": memory}) for numa, (cpu, memory) in enumerate(free)))


@given(
    st.lists(st.tuples(st.integers(0, 8).map(lambda n: n * 1000), st.integers(0, 5)), min_size=6, max_size=9),
    st.integers(1, 40),
    st.integers(0, 20),
)
def test_a_searched_set_is_as_narrow_as_any(free: list[tuple[int, int]], cpus: int, memory: int) -> None:
    """With no lists at all, the search finds a set exactly when going through all of them does, and one as narrow."""
    rules = NodeRules(
        {"cpu": 1000 * cpus, **({"memory": memory} if memory else {})},
        policy=RESTRICTED,
        restricted=RestrictedRule.KOORDINATOR,
    )
    room = offers(rules, accounts(uneven(free), Ledger()), cpu_occupancy(Ledger()))
    sets = NumaSets(rules, room)
    sizes = [
        size
        for size in range(1, len(free) + 1)
        for chosen in combinations(range(len(free)), size)
        if sets.holds(sum(1 << numa for numa in chosen))
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(affinity, "LISTED", 0)
        found = preferred(rules, room, UNCONSTRAINED)
    assert (found is None) == (not sizes)
    if found is not None:
        assert found.mask is not None
        assert found.mask.bit_count() == min(sizes)
        assert sets.holds(found.mask)


@given(
    st.lists(st.tuples(st.integers(0, 8).map(lambda n: n * 1000), st.integers(0, 5)), min_size=1, max_size=5),
    st.integers(1, 12),
    st.integers(0, 8),
)
def test_sums_tell_what_sets_hold(free: list[tuple[int, int]], cpus: int, memory: int) -> None:
    """Of every set, and without the sums that are spared: those of all NUMA nodes, and of a set one of which holds the pod."""
    rules = NodeRules({"cpu": 1000 * cpus, "memory": memory}, policy=BEST_EFFORT)
    room = offers(rules, accounts(uneven(free), Ledger()), cpu_occupancy(Ledger()))
    sets, numas = NumaSets(rules, room), range(len(free))

    def holds(chosen: Iterable[int]) -> bool:
        """By adding up."""
        mine = list(chosen)
        return all(sum(room.given[name][numa] for numa in mine) >= rules.amounts[name] for name in room.given)

    for mask in range(1 << len(free)):
        chosen = [numa for numa in numas if mask >> numa & 1]
        assert sets.adds_up(mask) == holds(chosen)
        if len(chosen) == 1:
            assert (mask in sets.alone()) == holds(chosen)
    assert sets.may_fit == holds(numas)


@each_row("count", [16, MAX_NUMA])
@each_row("policy", [BEST_EFFORT, RESTRICTED])
def test_half_of_a_large_machine(count: int, policy: NumaPolicy) -> None:
    where = node(f"1x{count}x4x2")
    answer = allocate(pod(1000 * 4 * count, GI, qos=QosClass.LSR, numa=policy), where, Ledger(), AllocateOptions())
    assert isinstance(answer, Placement)
    assert answer.mask is not None
    assert (answer.mask.bit_count(), len(answer.cpus)) == (count // 2, 4 * count)


def test_exclusivity_on_a_large_machine() -> None:
    """Pods on single NUMA nodes keep a spanning pod off; it finds the others."""
    where = node(f"1x{MAX_NUMA}x4x2")
    singles = Ledger.of(held(f"p{numa}", f"{8 * numa}", {numa: {"cpu": 1000}}) for numa in range(0, MAX_NUMA, 4))
    answer = allocate(pod(80_000, qos=QosClass.LSR, numa=RESTRICTED), where, singles, AllocateOptions())
    assert isinstance(answer, Placement)
    assert answer.mask is not None
    assert answer.mask.bit_count() == 10
    assert not any(answer.mask >> numa & 1 for numa in range(0, MAX_NUMA, 4))


def test_one_of_64_numa_nodes() -> None:
    where = node(f"1x{MAX_NUMA}x4x2")
    full = Ledger.of(
        held(f"p{numa}", f"{8 * numa}-{8 * numa + 4}", {numa: {"cpu": 5000}}) for numa in range(MAX_NUMA - 1)
    )
    answer = allocate(pod(8000, qos=QosClass.LSR, numa=SINGLE), where, full, AllocateOptions())
    assert isinstance(answer, Placement)
    assert answer.mask == 1 << MAX_NUMA - 1
    refused = allocate(pod(9000, limit=9001, numa=SINGLE), where, full, AllocateOptions())
    assert isinstance(refused, Rejection)
    assert refused.largest == {"cpu": 8000}
