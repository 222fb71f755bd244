"""The agent on simulated nodes: what it publishes, whom it leaves alone, what it sees, and what it applies."""

import asyncio
from pathlib import Path

import orjson
import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.vocabulary import CpuOwner, KubeletPolicy, KubeletScope
from koord_numa.core.resources import CPU, MEMORY
from koord_numa.node.agent import Agent, Refused
from koord_numa.node.agent_config import AgentConfig
from koord_numa.node.observer import GRACE
from koord_numa.node.publisher import FIELD_MANAGER, LOOK_INTERVAL, Publish
from koord_numa.sandbox.machines.hardware.description import NodeDescription, Style
from koord_numa.sandbox.machines.hardware.hardware import GIB, Shape
from koord_numa.sandbox.machines.pod_status import container_id
from koord_numa.wire import names, parse_topology
from tests.node.nodes import NODE, TOPOLOGIES, World, world
from tests.sandbox.machines.pods import bind, create, place

SHAPE = Shape(sockets=2, cores=4, threads=2, memory=16 * GIB, devices={"nvidia.com/gpu": (0, 1)})
KUBELET = KubeletConfig(
    topology_policy=KubeletPolicy.SINGLE_NUMA_NODE,
    topology_scope=KubeletScope.POD,
    cpu_policy="static",
    cpu_options={"full-pcpus-only": False},
    memory_policy="Static",
    reserved_cpus=CpuSet.of([0]),
)
STATIC = NodeDescription(
    name=NODE, hardware=SHAPE.build(), style=Style.KUBELET, kubelet=KUBELET, reserved=CpuSet.of([0])
)
PLAIN = NodeDescription(name=NODE, hardware=SHAPE.build())
GUARANTEED = {"cpu": "3", "memory": "1Gi"}


def effective(around: World, uid: str) -> str:
    """The CPUs that the pod's container may use."""
    return str(around.services.cgroups.effective(container_id(uid, "c")))


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
    """What the sandbox's exporter says of a kubelet's state, the agent says too: zone for zone, attribute for attribute."""
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
        assert await around.publish(agent) == 1


async def test_options_wait_for_the_object(tmp_path: Path) -> None:
    async with world(tmp_path, STATIC) as around, around.agent(publish=Publish.OPTIONS) as agent:
        assert await around.publish(agent) == 0
        assert around.topology() is None


async def test_a_scheduler_owned_node(tmp_path: Path) -> None:
    async with world(tmp_path, PLAIN) as around, around.agent() as agent:
        place(around.server.store, NODE, "a", "1-2,9-10")
        await around.publish(agent)
        obj = around.topology() or {}
        topology = parse_topology(obj)
        assert topology.owner is CpuOwner.SCHEDULER
        assert topology.machine == SHAPE.build().machine
        notes = obj["metadata"]["annotations"]
        assert orjson.loads(notes[names.CPU_SHARED_POOLS]) == [
            {"socket": 0, "node": 0, "cpuset": "0,3,8,11"},
            {"socket": 1, "node": 1, "cpuset": "4-7,12-15"},
        ]
        assert orjson.loads(notes[names.BE_CPU_SHARED_POOLS])[0]["cpuset"] == "0-3,8-11"
        assert orjson.loads(notes[names.CPU_MANAGER_POLICY]) == {"policy": "none"}


async def test_a_pod_that_runs_elsewhere_is_told_once(tmp_path: Path) -> None:
    async with world(tmp_path, PLAIN) as around, around.agent() as agent:
        pod = place(around.server.store, NODE, "a", "1-2")
        around.see_pods(agent)
        await agent.observe()
        assert not agent._differences  # a container that starts is given a moment
        for _ in range(3):
            around.clock.now += GRACE
            await agent.observe()
        why = "no agent applies cpusets on this node"
        told = {"default/a": {"decided": "1-2", "observed": "0-15", "why": why}}
        assert agent._differences == told
        await around.publish(agent)
        notes = (around.topology() or {})["metadata"]["annotations"]
        assert orjson.loads(notes[names.CPUSET_DIFFERENCES]) == told
        (difference,) = parse_topology(around.topology() or {}).differences.values()
        assert str(difference) == f"decided 1-2, runs on 0-15: {why}"
        events = around.server.store.list("events.events.k8s.io")
        assert [(event["reason"], event["regarding"]["uid"]) for event in events] == [("CpusetMismatch", pod.uid)]
        around.services.cgroups.set(container_id(pod.uid, "c"), CpuSet.parse("1-2"))
        await agent.observe()
        await around.publish(agent)
        assert names.CPUSET_DIFFERENCES not in (around.topology() or {})["metadata"]["annotations"]
        assert len(around.server.store.list("events.events.k8s.io")) == 2


@pytest.mark.parametrize("direct", [False, True], ids=["through-the-runtime", "direct-writes"])
async def test_decided_cpus_are_applied(tmp_path: Path, direct: bool) -> None:
    async with world(tmp_path, PLAIN) as around, around.agent(apply=True, direct_writes=direct) as agent:
        pinned = place(around.server.store, NODE, "a", "1-2")
        shared = create(around.server.store, "b", {"cpu": "500m"})
        bind(around.server.store, shared, NODE)
        around.see_pods(agent)
        await agent.apply()
        written = [effective(around, uid) for uid in (pinned.uid, shared.uid)]
        if direct:  # the kernel derives the effective set; a plain file does not
            folder = around.services.cgroups._folders[container_id(pinned.uid, "c")]
            assert (folder / "cpuset.cpus").read_text() == "1-2"
        else:
            assert written == ["1-2", "0,3-15"]
            updates = len(around.services.updates)
            await agent.apply()
            assert len(around.services.updates) == updates  # nothing is left to do


