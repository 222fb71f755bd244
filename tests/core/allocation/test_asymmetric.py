"""Machines whose NUMA nodes are not alike: memory without CPUs, devices or huge pages on some of them, different sizes."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.allocation.allocate import AllocateOptions, allocate
from koord_numa.core.cpu_topology import CpuTopology, cpu_topology_of
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import Container, NumaSpec, PodKey, PodRequest
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import ContainerKind, NumaPolicy, QosClass
from koord_numa.core.resources import ResourceList
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.state.ledger import Holding, Ledger
from tests.tables import each_row

NIC, GPU, PAGES = "example.com/nic", "example.com/gpu", "hugepages-1Gi"
GI = 1 << 30
BEST_EFFORT, RESTRICTED = NumaPolicy.BEST_EFFORT, NumaPolicy.RESTRICTED


def asymmetric(*numa: tuple[int, int, ResourceList], interleaved: bool = False) -> Inventory:
    """A machine by NUMA node: its CPUs (two threads a core), GiB of memory, and devices. Ids of CPUs go on, or alternate."""
    places = [at for at, (cpus, _, _) in enumerate(numa) for _ in range(cpus // 2)]
    if interleaved:
        rounds = [(places[:index].count(at), at) for index, at in enumerate(places)]
        places = [at for _, at in sorted(rounds)]
    rows = [(2 * core + thread, core, at, at) for core, at in enumerate(places) for thread in (0, 1)]
    zones = tuple(
        (at, {"cpu": 1000 * cpus, "memory": gib * GI, **devices}) for at, (cpus, gib, devices) in enumerate(numa)
    )
    return Inventory(node="n", machine=cpu_topology_of(rows), zones=zones)


def lsr(policy: NumaPolicy, cpus: int, gib: int, **more: int) -> PodRequest:
    names = {"nic": NIC, "gpu": GPU, "pages": PAGES}
    amounts: ResourceList = {
        "cpu": 1000 * cpus,
        "memory": gib * GI,
        **{names[key]: value for key, value in more.items()},
    }
    container = Container("app", ContainerKind.APP, amounts, amounts)
    return PodRequest(containers=(container,), qos=QosClass.LSR, numa=NumaSpec(policy))


def placed(where: Inventory, request: PodRequest, *held: Holding) -> Placement:
    found = allocate(request, where, Ledger.of(held), AllocateOptions())
    assert isinstance(found, Placement), found
    return found


ENDS = asymmetric((8, 64, {NIC: 8}), (8, 64, {}), (8, 64, {}), (8, 64, {GPU: 8}))
CXL = asymmetric((8, 64, {}), (8, 64, {}), (0, 256, {}))


@each_row("policy", [BEST_EFFORT, RESTRICTED])
@each_row(
    ("where", "request_", "mask"),
    [
        pytest.param(ENDS, (4, 4, {"nic": 1, "gpu": 1}), 0b1001, id="devices at both ends"),
        pytest.param(ENDS, (4, 4, {"gpu": 1}), 0b1000, id="a device on one NUMA node"),
        pytest.param(CXL, (4, 80, {}), 0b101, id="memory without CPUs"),
        pytest.param(CXL, (4, 8, {}), 0b1, id="no need of the far memory"),
    ],
)
def test_an_empty_machine_takes_the_pod(
    policy: NumaPolicy, where: Inventory, request_: tuple[int, int, dict[str, int]], mask: int
) -> None:
    cpus, gib, more = request_
    assert placed(where, lsr(policy, cpus, gib, **more)).mask == mask


def test_cpus_and_memory_stay_together_when_a_device_is_remote() -> None:
    where = asymmetric((8, 64, {NIC: 8}), (8, 64, {}))
    held = Holding(PodKey("d", "a", "a"), {"cpu": 6000}, CpuSet.of(range(6)), numa=((0, {"cpu": 6000}),))
    found = placed(where, lsr(BEST_EFFORT, 6, 8, nic=2), held)
    assert found.cpus == CpuSet.of(range(8, 14))
    assert dict(found.numa) == {0: {NIC: 2}, 1: {"cpu": 6000, "memory": 8 * GI}}


def test_devices_beside_the_cpus_come_first() -> None:
    where = asymmetric((8, 64, {GPU: 2}), (8, 64, {GPU: 3}))
    found = placed(where, lsr(BEST_EFFORT, 8, 8, gpu=4))
    assert found.cpus == CpuSet.of(range(8))
    assert {numa: share.get(GPU, 0) for numa, share in found.numa} == {0: 2, 1: 2}


@st.composite
def machines(draw: st.DrawFn) -> Inventory:
    """Up to five NUMA nodes, each with any CPUs, memory and devices, or none."""
    count = draw(st.integers(1, 5))
    few = st.sampled_from((0, 0, 1, 4))
    numa = st.tuples(
        st.sampled_from((0, 2, 4, 8)),
        st.sampled_from((0, 4, 16)),
        st.fixed_dictionaries({NIC: few, GPU: few, PAGES: few}),
    )
    return asymmetric(*(draw(numa) for _ in range(count)), interleaved=draw(st.booleans()))


@given(
    machines(),
    st.integers(1, 10),
    st.integers(1, 20),
    st.integers(0, 3),
    st.integers(0, 3),
    st.sampled_from((0.0, 0.3, 0.7)),
    st.randoms(use_true_random=False),
)
def test_best_effort_takes_no_more_numa_nodes_than_the_best_set(
    where: Inventory, cpus: int, gib: int, nics: int, gpus: int, used: float, dice: object
) -> None:
    machine = where.machine
    assert isinstance(machine, CpuTopology)
    taken = [cpu for cpu in machine.all if dice.random() < used]  # type: ignore[attr-defined]  # a Random
    by_numa = {numa: sum(machine.numa_of(CpuSet.of([cpu])) == 1 << numa for cpu in taken) for numa in where.numa_ids}
    shares = tuple((numa, {"cpu": 1000 * count}) for numa, count in by_numa.items() if count)
    held = [Holding(PodKey("d", "a", "a"), {"cpu": 1000 * len(taken)}, CpuSet.of(taken), numa=shares)] if taken else []
    request = lsr(BEST_EFFORT, cpus, gib, **{"nic": nics} if nics else {}, **{"gpu": gpus} if gpus else {})
    wanted = {"cpu": 1000 * cpus, "memory": gib * GI, NIC: nics, GPU: gpus}
    free = {
        numa: {name: amounts.get(name, 0) - (1000 * by_numa[numa] if name == "cpu" else 0) for name in wanted}
        for numa, amounts in where.zones
    }
    sizes = [
        size
        for size in range(1, len(free) + 1)
        for chosen in combinations(free, size)
        if all(sum(free[numa][name] for numa in chosen) >= amount for name, amount in wanted.items())
    ]
    found = allocate(request, where, Ledger.of(held), AllocateOptions())
    assert isinstance(found, Placement) == bool(sizes), found
    if isinstance(found, Placement):
        used_mask = machine.numa_of(found.cpus) | sum(1 << numa for numa, _ in found.numa)
        assert used_mask.bit_count() <= min(sizes)
        assert len(found.cpus) == cpus
