"""After a watch has ended, the order in which pods came to a kubelet is not known until a topology shows them."""

import pytest

from koord_numa.core.fingerprint import fingerprint
from koord_numa.core.kubelet.history import ORDER_UNKNOWN, KubeletHistory
from koord_numa.core.objects.node import KubeletConfig, NodeResourceTopology, Zone
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.vocabulary import CpuOwner, KubeletPolicy, KubeletScope
from koord_numa.core.value_objects import replace
from tests.engine.world import GIB, World, bound, make_node, make_pod, make_world
from tests.tables import each_row

ROOM = {"cpu": 4000, "memory": 16 * GIB}


def shows(*used: int, version: str, pods: tuple[str, ...] = ()) -> NodeResourceTopology:
    """Two NUMA nodes with four CPUs each, of which these pods use so many."""
    zones = tuple(Zone(numa, ROOM, ROOM, {**ROOM, "cpu": 4000 - 1000 * cpus}) for numa, cpus in enumerate(used))
    return NodeResourceTopology(
        "node",
        CpuOwner.KUBELET,
        zones,
        kubelet=KubeletConfig(
            KubeletPolicy.SINGLE_NUMA_NODE, KubeletScope.POD, cpu_policy="static", memory_policy="None"
        ),
        resource_version=version,
        fingerprint=fingerprint(("default", name) for name in pods),
    )


def on_node(name: str, cpus: int, *, started: bool = True) -> Pod:
    return bound(replace(make_pod(name, cpu=1000 * cpus), started=started), "node")


def standby(*there: Pod) -> World:
    """A scheduler that follows the node while another one leads."""
    world = make_world(make_node("node"))
    world.engine.handlers.topologies.observe("ADDED", shows(0, 0, version="1"))
    world.engine.cache.nodes["node"].candidate()
    for pod in there:
        world.engine.handlers.bound_pods.observe("ADDED", replace(pod, started=False))
        world.engine.handlers.bound_pods.observe("MODIFIED", pod)
    assert lost(world) == ""
    return world


def lost(world: World) -> str:
    info = world.engine.cache.nodes["node"]
    info.candidate()
    assert info.history.belief is not None
    return info.history.belief.lost


@each_row(
    ("listed", "why"),
    [
        pytest.param(["a"], "", id="nothing-happened"),
        pytest.param(["a", "b"], "", id="one-came"),
        pytest.param([], "", id="one-left"),
        pytest.param(["a", "b", "c"], ORDER_UNKNOWN, id="two-came"),
        pytest.param(["b"], ORDER_UNKNOWN, id="one-came-and-one-left"),
    ],
)
def test_a_list_tells_no_order(listed: list[str], why: str) -> None:
    world = standby(on_node("a", 2))
    world.engine.handlers.bound_pods.replace([on_node(name, 2) for name in listed])
    assert lost(world) == why


def test_a_topology_with_the_pods_shows_the_effect_of_order() -> None:
    world = standby(on_node("a", 2))
    world.engine.handlers.bound_pods.replace([on_node(name, 1 + (name == "b")) for name in "abc"])
    world.engine.handlers.topologies.observe("MODIFIED", shows(4, 1, version="2", pods=("a", "b", "c")))
    assert lost(world) == ""


def test_found_pods_may_have_arrived_beside_departed_pods() -> None:
    """After a restart, where the topology shows none of them yet: which pods were there when they came no event tells."""
    world = make_world(make_node("node"))
    pods = [replace(on_node(name, 2), started_at=start) for name, start in (("a", 5.0), ("b", 6.0))]
    world.engine.handlers.bound_pods.replace(pods)
    world.engine.handlers.topologies.observe("ADDED", shows(0, 0, version="1"))
    world.engine.cache.judge_found_pods()
    assert lost(world) == ORDER_UNKNOWN
    world.engine.handlers.topologies.observe("MODIFIED", shows(4, 0, version="2", pods=("a", "b")))
    assert lost(world) == ""


def test_a_pod_that_cannot_be_looked_at_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    world = standby(on_node("a", 2))
    was_tied = KubeletHistory.is_tied

    def raises(history: KubeletHistory, pod: Pod) -> bool:
        if pod.key.name == "odd":
            raise ValueError("a request like no other")
        return was_tied(history, pod)

    monkeypatch.setattr(KubeletHistory, "is_tied", raises)
    world.engine.handlers.bound_pods.replace([on_node(name, 1) for name in ("a", "b", "c", "odd")])
    assert {pod.key.name for pod in world.engine.cache.pods()} == {"a", "b", "c", "odd"}
    assert lost(world) == ORDER_UNKNOWN


def test_pods_in_flight_in_the_first_list_have_unknown_order() -> None:
    """As they are listed by name: b may have come first, and be where a is foreseen."""
    world = make_world(make_node("node"))
    world.engine.handlers.topologies.observe("ADDED", shows(0, 0, version="1"))
    world.engine.handlers.bound_pods.replace([on_node("a", 3, started=False)])
    assert lost(world) == ""
    world = make_world(make_node("node"))
    world.engine.handlers.topologies.observe("ADDED", shows(0, 0, version="1"))
    world.engine.handlers.bound_pods.replace([on_node(name, 3, started=False) for name in "ab"])
    assert lost(world) == ORDER_UNKNOWN
