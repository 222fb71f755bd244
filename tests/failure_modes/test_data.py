"""Data that is late, old, wrong or foreign: what the engine makes of it."""

from random import Random

import pytest

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.node import KubeletAllocation, NodeResourceTopology, Zone
from koord_numa.core.objects.request import Assignment, NumaSpec, Pod
from koord_numa.core.objects.verdicts import Reason
from koord_numa.core.objects.vocabulary import CpuOwner, KubeletPolicy, NumaPolicy, QosClass
from koord_numa.core.value_objects import replace
from koord_numa.wire.topologies import parse_topology
from tests.engine.world import GIB, World, bound, make_node, make_pod, make_topology, make_world


def aligned(name: str, cpu: int = 2000, **changes: object) -> Pod:
    """A pod that must have its own CPUs in one NUMA node."""
    pod = replace(make_pod(name, cpu), **changes)  # type: ignore[arg-type]  # changes are named fields
    numa = NumaSpec(policy=NumaPolicy.SINGLE_NUMA_NODE)
    return replace(pod, request=replace(pod.request, qos=QosClass.LSR, numa=numa))


def kubelet_topology(node: str, free: tuple[int, int] = (4000, 4000)) -> NodeResourceTopology:
    """A kubelet that demands one NUMA node, with so many milli-CPU available in each of two."""
    whole = {"cpu": 4000, "memory": 16 * GIB}
    zones = tuple(Zone(numa, whole, whole, {"cpu": cpu, "memory": 16 * GIB}) for numa, cpu in enumerate(free))
    base = make_topology(node)
    kubelet = replace(base.kubelet, topology_policy=KubeletPolicy.SINGLE_NUMA_NODE, cpu_policy="static")
    return replace(base, owner=CpuOwner.KUBELET, machine=None, zones=zones, kubelet=kubelet)


def guaranteed(name: str, cpu: int) -> Pod:
    """Requests equal limits, so that a static kubelet pins it."""
    return make_pod(name, cpu)


async def test_what_is_on_its_way_counts_although_the_topology_is_old() -> None:
    world = make_world(make_node("node"))
    world.engine.handlers.topologies.observe("ADDED", kubelet_topology("node"))
    world.waits(*(guaranteed(f"pod-{number}", 3000) for number in range(4)))
    await world.settle()
    world.engine.handlers.topologies.observe(
        "MODIFIED", kubelet_topology("node")
    )  # published again, before any of them started
    world.waits(guaranteed("late", 3000))
    await world.settle()
    assert sorted(world.nodes_of().values()) == ["", "", "", "node", "node"]


async def test_a_topology_that_comes_late_needs_no_restart() -> None:
    world = make_world(make_node("node"))
    world.waits(aligned("pod"))
    await world.settle()
    verdict = world.engine.queue.verdict(world.engine.handle.pending.get("uid-pod"))
    assert verdict is not None
    assert verdict.rejections["node"].reason is Reason.NO_TOPOLOGY
    assert "node(s) invalid CPU Topology" in world.engine.explain("uid-pod")
    assert "no NodeResourceTopology describes its CPUs" in world.engine.explain("uid-pod")
    world.engine.handlers.topologies.observe("ADDED", make_topology("node"))
    world.clock.now += 5
    await world.settle()
    assert world.nodes_of() == {"pod": "node"}


async def test_a_vanished_topology_leaves_pods_and_accounting() -> None:
    world = make_world(make_node("node"))
    world.engine.handlers.topologies.observe("ADDED", make_topology("node"))
    world.waits(aligned("first"))
    await world.settle()
    before = world.ledgers()
    world.engine.handlers.topologies.observe("DELETED", make_topology("node"))
    world.waits(aligned("second"))
    await world.settle()
    assert (world.ledgers(), world.nodes_of()) == (before, {"first": "node", "second": ""})
    world.engine.handlers.topologies.observe("ADDED", make_topology("node"))
    world.clock.now += 5
    await world.settle()
    assert world.nodes_of() == {"first": "node", "second": "node"}
    held = [holding.cpus for holding in world.engine.cache.nodes["node"].ledger]
    assert not held[0] & held[1]


