"""Pods of a kubelet-owned node are bound in the order of decisions. On other nodes no pod waits for another pod."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from koord_numa.core.objects.node import KubeletConfig, NodeResourceTopology
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.objects.vocabulary import CpuOwner, KubeletPolicy, QosClass
from koord_numa.core.value_objects import replace
from koord_numa.engine.binding.binding_cycle import NodeBindLocks
from koord_numa.ports import Unavailable
from tests.cluster.objects import PATIENCE
from tests.engine.world import FakeBinder, World, make_node, make_pod, make_topology, make_world


@dataclass
class FakeSlowBinder(FakeBinder):
    """The first caller waits until the gate opens."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    came: int = 0

    async def bind(self, pod: PodKey, node: str, annotations: Mapping[str, str]) -> None:
        self.came += 1
        if self.came == 1:
            await self.gate.wait()
        await super().bind(pod, node, annotations)


def slow_world(topology: NodeResourceTopology) -> tuple[World, FakeSlowBinder]:
    """One node, and a server that keeps the first pod waiting."""
    world, server = make_world(make_node("node")), FakeSlowBinder()
    world.engine.handlers.topologies.observe("ADDED", topology)
    world.server = server
    cycle = world.engine.loop.binding
    cycle.binding = replace(cycle.binding, dependencies=replace(cycle.binding.dependencies, binder=server))
    return world, server


def kubelets(policy: KubeletPolicy) -> NodeResourceTopology:
    """A kubelet that hands out CPUs on two NUMA nodes."""
    own = make_topology("node")
    return replace(own, owner=CpuOwner.KUBELET, machine=None, kubelet=KubeletConfig(policy, cpu_policy="static"))


async def begin(world: World, *pods: Pod) -> list[asyncio.Task[None]]:
    """Decide on these pods in this order, and let every bind go as far as it can."""
    world.waits(*pods)
    tasks = []
    for pod in pods:
        tasks.append(asyncio.create_task(world.engine.loop.schedule_one(world.pending(pod))))
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    return tasks


def binds(world: World) -> list[str]:
    return [call for call in world.server.calls if call.startswith("bind")]


async def test_a_kubelet_gets_pods_in_the_order_of_decisions() -> None:
    world, server = slow_world(kubelets(KubeletPolicy.SINGLE_NUMA_NODE))
    tasks = await begin(world, make_pod("first", 3000), make_pod("second", 2000), make_pod("third", 1000))
    assert binds(world) == []
    server.gate.set()
    await asyncio.gather(*tasks)
    assert binds(world) == ["bind first node", "bind second node", "bind third node"]


async def test_a_bind_that_fails_lets_the_next_one_go() -> None:
    def fail(call: str) -> None:
        if call == "bind before" and len(binds(world)) == 1:
            raise Unavailable("busy")

    world, server = slow_world(kubelets(KubeletPolicy.SINGLE_NUMA_NODE))
    server.fail = fail
    tasks = await begin(world, make_pod("first", 3000), make_pod("second", 2000))
    server.gate.set()
    await asyncio.gather(*tasks)
    assert world.nodes_of() == {"first": "", "second": "node"}


async def test_a_pod_that_holds_nothing_of_a_numa_node_does_not_wait() -> None:
    world, server = slow_world(kubelets(KubeletPolicy.SINGLE_NUMA_NODE))
    tasks = await begin(world, make_pod("first", 3000), make_pod("shared", 500, 0))
    assert binds(world) == ["bind shared node"]
    server.gate.set()
    await asyncio.gather(*tasks)


async def test_a_pod_with_unpredicted_numa_nodes_waits_for_its_turn() -> None:
    """Without alignment no NUMA node is foreseen; which it will be depends on the pods before it all the same."""
    world, server = slow_world(kubelets(KubeletPolicy.NONE))
    unforeseen = make_pod("unforeseen", 1000)
    tasks = await begin(world, make_pod("first", 3000), unforeseen)
    assert binds(world) == []
    server.gate.set()
    await asyncio.gather(*tasks)
    assert binds(world) == ["bind first node", "bind unforeseen node"]


async def test_where_we_choose_no_pod_waits_for_another() -> None:
    world, server = slow_world(make_topology("node"))
    first, second = (make_pod(name, 2000) for name in ("first", "second"))
    own = [replace(pod, request=replace(pod.request, qos=QosClass.LSR)) for pod in (first, second)]
    tasks = await begin(world, *own)
    assert binds(world) == ["bind second node"]
    server.gate.set()
    await asyncio.gather(*tasks)
    assert world.nodes_of() == {"first": "node", "second": "node"}


async def test_a_lock_lasts_as_long_as_a_pod_waits_for_it() -> None:
    locks = NodeBindLocks(lambda node, is_long: None)
    async with locks.at("a"):
        assert len(locks) == 1
        async with asyncio.timeout(PATIENCE):
            async with locks.at("b"):
                assert len(locks) == 2
    assert (len(locks), len(locks._locks)) == (0, 0)