async def test_drift_restarts_and_departures(tmp_path: Path) -> None:
    async with world(tmp_path, PLAIN) as around, around.agent(apply=True) as agent:
        store = around.server.store
        pinned = place(store, NODE, "a", "1-2")
        shared = create(store, "b", {"cpu": "500m"})
        bind(store, shared, NODE)
        around.see_pods(agent)
        await agent.apply()
        # systemd's daemon-reload sets every cgroup back to what systemd knows.
        around.services.cgroups.set(container_id(pinned.uid, "c"), CpuSet.parse("0-15"))
        await agent.apply()
        assert effective(around, pinned.uid) == "1-2"
        around.services.restart_container(pinned.uid, "c")
        assert effective(around, pinned.uid) == "0-15"
        await agent.apply()
        assert effective(around, pinned.uid) == "1-2"
        # A rebind: other CPUs in the annotation.
        status = {"metadata": {"annotations": {names.RESOURCE_STATUS: '{"cpuset":"4-5"}'}}}
        store.patch("pods", "a", status, "default")
        around.see_pods(agent)
        await agent.apply()
        assert (effective(around, pinned.uid), effective(around, shared.uid)) == ("4-5", "0-3,6-15")
        store.delete("pods", "a", "default")
        around.see_pods(agent)
        await agent.apply()
        assert effective(around, shared.uid) == "0-15"


async def test_a_new_agent_needs_no_memory_of_the_old_one(tmp_path: Path) -> None:
    """The first agent dies after each number of updates; the next one completes the round."""
    for survived in range(5):
        async with world(tmp_path / str(survived), PLAIN) as around:
            pods = [place(around.server.store, NODE, f"p{core}", f"{core},{core + 8}") for core in range(4)]
            async with around.agent(apply=True) as first:
                update, left = first._cri.update, survived  # type: ignore[union-attr]  # connected

                async def dying(container: str, cpus: CpuSet, mems: str = "") -> None:
                    nonlocal left
                    if left == 0:
                        raise asyncio.CancelledError
                    left -= 1
                    await update(container, cpus, mems)  # noqa: B023  (called in this turn of the loop only)

                first._runtime.update = dying  # type: ignore[union-attr, method-assign]  # dies in the middle
                with pytest.raises(asyncio.CancelledError) if survived < 4 else _Nothing():
                    await first.apply()
            assert len(around.services.updates) == survived
            assert len(around.services.cgroups.containers) == 4
            async with around.agent(apply=True) as second:
                await second.apply()
            assert [effective(around, pod.uid) for pod in pods] == [f"{core},{core + 8}" for core in range(4)]


async def test_everything_is_handed_back(tmp_path: Path) -> None:
    async with world(tmp_path, PLAIN) as around, around.agent(apply=True) as agent:
        pinned = place(around.server.store, NODE, "a", "1-2")
        around.see_pods(agent)
        await agent.apply()
        assert await agent.release() == 1
        assert effective(around, pinned.uid) == "0-15"


async def test_cpus_that_a_kubelet_owns_are_not_touched(tmp_path: Path) -> None:
    async with world(tmp_path, STATIC) as around:
        config = AgentConfig(
            node=NODE,
            sysfs=around.services.sysfs,
            kubelet_config=around.services.kubelet_config,
            cri_socket=around.services.cri,
            apply=True,
        )
        with pytest.raises(Refused, match="CPU manager policy is static"):
            await Agent(config, around.api).run(asyncio.Event())
        assert not around.services.updates


async def test_nor_where_koordlet_runs(tmp_path: Path) -> None:
    async with world(tmp_path, PLAIN) as around, around.agent(apply=True) as agent:
        bind(around.server.store, create(around.server.store, "koordlet-x", {}, labels={"koord-app": "koordlet"}), NODE)
        around.see_pods(agent)
        with pytest.raises(Refused, match="koordlet"):
            await agent._may_apply()


async def test_the_whole_agent(tmp_path: Path) -> None:
    """With its loops and its own clock: a pod is pinned and shown without a call of a round."""
    async with world(tmp_path, PLAIN) as around:
        config = AgentConfig(
            node=NODE,
            sysfs=around.services.sysfs,
            cgroups=around.services.cgroups.root,
            kubelet_config=around.services.kubelet_config,
            podresources=around.services.podresources,
            cri_socket=around.services.cri,
            apply=True,
        )
        agent, stop = Agent(config, around.api), asyncio.Event()
        running = asyncio.create_task(agent.run(stop))
        pod = place(around.server.store, NODE, "a", "1-2")
        while effective(around, pod.uid) != "1-2" or around.topology() is None:
            assert not running.done()
            await asyncio.sleep(0.01)
        stop.set()
        await running
        assert effective(around, pod.uid) == "1-2"  # a restart changes nothing


class _Nothing:
    """A context that expects no error."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...
