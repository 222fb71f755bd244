"""One object harms only itself: whatever it says, an innocent pod is bound."""

import pytest

from koord_numa.core.objects.constraints import TaintEffect
from koord_numa.core.objects.node import Node, Taint
from koord_numa.core.objects.request import Container, Pod
from koord_numa.core.objects.verdicts import Placement, Reason
from koord_numa.core.objects.vocabulary import ContainerKind, CpuOwner
from koord_numa.core.scheduling.filters import evaluate_alone
from koord_numa.core.value_objects import replace
from koord_numa.engine.queue.pending_pod import RequestClass
from koord_numa.engine.ranking.node_ranking import Undecided
from koord_numa.engine.ranking.node_table import MOST_LINES
from koord_numa.wire.topologies import parse_topology
from koord_numa.wire.zones import MOST_DEVICES
from tests.engine.world import GIB, World, bound, make_node, make_pod, make_topology, make_world

EXBIBYTE = 1 << 60


def giant(name: str, resource: str, containers: int = 9) -> Pod:
    """Every container asks for as much as a quantity can say."""
    pod = make_pod(name)
    parts = tuple(Container(f"c{i}", ContainerKind.APP, {resource: EXBIBYTE}) for i in range(containers))
    return replace(pod, request=replace(pod.request, containers=parts))


async def innocent_is_bound(world: World, name: str = "innocent") -> None:
    world.waits(make_pod(name))
    await world.settle()
    assert world.nodes_of()[name]


@pytest.mark.parametrize("resource", ["memory", "cpu", "example.com/thing", "ephemeral-storage", "hugepages-2Mi"])
async def test_a_pod_whose_sum_leaves_64_bits_only_waits(resource: str) -> None:
    world = make_world(make_node("node"))
    world.waits(giant("giant", resource))
    await world.settle()
    assert world.nodes_of() == {"giant": ""}
    assert "Insufficient" in world.engine.explain("uid-giant")
    await innocent_is_bound(world)


async def test_placed_pods_above_64_bits_close_only_their_node() -> None:
    world = make_world(make_node("full"), make_node("node"))
    for number in range(9):
        world.engine.handlers.bound_pods.observe(None, bound(giant(f"giant-{number}", "memory", 1), "full"))
    await innocent_is_bound(world)
    assert world.nodes_of()["innocent"] == "node"


async def test_a_node_with_more_than_64_bits_is_used_normally() -> None:
    amounts = {"cpu": 9 * EXBIBYTE, "memory": 9 * EXBIBYTE, "pods": 9 * EXBIBYTE, "example.com/thing": 9 * EXBIBYTE}
    world = make_world(Node("node", uid="uid-node", allocatable=amounts))
    await innocent_is_bound(world)


async def test_numa_nodes_whose_sum_leaves_64_bits_do_no_harm() -> None:
    topology = make_topology("vast", numa=2)
    zones = tuple(replace(zone, available={"cpu": 8 * EXBIBYTE}) for zone in topology.zones)
    world = make_world(make_node("vast"), make_node("node"))
    vast = replace(topology, zones=zones, owner=CpuOwner.KUBELET, machine=None)
    world.engine.handlers.topologies.observe(None, vast)
    await innocent_is_bound(world)


def published(**resources: str) -> dict[str, object]:
    listed = [{"name": name, "capacity": amount} for name, amount in resources.items()]
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": "n"},
        "zones": [{"name": "node-0", "type": "Node", "resources": listed}],
    }


def test_a_topology_with_too_many_cpus_is_rejected_by_name() -> None:
    assert "1000000 CPUs are too many" in parse_topology(published(cpu="1000000")).problem


def test_a_topology_with_too_many_devices_is_rejected_by_name() -> None:
    topology = parse_topology(published(**{"example.com/thing": str(MOST_DEVICES + 1)}))
    assert "devices are too many" in topology.problem


def test_ephemeral_storage_of_a_numa_node_is_no_device() -> None:
    (zone,) = parse_topology(published(cpu="4", **{"ephemeral-storage": "100Gi"})).zones
    assert zone.capacity == {"cpu": 4000}


