"""Merged hints that are remembered: the answer is always the one that is worked out, and states that look alike share it."""

from itertools import product
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.kubelet.demand import ContainerDemand
from koord_numa.core.kubelet.state import KubeletState, ManagerState, MemoryTable
from koord_numa.core.kubelet.topology_manager import LeftOver, align_all, merged
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import gpus, node

GPU: Final = "vendor.com/gpu"
SUPPLY: Final = {numa: {"memory": 4, "hugepages-2Mi": 2} for numa in range(3)}
POOLS: Final = (gpus(1, 2, 4, None), gpus(3, 6, 4, 1), gpus(1, 2, 4, None, unhealthy=(0,)))
POLICIES: Final = (KubeletPolicy.BEST_EFFORT, KubeletPolicy.RESTRICTED, KubeletPolicy.SINGLE_NUMA_NODE)
# Made once: what is remembered goes by their identity.
NODES: Final = [
    node("3x1x3x1", policy, memory=SUPPLY, cpu_policy=cpus, options=options)
    for policy, cpus, options in product(POLICIES, ("static", "none"), ((), ("align-by-socket",)))
]
FREE: Final = 0b011011011  # bits of CPUs that may be free, two of every NUMA node; the third may be left over


def unit(cpus: int, memory: int, pages: int, devices: int | None) -> ContainerDemand:
    """Amounts of 0 are left out; devices of ``None`` are not named."""
    bytes_ = {kind: amount for kind, amount in (("memory", memory), ("hugepages-2Mi", pages)) if amount}
    return ContainerDemand(cpus, bytes_ or None, {} if devices is None else {GPU: devices})


def table(held: tuple[int, ...], pages: int, group: int) -> MemoryTable:
    """Of memory so much is held of every NUMA node, of huge pages of the first one; a block is on each NUMA node of ``group``."""
    found = MemoryTable.of(SUPPLY)
    for numa, amount in enumerate(held):
        found.hold(numa, "memory", amount)
        if group >> numa & 1:
            found.groups[numa], found.blocks[numa] = group, 1
    found.hold(0, "hugepages-2Mi", pages)
    return found


PARTS: Final[dict[str, st.SearchStrategy[Any]]] = {
    "node": st.sampled_from(NODES),
    "demand": st.builds(
        unit, st.integers(0, 5), st.integers(0, 6), st.integers(0, 3), st.sampled_from([None, 0, 1, 2])
    ),
    "pool": st.sampled_from(POOLS),
    "cpus": st.integers(0, (1 << 9) - 1),
    "again": st.integers(0, (1 << 9) - 1),
    "devices": st.integers(0, 15),
    "devices again": st.integers(0, 15),
    "memory": st.one_of(
        st.none(),
        st.builds(table, st.tuples(*[st.integers(0, 4)] * 3), st.integers(0, 2), st.sampled_from([0, 1, 3, 6])),
    ),
    "memory again": st.dictionaries(
        st.tuples(st.sampled_from([1, 2, 3]), st.just("memory")), st.integers(1, 4), max_size=2
    ),
    "exact": st.booleans(),
}


@given(st.data())
def test_what_is_remembered_is_what_is_worked_out(draw: st.DataObject) -> None:
    state = {name: draw.draw(part, label=name) for name, part in PARTS.items()}
    for name in ("", *draw.draw(st.permutations(sorted(PARTS)), label="order")):
        # One thing at a time is another one, which the answer may depend on.
        if name:
            state[name] = draw.draw(PARTS[name], label=name)
        asked, demand, exact = replace(state["node"], devices={GPU: state["pool"]}), state["demand"], state["exact"]
        left = LeftOver(state["again"] & ~FREE, {GPU: state["devices again"]}, state["memory again"])
        taken = state["devices"] | state["devices again"]
        managers = ManagerState(state["cpus"] & FREE, {GPU: taken}, state["memory"])
        answer = align_all(asked, managers, demand, left, exact=exact)
        assert answer == merged(asked, managers, demand, left, exact=exact)


def test_states_that_look_alike_share_an_answer() -> None:
    some = node("2x1x4x1", KubeletPolicy.BEST_EFFORT, devices={GPU: gpus(1, 2)})
    demand, nothing = ContainerDemand(6, None, {}), LeftOver(0, {}, {})
    managers = KubeletState.empty(some).managers
    other = replace(managers, cpus=managers.cpus & ~1, devices={GPU: 3})
    alike = replace(managers, cpus=managers.cpus & ~2)
    answer = align_all(some, other, demand, nothing, exact=True)
    assert align_all(some, alike, demand, nothing, exact=True) is answer
    assert align_all(some, managers, demand, nothing, exact=True) is not answer
