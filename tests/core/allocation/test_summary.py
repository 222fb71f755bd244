"""Feasibility of many nodes at once equals the election and allocation on each of them."""

from hypothesis import given, settings
from hypothesis import strategies as st

from koord_numa.core.accounts import accounts
from koord_numa.core.allocation.affinity import elect
from koord_numa.core.allocation.need import Binding, Need, offers
from koord_numa.core.allocation.occupants import cpu_occupancy
from koord_numa.core.allocation.place import Given, place
from koord_numa.core.allocation.refusals import overcommitted
from koord_numa.core.allocation.summary import feasible, summarise
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.inventory import Inventory
from koord_numa.core.ledger import Holding, Ledger
from koord_numa.core.request import PodKey
from koord_numa.core.vocabulary import CpuBindPolicy, NumaPolicy
from tests.core.allocation.nodes import GI, node

BINDINGS = [
    None,
    Binding(CpuBindPolicy.FULL_PCPUS),
    Binding(CpuBindPolicy.FULL_PCPUS, required=True),
    Binding(CpuBindPolicy.SPREAD_BY_PCPUS, required=True),
]


@st.composite
def used_nodes(draw: st.DrawFn) -> tuple[Inventory, Ledger]:
    """A node with two CPUs a core and some holdings, with and without known NUMA nodes."""
    where = node(draw(st.sampled_from(["1x1x4x2", "2x1x3x2", "2x2x2x2"])), memory=4 * GI, gpus=draw(st.integers(0, 2)))
    assert where.machine is not None
    free = sorted(where.cpus)
    holdings = []
    for index in range(draw(st.integers(0, 4))):
        cpus = draw(st.sets(st.sampled_from(free), max_size=4))
        numa = draw(st.sampled_from(where.numa_ids))
        amounts = {"cpu": draw(st.sampled_from([0, 500, 2000])), "memory": draw(st.sampled_from([0, GI, 4 * GI]))}
        known = draw(st.booleans())
        holdings.append(
            Holding(
                PodKey("ns", str(index), str(index)),
                {} if known else amounts,
                CpuSet.of(cpus),
                numa=((numa, amounts),) if known else (),
            )
        )
        free = [cpu for cpu in free if cpu not in cpus] or free
    return where, Ledger.of(holdings)


def scalar(need: Need, where: Inventory, ledger: Ledger) -> bool:
    books = accounts(where, ledger)
    if overcommitted(need, books):
        return False
    room = offers(need, books, cpu_occupancy(ledger))
    if need.policy is NumaPolicy.NONE:
        return isinstance(place(need, room, None), Given)
    decision = elect(need, room)
    return decision.admitted and isinstance(place(need, room, decision.hint.mask), Given)


@given(st.lists(used_nodes(), min_size=1, max_size=5), st.data())
@settings(max_examples=200)
def test_many_nodes_at_once_as_one_by_one(hosts: list[tuple[Inventory, Ledger]], data: st.DataObject) -> None:
    binding = data.draw(st.sampled_from(BINDINGS))
    amounts = {"memory": data.draw(st.sampled_from([0, GI, 5 * GI])), "nvidia.com/gpu": data.draw(st.integers(0, 2))}
    amounts["cpu"] = data.draw(st.sampled_from([2000, 4000, 6000, 10000] if binding else [0, 700, 2000, 6000]))
    need = Need(
        {name: amount for name, amount in amounts.items() if amount},
        binding,
        data.draw(st.sampled_from(list(NumaPolicy))),
    )
    summaries = [summarise(need, accounts(where, ledger)) for where, ledger in hosts]
    assert feasible(need, summaries).tolist() == [scalar(need, where, ledger) for where, ledger in hosts]


def test_no_nodes() -> None:
    assert feasible(Need({"cpu": 1000}), []).tolist() == []