@pytest.mark.parametrize("deleted", [True, False], ids=["created again", "overwritten"])
async def test_a_publisher_that_replaces_another_gives_no_cpu_twice(deleted: bool) -> None:
    """A kubelet's exporter writes the topology of a node with cpusets of ours, and koordlet takes it over again."""
    world = make_world(make_node("node"))
    observe = world.engine.handlers.topologies.observe
    observe("ADDED", make_topology("node"))
    world.waits(aligned("first"))
    await world.settle()
    held = world.ledgers()
    if deleted:
        observe("DELETED", make_topology("node"))
    observe("ADDED" if deleted else "MODIFIED", kubelet_topology("node"))
    world.waits(aligned("second"))
    await world.settle()
    assert world.ledgers()["node"].items() >= held["node"].items()
    observe("MODIFIED", make_topology("node"))
    world.waits(aligned("third"))
    world.clock.now += 5
    await world.settle()
    assert set(world.nodes_of().values()) == {"node"}
    cpus = [cpu for holding in world.engine.cache.nodes["node"].ledger for cpu in holding.cpus]
    assert len(set(cpus)) == len(cpus) >= 4


async def test_a_malformed_topology_costs_one_node_and_is_named() -> None:
    world = make_world(make_node("bad"), make_node("good", cpu=2))
    raw = {
        "apiVersion": "topology.node.k8s.io/v1alpha1",
        "kind": "NodeResourceTopology",
        "metadata": {"name": "bad", "annotations": {"node.koordinator.sh/cpu-topology": '{"detail": [{"id": "x"'}},
        "zones": [],
    }
    world.engine.handlers.topologies.observe("ADDED", parse_topology(raw))
    world.engine.handlers.topologies.observe("ADDED", make_topology("good", cores=1))
    world.waits(aligned("one", 2000), aligned("two", 2000))
    await world.settle()
    assert sorted(world.nodes_of().values()) == ["", "good"]
    (waiting,) = world.engine.waiting()
    assert "node.koordinator.sh/cpu-topology" in world.engine.explain(waiting.key.uid)


async def test_a_changed_policy_applies_to_the_next_pod_only() -> None:
    world = make_world(make_node("node"))
    world.engine.handlers.topologies.observe("ADDED", make_topology("node"))
    wide = make_pod("wide", 6000)
    wide = replace(wide, request=replace(wide.request, qos=QosClass.LSR))
    world.waits(wide)
    await world.settle()
    held = world.ledgers()
    world.engine.handlers.nodes.observe("MODIFIED", make_node("node", numa_policy=NumaPolicy.SINGLE_NUMA_NODE))
    assert (world.nodes_of(), world.ledgers()) == ({"wide": "node"}, held)
    world.engine.handlers.bound_pods.observe("DELETED", bound(wide, "node"))
    world.waits(replace(wide, key=replace(wide.key, name="next", uid="uid-next")))
    world.server.pods.pop("uid-wide")
    await world.settle()
    assert world.nodes_of() == {"next": ""}
    verdict = world.engine.queue.verdict(world.engine.handle.pending.get("uid-next"))
    assert verdict is not None
    assert {rejection.reason for rejection in verdict.rejections.values()} <= {Reason.NUMA_POLICY, Reason.NUMA_AFFINITY}


@pytest.mark.parametrize(("rule", "node"), [("Refuse", ""), ("Permissive", "node")])
async def test_nodes_without_topology_are_a_matter_of_configuration(rule: str, node: str) -> None:
    world = make_world(make_node("node"), settings=f"profiles: [{{nodesWithoutTopology: {rule}}}]")
    shared = aligned("pod")
    world.waits(replace(shared, request=replace(shared.request, qos=QosClass.LS)))
    await world.settle()
    assert world.nodes_of() == {"pod": node}


async def test_a_terminating_pod_keeps_what_it_has_until_it_is_gone() -> None:
    world = make_world(make_node("node", cpu=2))
    old = bound(make_pod("old", 2000), "node")
    world.engine.handlers.bound_pods.observe("ADDED", old)
    world.engine.handlers.bound_pods.observe("MODIFIED", replace(old, deleting=True))
    world.waits(make_pod("new", 2000))
    await world.settle()
    assert world.nodes_of() == {"new": ""}
    world.engine.handlers.bound_pods.observe("DELETED", replace(old, deleting=True))
    world.clock.now += 5
    await world.settle()
    assert world.nodes_of() == {"new": "node"}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_a_finished_pod_that_is_never_collected_holds_nothing(phase: str) -> None:
    world = make_world(make_node("node", cpu=2))
    world.engine.handlers.bound_pods.observe("ADDED", bound(make_pod("old", 2000), "node"))
    world.engine.handlers.bound_pods.observe("MODIFIED", bound(make_pod("old", 2000), "node", phase=phase))
    world.waits(make_pod("new", 2000))
    await world.settle()
    assert world.nodes_of() == {"new": "node"}


