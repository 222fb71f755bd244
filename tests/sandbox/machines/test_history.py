"""The log of what pods had: every double hold is found in it, whatever it is of, and nothing else is."""

from collections.abc import Sequence

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.request import PodKey
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.sandbox.apiserver import DirectStore
from koord_numa.sandbox.machines import STATIC_KUBELET, NodeDescription, Shape, Style
from koord_numa.sandbox.machines.agents import AgentAllocation, Claim, capacity_of
from koord_numa.sandbox.machines.description import GIB
from koord_numa.sandbox.machines.simulated_node import History, SimultaneousHold
from tests.sandbox.machines.conftest import MakeRack
from tests.sandbox.machines.pods import bind, create, numa
from tests.tables import each_row

ONE, TWO, THREE = (PodKey("d", name, name) for name in ("one", "two", "three"))
GPU, SMALL, HUGE = "nvidia.com/gpu", "hugepages-2Mi", "hugepages-1Gi"
MIB = 2**20
PAGES = {"2Mi": 8, "1Gi": 2}
SHAPE = Shape(2, 1, 4, 2, 16 * GIB, pages=PAGES, devices={GPU: (0, 1, 1), "vendor.example/nic": (0, None)})
STOCK = capacity_of(NodeDescription("n", SHAPE.build()))
FIRST, SECOND, ANYWHERE = 0b01, 0b10, 0b11


def cpus(text: str) -> AgentAllocation:
    return AgentAllocation(CpuSet.parse(text))


def devices(*ids: str) -> AgentAllocation:
    return AgentAllocation(devices=frozenset(ids))


def claim(resource: str, amount: int, mask: int = ANYWHERE) -> AgentAllocation:
    return AgentAllocation(claims=(Claim(resource, amount, mask),))


def of_node(*held: tuple[PodKey, AgentAllocation]) -> History:
    """Return the allocations of the pods on one machine, in order."""
    history = History(stocks={"n": STOCK})
    for pod, possession in held:
        history.hold("n", pod, possession)
    return history


def test_what_a_machine_has() -> None:
    assert STOCK == {
        "memory": {FIRST: 14 * GIB - 16 * MIB, SECOND: 14 * GIB - 16 * MIB},
        SMALL: {FIRST: 16 * MIB, SECOND: 16 * MIB},
        HUGE: {FIRST: 2 * GIB, SECOND: 2 * GIB},
        GPU: {FIRST: 1, SECOND: 2, 0: 0},
        "vendor.example/nic": {FIRST: 1, 0: 1},
    }


TWICE: dict[str, tuple[Sequence[tuple[PodKey, AgentAllocation]], str]] = {
    "a CPU": ([(ONE, cpus("0-3")), (TWO, cpus("3-4"))], "CPUs 3"),
    "a device": ([(ONE, devices("gpu 0", "gpu 1")), (TWO, devices("gpu 1"))], "devices gpu 1"),
    "a device of a NUMA node": (
        [(ONE, claim(GPU, 1, FIRST)), (TWO, claim(GPU, 1, FIRST))],
        f"2 of 1 {GPU} on NUMA nodes 0",
    ),
    "a device of those that pods from anywhere need": (
        [(ONE, claim(GPU, 2, SECOND)), (TWO, claim(GPU, 2))],
        f"4 of 3 {GPU} on NUMA nodes 0-1",
    ),
    "small pages of a NUMA node": (
        [(ONE, claim(SMALL, 10 * MIB, SECOND)), (TWO, claim(SMALL, 8 * MIB, SECOND))],
        f"{18 * MIB} of {16 * MIB} {SMALL} on NUMA nodes 1",
    ),
    "a gigantic page of two NUMA nodes": (
        [(ONE, claim(HUGE, 3 * GIB, ANYWHERE)), (TWO, claim(HUGE, 2 * GIB, FIRST))],
        f"{5 * GIB} of {4 * GIB} {HUGE} on NUMA nodes 0-1",
    ),
    "a byte of memory": (
        [(ONE, claim("memory", 14 * GIB - 16 * MIB, FIRST)), (TWO, claim("memory", 1, FIRST))],
        f"{14 * GIB - 16 * MIB + 1} of {14 * GIB - 16 * MIB} memory on NUMA nodes 0",
    ),
}


@each_row(("held", "what"), TWICE.values(), ids=TWICE.keys())
def test_what_is_held_twice_is_found(held: Sequence[tuple[PodKey, AgentAllocation]], what: str) -> None:
    history = of_node(*held)
    assert history.double_holds() == [SimultaneousHold(1, "n", what, (ONE, TWO))]
    history.release("n", ONE)
    assert history.double_holds() == [SimultaneousHold(1, "n", what, (ONE, TWO))]  # it was so, if only for a moment


