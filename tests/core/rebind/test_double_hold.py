"""CPUs that two pods hold are found, and other CPUs for one of them are free ones."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.cpu_topology import regular_topology
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.node import Node, NodeResourceTopology, Zone
from koord_numa.core.objects.request import PodKey
from koord_numa.core.objects.vocabulary import CpuOwner
from koord_numa.core.rebind.from_ledger import double_holds, replacement_cpus
from koord_numa.core.state.inventory import Inventory, inventory
from koord_numa.core.state.ledger import Holding, Ledger

MACHINE = regular_topology(1, 2, 4, 2)


def machine() -> Inventory:
    amounts = {"cpu": 8000, "memory": 1 << 34}
    zones = tuple(Zone(numa, amounts, amounts, amounts) for numa in MACHINE.numa_ids)
    topology = NodeResourceTopology(node="n", owner=CpuOwner.SCHEDULER, zones=zones, machine=MACHINE)
    found = inventory(Node(name="n", allocatable={"cpu": 16000, "memory": 1 << 35, "pods": 110}), topology)
    assert isinstance(found, Inventory)
    return found


def held(name: str, cpus: str, created: float = 0.0) -> Holding:
    chosen = CpuSet.parse(cpus)
    return Holding(PodKey("default", name, f"uid-{name}"), {"cpu": 1000 * len(chosen)}, chosen, created=created)


def test_every_pair_is_named_with_the_pod_that_came_later() -> None:
    ledger = Ledger.of([held("b", "0-3", 2), held("a", "2-5", 1), held("c", "8-9", 0), held("d", "3", 3)])
    assert [(str(it.cpus), it.older.name, it.younger.name) for it in double_holds(ledger)] == [
        ("2-3", "a", "b"),
        ("3", "a", "d"),
        ("3", "b", "d"),
    ]
    assert double_holds(Ledger.of([held("a", "0-3"), held("b", "4-7")])) == ()


def test_of_equal_age_every_replica_names_the_same_pod() -> None:
    one, other = held("a", "0-1"), held("b", "1-2")
    assert double_holds(Ledger.of([one, other])) == double_holds(Ledger.of([other, one]))


def test_other_cpus_are_whole_cores_on_one_numa_node() -> None:
    ledger = Ledger.of([held("a", "0-3", 1), held("b", "2-5", 2)])
    found = replacement_cpus(machine(), ledger, "uid-b")
    assert found is not None
    assert not found & CpuSet.parse("0-3")
    assert (MACHINE.numa_of(found).bit_count(), len(found)) == (1, 4)


def test_without_enough_free_cpus_there_are_none() -> None:
    ledger = Ledger.of([held("a", "0-7"), held("b", "8-14"), held("c", "0-1", 1)])
    assert replacement_cpus(machine(), ledger, "uid-c") is None


@given(st.lists(st.sets(st.integers(0, 15), min_size=1, max_size=5), min_size=2, max_size=4))
def test_a_replacement_ends_every_double_hold_of_the_pod(sets: list[set[int]]) -> None:
    holdings = [held(f"p{number}", str(CpuSet.of(cpus)), number) for number, cpus in enumerate(sets)]
    ledger = Ledger.of(holdings)
    overlaps = any(one & other for one, other in combinations(sets, 2))
    assert bool(double_holds(ledger)) == overlaps
    for holding in holdings:
        found = replacement_cpus(machine(), ledger, holding.pod.uid)
        others = CpuSet.of(cpu for each in holdings if each is not holding for cpu in each.cpus)
        if found is None:
            assert 16 - len(others) < len(holding.cpus)
            continue
        assert len(found) == len(holding.cpus)
        assert not found & others