async def test_a_static_pod_is_counted_and_never_scheduled() -> None:
    world = make_world(make_node("node", cpu=2))
    world.engine.handlers.bound_pods.observe(
        "ADDED", bound(make_pod("static", 1500, mirror=True, scheduler=""), "node")
    )
    world.waits(make_pod("new", 1000), make_pod("mirror", 100, mirror=True))
    await world.settle()
    assert world.nodes_of() == {"new": "", "mirror": ""}


async def test_a_foreign_scheduler_that_overcommits_is_only_counted() -> None:
    world = make_world(make_node("node", cpu=4))
    world.waits(make_pod("ours", 3000))
    await world.settle()
    world.engine.handlers.bound_pods.observe(
        "ADDED", bound(make_pod("foreign", 3000, scheduler="default-scheduler"), "node")
    )
    world.waits(make_pod("next", 500))
    await world.settle()
    assert world.nodes_of() == {"ours": "node", "next": ""}
    assert not [call for call in world.server.calls if call.startswith("evict")]
    assert world.engine.cache.nodes["node"].free["cpu"] == -2000


async def test_an_old_status_of_an_unbound_pod_is_overwritten() -> None:
    world = make_world(make_node("node"))
    world.engine.handlers.topologies.observe("ADDED", make_topology("node"))
    taken = aligned("taken", assignment=Assignment(cpus=CpuSet.parse("0-1")))
    world.waits(replace(taken, assignment=Assignment(cpus=CpuSet.parse("6-7"))), aligned("other"))
    assert world.ledgers() == {"node": {}}
    await world.settle()
    held = {holding.pod.name: holding.cpus for holding in world.engine.cache.nodes["node"].ledger}
    assert {uid.removeprefix("uid-"): notes["cpus"] for uid, notes in world.server.annotations.items()} == {
        name: str(cpus) for name, cpus in held.items()
    }
    assert not held["taken"] & held["other"]


async def test_pods_on_a_node_that_does_not_exist_stop_no_other_pod() -> None:
    world = make_world(make_node("node"))
    world.engine.handlers.bound_pods.observe("ADDED", bound(make_pod("lost", 1000), "missing"))
    world.waits(make_pod("pod"))
    await world.settle()
    assert world.nodes_of() == {"pod": "node"}
    world.engine.handlers.bound_pods.observe("DELETED", bound(make_pod("lost", 1000), "missing"))
    assert "missing" not in world.engine.cache.nodes


async def test_two_owners_of_cpus_are_said_on_the_node_once() -> None:
    world = make_world(make_node("node"))
    given = KubeletAllocation("default", "static", "uid-static", CpuSet.parse("0-1"), managed_by_kubelet=True)
    world.engine.handlers.topologies.observe("ADDED", replace(make_topology("node"), kubelet_pods=(given,)))
    ours = bound(make_pod("ours"), "node", assignment=Assignment(cpus=CpuSet.parse("1-2")))
    world.engine.handlers.bound_pods.observe("ADDED", ours)
    world.engine.handlers.bound_pods.observe("MODIFIED", replace(ours, labels=(("a", "b"),)))
    world.waits(make_pod("next"))
    await world.settle()
    assert world.diary.reasons("node") == ["TwoCPUOwners"]
    assert "CPUs 1 belong to default/ours" in world.diary.events[0][2]
    assert "1 node(s) had CPUs with two owners" in world.engine.explain("uid-next")
    world.engine.handlers.bound_pods.observe("DELETED", ours)
    world.clock.now += 5
    await world.settle()
    assert world.nodes_of() == {"next": "node"}


@pytest.mark.parametrize("seed", range(5))
async def test_any_mixture_of_old_and_new_facts_overcommits_nothing(seed: int) -> None:
    """Topologies and pods are shown again and again, in any order and as they were at any time."""
    dice, world = Random(seed), make_world(make_node("node"))
    topologies = [make_topology("node")]
    shown: list[Pod] = []
    for number in range(60):
        world.waits(aligned(f"pod-{number}", dice.choice((1000, 2000))))
        await world.settle()
        shown = [pod for pod in world.server.pods.values() if pod.node]
        world.engine.handlers.topologies.observe("MODIFIED", dice.choice(topologies))
        for pod in dice.sample(shown, min(3, len(shown))):
            _show(world, pod)
    ledger = world.engine.cache.nodes["node"].ledger
    assert sum(len(holding.cpus) for holding in ledger) == len(CpuSet(ledger.bits)) <= 8