ONCE: dict[str, Sequence[tuple[PodKey, AgentAllocation]]] = {
    "everything": [
        (
            ONE,
            AgentAllocation(CpuSet.parse("0-3"), frozenset({"a"}), (Claim(GPU, 1, FIRST), Claim(HUGE, 2 * GIB, FIRST))),
        ),
        (
            TWO,
            AgentAllocation(
                CpuSet.parse("4-7"), frozenset({"b"}), (Claim(GPU, 2, SECOND), Claim(HUGE, 2 * GIB, SECOND))
            ),
        ),
    ],
    "from anywhere, beside what is bound": [
        (ONE, claim(HUGE, 2 * GIB, FIRST)),
        (TWO, claim(HUGE, 1 * GIB, SECOND)),
        (THREE, claim(HUGE, 1 * GIB)),
    ],
    "a device without a place, from anywhere": [
        (ONE, claim("vendor.example/nic", 1, FIRST)),
        (TWO, claim("vendor.example/nic", 1)),
    ],
    "a pod's own, once more": [(ONE, cpus("0-3")), (ONE, cpus("2-5")), (ONE, claim(GPU, 2, SECOND))],
}


@each_row("held", ONCE.values(), ids=ONCE.keys())
def test_what_is_held_once_is_no_clash(held: Sequence[tuple[PodKey, AgentAllocation]]) -> None:
    assert of_node(*held).double_holds() == []


def test_only_simultaneous_holds_on_one_node_conflict() -> None:
    history = of_node((ONE, claim(GPU, 2, SECOND)))
    history.stocks["m"] = STOCK
    history.hold("m", TWO, claim(GPU, 2, SECOND))
    history.release("n", ONE)
    history.hold("n", THREE, claim(GPU, 2, SECOND))
    assert history.double_holds() == []
    history.hold("n", ONE, claim(GPU, 1, SECOND))
    assert [str(clash) for clash in history.double_holds()] == [
        f"entry 4: 3 of 2 {GPU} on NUMA nodes 1 of n are held by d/three and d/one"
    ]


def test_who_holds_what_at_the_end() -> None:
    history = of_node((ONE, cpus("0-3")), (TWO, claim(GPU, 1)), (ONE, cpus("0-1")), (THREE, cpus("4")))
    history.release("n", THREE)
    assert history.allocations() == {"n": {TWO: claim(GPU, 1), ONE: cpus("0-1")}}
    assert history.holders() == {"n": {ONE: CpuSet.parse("0-1")}}


def test_scheduler_owned_nodes_log_annotations_and_other_amounts(store: DirectStore, rack_of: MakeRack) -> None:
    rack = rack_of([NodeDescription("n", SHAPE.build())])
    limits = {"cpu": "2", "memory": "1Gi", GPU: "2", HUGE: "1Gi", SMALL: "4Mi"}
    pod = create(store, "p", limits)
    amounts = {"cpu": "2", GPU: "2", HUGE: "1Gi"}
    bind(store, pod, "n", {"cpuset": "4-5", "numaNodeResources": numa((1, amounts))})
    claims = (
        Claim(HUGE, GIB, SECOND),
        Claim(SMALL, 4 * MIB, ANYWHERE),
        Claim("memory", GIB, ANYWHERE),
        Claim(GPU, 2, SECOND),
    )
    assert rack.history.allocations() == {"n": {pod: AgentAllocation(CpuSet.parse("4-5"), claims=claims)}}


@pytest.mark.parametrize(
    ("kubelet", "places"),
    [
        pytest.param(STATIC_KUBELET, {"memory": FIRST, SMALL: FIRST, HUGE: FIRST}, id="memory is bound"),
        pytest.param(
            KubeletConfig(KubeletPolicy.BEST_EFFORT, cpu_policy="static"),
            {"memory": ANYWHERE, SMALL: ANYWHERE, HUGE: ANYWHERE},
            id="memory is anywhere",
        ),
    ],
)
def test_kubelets_log_what_they_gave(
    store: DirectStore, rack_of: MakeRack, kubelet: KubeletConfig, places: dict[str, int]
) -> None:
    rack = rack_of([NodeDescription("k", SHAPE.build(), Style.KUBELET, kubelet)])
    limits = {"cpu": "2", "memory": "1Gi", GPU: "1", HUGE: "1Gi", SMALL: "4Mi"}
    pod = create(store, "p", limits)
    bind(store, pod, "k")
    found = rack.history.allocations()["k"][pod]
    assert (found.cpus, found.devices) == (CpuSet.parse("0,8"), frozenset({"nvidia.com/gpu gpu-0"}))
    amounts = {"memory": GIB, SMALL: 4 * MIB, HUGE: GIB}
    expected = {Claim(name, amount, places[name]) for name, amount in amounts.items()}
    assert set(found.claims) == {*expected, Claim(GPU, 1, ANYWHERE)}
