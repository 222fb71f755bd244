"""Numbers about kubelets whose options are not published."""

from koord_numa.app.debug import node_dump
from koord_numa.app.metrics import kubelet_metrics
from koord_numa.core.objects.node import NodeResourceTopology
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import CpuOwner
from koord_numa.core.value_objects import replace
from koord_numa.sandbox.machines.agents import KubeletAgent
from koord_numa.wire import parse_topology
from tests.engine.world import World, bound, make_node, make_pod, make_world
from tests.kubelets.test_unknown_options import node as description


def numbers(world: World, now: float) -> dict[str, float]:
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in kubelet_metrics(world.engine, now)
        for sample in family.samples
    }


def test_explored_nodes_evidence_age_and_unreadable_topologies() -> None:
    world = make_world(make_node("node"), make_node("other"))
    assert set(numbers(world, 0.0).values()) == {0.0}
    pod = make_pod("pod", 3000)
    world.engine.cache.hold(pod, Placement("node", explores=("full-pcpus-only",)))
    world.engine.handlers.topologies.observe(
        None, NodeResourceTopology("other", CpuOwner.KUBELET, problem="zones: bad")
    )
    assert numbers(world, 0.0) == {
        "koord_numa_explored_nodes exploring": 1.0,
        "koord_numa_explored_nodes refused": 0.0,
        "koord_numa_kubelet_evidence_age_seconds_max": 0.0,
        "koord_numa_unreadable_topologies": 1.0,
    }
    failed = bound(pod, "node", phase="Failed", reason="SMTAlignmentError", started_at=100.0)
    world.engine.handlers.bound_pods.observe("MODIFIED", failed)
    found = numbers(world, 160.0)
    assert (found["koord_numa_explored_nodes exploring"], found["koord_numa_explored_nodes refused"]) == (0.0, 1.0)
    assert found["koord_numa_kubelet_evidence_age_seconds_max"] == 60.0


def test_the_dump_of_a_node_says_what_is_known_of_its_kubelet() -> None:
    world = make_world(make_node("n", cpu=16))
    topology = parse_topology(KubeletAgent(description()).topology())
    world.engine.handlers.topologies.observe(None, topology)
    dump = node_dump(world.engine, "n")
    assert dump is not None
    assert dump["kubelet"]["states"] == 1
    assert dump["kubelet"]["free"][0] == {"numa": 0, "atLeast": {"cpu": "8"}, "atMost": {"cpu": "8"}}
    assert any("every pod since the node was empty" in sentence for sentence in dump["kubelet"]["evidence"])
    used = tuple(replace(zone, available={"cpu": 4000}) for zone in topology.zones)
    busy = make_world(make_node("n", cpu=16))
    busy.engine.handlers.topologies.observe(None, replace(topology, zones=used, fingerprint=""))
    placed = make_pod("pod", 2000)
    busy.engine.cache.hold(placed, Placement("n"))
    dump = node_dump(busy.engine, "n")
    assert dump is not None
    assert any("not every pod of the node is known" in sentence for sentence in dump["kubelet"]["evidence"])
    free = dump["kubelet"]["free"][0]
    assert (free["atLeast"], free["atMost"]) == ({"cpu": "2"}, {"cpu": "4"})