def _show(world: World, pod: Pod) -> None:
    cpus = CpuSet.parse(world.server.annotations[pod.key.uid]["cpus"])
    assignment = world.engine.cache.nodes["node"].ledger.holdings[pod.key.uid]
    world.engine.handlers.bound_pods.observe(
        "MODIFIED", replace(pod, assignment=Assignment(cpus=cpus, numa=assignment.numa))
    )


async def test_a_node_with_fewer_cpus_is_not_overcommitted() -> None:
    """Its pods are not told to have left yet, and hold more than the new node has."""
    world = make_world(make_node("node", cpu=16))
    world.engine.handlers.topologies.observe("ADDED", make_topology("node", cores=4))
    for number in range(3):
        world.engine.handlers.bound_pods.observe(None, bound(make_pod(f"old-{number}", 4000), "node"))
    world.engine.handlers.nodes.observe("DELETED", make_node("node", cpu=16))
    world.engine.handlers.nodes.observe("ADDED", make_node("node", cpu=8, uid="uid-new"))
    world.engine.handlers.topologies.observe("MODIFIED", replace(make_topology("node", cores=2), node_uid="uid-new"))
    world.waits(make_pod("new", 2000))
    await world.settle()
    assert world.nodes_of()["new"] == ""
    for number in range(2):
        world.engine.handlers.bound_pods.observe("DELETED", bound(make_pod(f"old-{number}", 4000), "node"))
    world.clock.now += 20
    await world.settle()
    assert world.nodes_of()["new"] == "node"
    assert world.engine.cache.nodes["node"].free["cpu"] == 2000


async def test_cpus_that_are_taken_offline_are_given_to_no_pod() -> None:
    """A running pod holds one of them. Its node takes other pods on the CPUs that are left."""
    world, whole = make_world(make_node("node", cpu=8)), make_topology("node")
    assert whole.machine is not None
    offline = {cpu.id for cpu in whole.machine.cpus if cpu.numa == 0} - {whole.machine.cpus[0].id}
    held = sorted(cpu.id for cpu in whole.machine.cpus if cpu.numa == 0)[:2]
    world.engine.handlers.topologies.observe("ADDED", whole)
    holder = bound(aligned("holder"), "node", assignment=Assignment(cpus=CpuSet.of(held)))
    world.engine.handlers.bound_pods.observe(None, holder)
    machine = CpuTopology(tuple(cpu for cpu in whole.machine.cpus if cpu.id not in offline))
    left = {**whole.zones[0].allocatable, "cpu": 1000}
    zones = (Zone(whole.zones[0].numa, left, left, left), *whole.zones[1:])
    world.engine.handlers.nodes.observe("MODIFIED", make_node("node", cpu=5))
    world.engine.handlers.topologies.observe("MODIFIED", replace(whole, machine=machine, zones=zones))
    world.waits(aligned("one"), aligned("two"))
    await world.settle()
    given = [record.cpus for record in world.engine.cache.nodes["node"].ledger if record.pod.name != "holder"]
    assert len(given) == 1
    assert not any(cpus & CpuSet.of(offline) for cpus in given)
    world.engine.handlers.bound_pods.observe("DELETED", holder)
    world.clock.now += 20
    await world.settle()
    assert list(world.nodes_of().values()) == ["node", "node"]


async def test_a_stopped_or_jumping_clock_stops_no_pod() -> None:
    """A suspended machine: the monotonic clock may stand still, or go on hours later."""
    world = make_world(make_node("node", cpu=4))
    world.waits(make_pod("large", 8000), make_pod("first", 1000))
    await world.settle()
    world.clock.now += 100_000
    await world.engine._keep_house()
    world.waits(make_pod("second", 1000))
    await world.settle()
    assert world.nodes_of() == {"large": "", "first": "node", "second": "node"}
    world.engine.handlers.nodes.observe("MODIFIED", make_node("node", cpu=16))
    world.clock.now += 100_000
    await world.settle()
    assert world.nodes_of()["large"] == "node"