async def test_resources_that_only_pods_name_do_not_fill_memory() -> None:
    world = make_world(make_node("node"))
    world.waits(*(giant(f"pod-{number}", f"example.com/thing-{number}", 1) for number in range(2 * MOST_LINES)))
    await world.settle(2 * MOST_LINES + 1)
    amounts = world.engine._node_table.amounts
    assert len(amounts.resources) <= MOST_LINES // 2
    offered = {"cpu": 8000, "memory": GIB, "pods": 10, "example.com/real": 1}
    world.engine.handlers.nodes.observe("ADDED", make_node("other", allocatable=offered))
    world.engine._node_table.refresh()
    assert "example.com/real" in amounts.resources
    await innocent_is_bound(world)


async def test_time_stamps_in_taints_make_no_new_node_classes() -> None:
    world = make_world(make_node("node"))
    table = world.engine._node_table
    for number in range(1000):
        stamp = Taint(
            "DeletionCandidateOfClusterAutoscaler", TaintEffect.PREFER_NO_SCHEDULE, str(1_700_000_000 + number)
        )
        world.engine.handlers.nodes.observe("MODIFIED", make_node("node", taints=(stamp,)))
        table.refresh()
    assert len(table.known_kinds) <= 3


async def test_node_classes_that_no_node_is_of_are_forgotten() -> None:
    world = make_world(make_node("node"))
    table = world.engine._node_table
    for number in range(1000):
        world.engine.handlers.nodes.observe(
            "MODIFIED", make_node("node", taints=(Taint("color", TaintEffect.NO_SCHEDULE, f"c{number}"),))
        )
        table.refresh()
    assert len(table.known_kinds) <= 3


async def test_an_exception_about_one_pod_quarantines_it_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world(make_node("node"))
    choose = world.engine.handle.selector.choose_some

    def explode(request_class: RequestClass, limit: int, images: tuple[str, ...]) -> Placement | Undecided | None:
        if request_class.cpu == 3000:
            raise OverflowError("too large")
        return choose(request_class, limit, images)

    monkeypatch.setattr(world.engine.handle.selector, "choose_some", explode)
    bad = make_pod("bad", 3000, resource_version="1")
    world.waits(bad)
    await world.settle()
    assert world.nodes_of() == {"bad": ""}
    assert ("bad", "FailedScheduling") in {(who, reason) for who, reason, _ in world.diary.events}
    assert world.engine.handle.quarantine.counts == {"pod": 1}
    await innocent_is_bound(world)
    await world.settle()
    assert world.engine.handle.quarantine.counts == {"pod": 1}
    better = replace(make_pod("bad", 2000), resource_version="2")
    world.server.pods[better.key.uid] = better
    world.engine.handlers.pending_pods.observe("MODIFIED", better)
    await world.settle()
    assert world.nodes_of()["bad"] == "node"


async def test_an_exception_about_one_node_costs_that_node_only(monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world(make_node("a-bad"), make_node("good"))

    def explode(ask, seen, rules):  # type: ignore[no-untyped-def]  # as evaluate_alone
        if seen.node.name == "a-bad":
            raise ZeroDivisionError("no CPUs")
        return evaluate_alone(ask, seen, rules)

    monkeypatch.setattr("koord_numa.engine.ranking.node_ranking.evaluate_alone", explode)
    await innocent_is_bound(world)
    assert world.nodes_of() == {"innocent": "good"}
    world.waits(make_pod("large", 8000))
    await world.settle()
    pending = world.engine.handle.pending.get("uid-large")
    verdict = world.engine.queue.verdict(pending)
    assert verdict is not None
    assert {name: no.reason for name, no in verdict.rejections.items()} == {
        "a-bad": Reason.BAD_NODE,
        "good": Reason.RESOURCES,
    }


async def test_an_uncountable_bound_pod_closes_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world(make_node("bad"), make_node("good"))
    observe = world.engine.cache.observe_pod

    def explode(event: str | None, pod: Pod) -> None:
        if pod.resource_version == "broken":
            raise RecursionError("deep")
        observe(event, pod)

    monkeypatch.setattr(type(world.engine.cache), "observe_pod", lambda _, event, pod: explode(event, pod))
    world.engine.handlers.bound_pods.observe(None, bound(make_pod("odd"), "bad", resource_version="broken"))
    world.waits(make_pod("one", 8000), make_pod("two", 8000))
    await world.settle()
    assert sorted(world.nodes_of().values()) == ["", "good"]
    assert "objects that cannot be processed" in world.engine.explain("uid-two")
    world.engine.handlers.bound_pods.observe("DELETED", bound(make_pod("odd"), "bad", resource_version="gone"))
    world.clock.now += 10
    await world.settle()
    assert sorted(world.nodes_of().values()) == ["bad", "good"]
