"""The leader reports an unreadable topology once, with its key, on the node."""

from koord_numa.core.objects.node import KubeletConfig, NodeResourceTopology
from koord_numa.core.objects.vocabulary import CpuOwner, KubeletPolicy
from koord_numa.core.value_objects import replace
from koord_numa.engine.object_events import NOT_READ, UNREADABLE
from tests.engine.world import World, make_node, make_world

UNKNOWN = KubeletConfig(
    topology_policy=KubeletPolicy.RESTRICTED, topology_options={"option-of-tomorrow": True}, cpu_policy="static"
)
TOPOLOGY = NodeResourceTopology("node", CpuOwner.KUBELET, kubelet=UNKNOWN, resource_version="1")


def publish(world: World, topology: NodeResourceTopology) -> None:
    """The topology is seen, and a second passes."""
    world.engine.handlers.topologies.observe("MODIFIED", topology)
    world.engine.unreadable.tick()


def test_the_key_is_named_once_for_each_problem() -> None:
    world = make_world(make_node("node"))
    publish(world, TOPOLOGY)
    publish(world, replace(TOPOLOGY, resource_version="2"))
    assert world.diary.reasons("node") == [UNREADABLE]
    assert "option-of-tomorrow" in world.diary.events[0][2]
    malformed = NodeResourceTopology("node", CpuOwner.KUBELET, problem="topologyPolicies: 'dynamic' is unknown")
    publish(world, malformed)
    assert "topologyPolicies" in world.diary.events[1][2]
    publish(world, replace(TOPOLOGY, kubelet=KubeletConfig(topology_policy=KubeletPolicy.NONE)))
    assert not world.engine.unreadable.problems
    publish(world, malformed)
    assert world.diary.reasons("node") == [UNREADABLE] * 3


def test_a_topology_without_numa_nodes_names_its_publisher() -> None:
    world = make_world(make_node("node"))
    gap = 'its NodeResourceTopology, published by the NRI plugin with the policy "balloons", lists zones of type "balloon"'
    publish(world, NodeResourceTopology("node", CpuOwner.KUBELET, gap=gap, describes_nodes=False))
    assert [note for _, _, note in world.diary.events] == [f"pods that depend on the node's topology avoid it: {gap}"]


def test_a_standby_says_it_when_it_leads() -> None:
    world = make_world(make_node("node"))
    world.lease.held = False
    publish(world, TOPOLOGY)
    assert not world.diary.events
    world.lease.held = True
    world.engine.unreadable.tick()
    assert world.diary.reasons("node") == [UNREADABLE]


def test_misspelled_keys_of_nodes_are_reported_once() -> None:
    node = replace(make_node("node"), unread=("label a is not read; use the label b",))
    world = make_world(node)
    topology = NodeResourceTopology("node", CpuOwner.KUBELET, unread=("attribute c is not read; use d",))
    publish(world, topology)
    publish(world, replace(topology, resource_version="2"))
    told = "label a is not read; use the label b; attribute c is not read; use d"
    assert [(reason, note) for _, reason, note in world.diary.events] == [(NOT_READ, told)]
    publish(world, replace(topology, unread=()))
    assert world.engine.unreadable.unread == {"node": node.unread}
