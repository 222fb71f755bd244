"""Fields that the agent publishes, objects of others that it does not change, and times without a write."""

from pathlib import Path

import pytest

from koord_numa.core.objects.vocabulary import CpuOwner
from koord_numa.core.resources import CPU, MEMORY
from koord_numa.node.publisher import FIELD_MANAGER, LOOK_INTERVAL, Publish
from koord_numa.sandbox.machines.description import GIB, NodeDescription
from koord_numa.wire import parse_topology
from tests.node.descriptions import GUARANTEED, KUBELET, PLAIN, STATIC
from tests.node.nodes import NODE, TOPOLOGIES, world
from tests.sandbox.machines.pods import bind, create


async def test_a_kubelet_owned_node(tmp_path: Path) -> None:
    async with world(tmp_path, STATIC) as around, around.agent() as agent:
        pod = create(around.server.store, "a", GUARANTEED)
        bind(around.server.store, pod, NODE)
        assert await around.publish(agent) == 1
        topology = parse_topology(around.topology() or {})
        assert not topology.problem
        assert topology.owner is CpuOwner.KUBELET
        assert topology.kubelet == KUBELET
        first, second = topology.zones
        assert (first.capacity[CPU], first.allocatable[CPU], first.available[CPU]) == (8000, 7000, 4000)
        assert (second.capacity[CPU], second.available[CPU]) == (8000, 8000)
        assert first.available[MEMORY] == first.allocatable[MEMORY] - GIB
        assert first.available["nvidia.com/gpu"] == 1
        assert topology.fingerprint_method == "all"
        assert topology.node_uid


async def test_the_same_as_an_exporter(tmp_path: Path) -> None:
    """Agent and exporter of the sandbox publish the same of a kubelet's state: zone for zone, attribute for attribute."""
    async with world(tmp_path, STATIC) as around, around.agent() as agent:
        for name, limits in {"a": GUARANTEED, "b": {"cpu": "8", "memory": "2Gi"}, "c": {"cpu": "1500m"}}.items():
            bind(around.server.store, create(around.server.store, name, limits), NODE)
        await around.publish(agent)
        ours = parse_topology(around.topology() or {})
        theirs = parse_topology(around.node._agent.topology())
        assert [zone.available for zone in ours.zones] == [zone.available for zone in theirs.zones]
        assert [zone.allocatable for zone in ours.zones] == [zone.allocatable for zone in theirs.zones]
        assert (ours.kubelet, ours.fingerprint, ours.distances) == (
            theirs.kubelet,
            theirs.fingerprint,
            theirs.distances,
        )


async def test_nothing_is_sent_when_nothing_changed(tmp_path: Path) -> None:
    async with world(tmp_path, STATIC) as around, around.agent() as agent:
        for _ in range(5):
            await around.publish(agent)
        assert agent.publisher.writes == 1
        bind(around.server.store, create(around.server.store, "a", GUARANTEED), NODE)
        await around.publish(agent)
        await around.publish(agent)
        assert agent.publisher.writes == 2


async def test_a_deleted_object_comes_back(tmp_path: Path) -> None:
    async with world(tmp_path, STATIC) as around, around.agent() as agent:
        await around.publish(agent)
        around.server.store.delete(TOPOLOGIES, NODE)
        around.clock.now += LOOK_INTERVAL
        await around.publish(agent)
        assert around.topology() is not None


async def test_half_a_machine_changes_nothing(tmp_path: Path) -> None:
    async with world(tmp_path, PLAIN) as around, around.agent() as agent:
        await around.publish(agent)
        before = around.topology()
        core = around.services.sysfs / "devices/system/cpu/cpu3/topology/core_id"
        core.unlink()
        around.clock.now += 100
        await around.publish(agent)
        assert agent.host.failed
        assert around.topology() == before
        core.write_text("3\n")
        around.clock.now += 1
        await around.publish(agent)
        assert not agent.host.failed


@pytest.mark.parametrize("publish", [Publish.AUTO, Publish.OPTIONS])
async def test_beside_an_exporter_only_options(tmp_path: Path, publish: Publish) -> None:
    """Nothing of the exporter's is written, and the scheduler knows the options all the same."""
    hidden = NodeDescription(**{**{key: getattr(STATIC, key) for key in STATIC.__slots__}, "hidden": True})
    async with world(tmp_path, hidden, exported=True) as around, around.agent(publish=publish) as agent:
        before = parse_topology(around.topology() or {})
        assert before.kubelet.cpu_policy is None
        await around.publish(agent)
        after = parse_topology(around.topology() or {})
        assert after.kubelet == KUBELET
        assert after.zones == before.zones
        assert after.fingerprint == before.fingerprint
        fields = [
            entry["fieldsV1"]
            for entry in (around.topology() or {})["metadata"]["managedFields"]
            if entry["manager"] == FIELD_MANAGER
        ]
        assert set(fields[0]) == {"f:metadata"}
        bind(around.server.store, create(around.server.store, "a", GUARANTEED), NODE)
        around.fleet.publish()
        assert await around.publish(agent) == 2
        checkpoint = parse_topology(around.topology() or {}).checkpoint
        assert checkpoint is not None
        assert [pod["c"].cpus.bit_count() for pod in checkpoint.pods.values()] == [3]
        # Without a change of the kubelet's state there is nothing to add.
        assert await around.publish(agent) == 2


async def test_options_wait_for_the_object(tmp_path: Path) -> None:
    async with world(tmp_path, STATIC) as around, around.agent(publish=Publish.OPTIONS) as agent:
        assert await around.publish(agent) == 0
        assert around.topology() is None
