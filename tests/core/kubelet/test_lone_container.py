"""Pods of one container that find everything on one NUMA node: what is told at once is what the whole procedure gives."""

from itertools import product
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.kubelet.admit import DryRunAdmitted, Trust, dry_run
from koord_numa.core.kubelet.cpu_manager import CpuReuse, CpuStock
from koord_numa.core.kubelet.demand import pod_demand
from koord_numa.core.kubelet.state import KubeletState, ManagerState, MemoryTable
from koord_numa.core.kubelet.topology_manager import admitted_alone
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import app, gpus, node, pod, sidecar

GPU: Final = "vendor.com/gpu"
SUPPLY: Final = {numa: {"memory": 6, "hugepages-2Mi": 2 << 20} for numa in range(3)}
POLICIES: Final = (
    KubeletPolicy.NONE,
    KubeletPolicy.BEST_EFFORT,
    KubeletPolicy.RESTRICTED,
    KubeletPolicy.SINGLE_NUMA_NODE,
)
NODES: Final = [
    replace(
        node(shape, policy, scope, memory=memory, cpu_policy=cpus, devices={GPU: gpus(1, 2)}),
        ids_are_real=False,
        aligns_by_socket=by_socket,
    )
    for shape, policy, scope, memory, cpus, by_socket in product(
        ("3x1x3x1", "1x1x9x1"),
        POLICIES,
        (KubeletScope.CONTAINER, KubeletScope.POD),
        (None, SUPPLY),
        ("static", "none"),
        (False, True),
    )
    if memory is None or shape == "3x1x3x1"
]


def as_it_comes(_: CpuStock, bits: int, __: int | None) -> int:
    """Deals CPUs out as they are, which keeps the answer from being told at once."""
    return bits


def table(supply: Any, amounts: tuple[int, ...], group: int) -> MemoryTable:
    """So much memory is held of every NUMA node, which may be more than it has; a block is on each of ``group``."""
    found = MemoryTable.of(supply)
    for numa, amount in enumerate(amounts):
        found.hold(numa, "memory", amount)
        if group >> numa & 1:
            found.groups[numa], found.blocks[numa] = group, 1
    return found


@given(
    where=st.sampled_from(NODES),
    free=st.integers(0, (1 << 9) - 1),
    held=st.tuples(*[st.integers(-1, 12)] * 3),
    group=st.sampled_from([0, 1, 3, 6]),
    cpus=st.sampled_from([0, 0.5, 1, 2, 3, 4]),
    memory=st.integers(0, 7),
    more=st.sampled_from([{}, {"pages": 1}, {"gpu": 0}, {"gpu": 1}]),
    kind=st.sampled_from([app, sidecar]),
    trust=st.sampled_from(Trust),
    reuse=st.sampled_from(CpuReuse),
)
def test_it_is_what_the_whole_procedure_gives(
    where: Any,
    free: int,
    held: tuple[int, ...],
    group: int,
    cpus: float,
    memory: int,
    more: dict[str, int],
    kind: Any,
    trust: Trust,
    reuse: CpuReuse,
) -> None:
    bound = table(where.memory, held, group) if where.pins_memory else None
    managers = ManagerState(free & where.machine.bits if where.pins_cpus else 0, {GPU: 1}, bound)
    request = pod(kind(cpus, memory=memory, **more))
    state = KubeletState(where, managers)
    assert dry_run(state, request, trust, reuse) == dry_run(state, request, trust, reuse, as_it_comes)
    if bound is not None:
        assert bound == table(where.memory, held, group)


def test_most_pods_are_told_at_once() -> None:
    some = replace(node("2x1x4x1", memory={0: {"memory": 1 << 40}, 1: {"memory": 1 << 40}}), ids_are_real=False)
    state = KubeletState.empty(some)
    told = admitted_alone(some, state.managers, pod_demand(pod(app(3))))
    assert told is not None
    answer = dry_run(state, pod(app(3)))
    assert isinstance(answer, DryRunAdmitted)
    assert (answer.grant, answer.managers) == told
    assert told[1].cpus.bit_count() == 5
