"""No pod holds a worker, a node or the queue: what fails or fits nowhere costs other pods nothing that lasts."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from cachetools import LRUCache

from koord_numa.core.claims.inventory import NodeChoice, ResourceSlice
from koord_numa.core.objects.claims import PoolId
from koord_numa.core.objects.constraints import Constraints
from koord_numa.core.objects.node import KubeletConfig, NodeResourceTopology
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Reason
from koord_numa.core.objects.vocabulary import CpuOwner, KubeletPolicy
from koord_numa.core.value_objects import replace
from koord_numa.engine.binding.binding_cycle import ARRIVAL_SECONDS, LONG_LINE, REQUESTS, TOLD_FROM
from koord_numa.engine.ranking.label_columns import SPARE
from koord_numa.ports import ClusterError, Forbidden, Invalid, Unauthenticated, UnknownOutcome
from tests.engine.world import World, bound, make_node, make_pod, make_topology, make_world
from tests.failure_modes.containers import container_sizes, most


def kubelets(node: str) -> NodeResourceTopology:
    """A kubelet that hands out CPUs on two NUMA nodes of eight CPUs each."""
    own = make_topology(node, cores=4)
    policy = KubeletConfig(KubeletPolicy.SINGLE_NUMA_NODE, cpu_policy="static")
    return replace(own, owner=CpuOwner.KUBELET, machine=None, kubelet=policy)


def kubelet_world(count: int) -> World:
    world = make_world(*(make_node(f"node-{i:02}", cpu=16) for i in range(count)))
    for i in range(count):
        world.engine.handlers.topologies.observe(None, kubelets(f"node-{i:02}"))
    return world


async def run_until(world: World, done: Callable[[], bool]) -> None:
    running = asyncio.create_task(world.engine.run())
    for _ in range(100_000):
        if done():
            break
        await asyncio.sleep(0)
    holds = done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert holds


async def test_binds_that_get_500_forever_stop_no_other_pod() -> None:
    """A failing webhook with failurePolicy Fail on some pods: packing would send every worker to their nodes."""
    world = kubelet_world(20)
    bad = [make_pod(f"bad-{i:02}", 1000, 0) for i in range(40)]
    good = [make_pod(f"good-{i:03}", 1000, 0) for i in range(100)]

    def fail(call: str) -> None:
        if call == "bind before" and world.server.calls[-1].startswith("bind bad"):
            raise UnknownOutcome("500: failed calling webhook")

    world.server.fail = fail
    world.waits(*bad, *good)
    await run_until(world, lambda: all(node for name, node in world.nodes_of().items() if name.startswith("good")))


async def test_a_bind_that_fails_repeatedly_releases_its_cpus() -> None:
    world = make_world(make_node("node"))
    held: list[bool] = []

    def fail(call: str) -> None:
        held.append("uid-pod" in world.ledgers()["node"])
        if call == "bind before":
            raise UnknownOutcome("500: failed calling webhook")

    world.server.fail = fail
    world.waits(make_pod("pod"))
    begun = world.clock.now
    await world.step()
    assert all(held)
    assert world.server.calls.count("bind pod node") == REQUESTS
    assert world.clock.now - begun > ARRIVAL_SECONDS
    assert world.ledgers() == {"node": {}}
    told = [message for who, _, message in world.diary.events if who == "pod"]
    assert told[0] == f"the bind to node node fails, {TOLD_FROM} times so far: 500: failed calling webhook"
    assert world.engine.metrics.failures["UnknownOutcome"] == REQUESTS


async def test_a_hold_is_kept_while_the_pod_may_not_be_read_back() -> None:
    """The bind was carried out, its answer was lost, and then the credentials expired or a rule was taken away."""
    refusals: list[ClusterError] = [
        Forbidden("no", "get pods"),
        Unauthenticated("who?"),
        Invalid("odd"),
        Forbidden("no", "get pods"),
    ]
    world = make_world(make_node("node"))
    held: list[bool] = []

    def fail(call: str) -> None:
        held.append("uid-pod" in world.ledgers()["node"])
        if call == "bind after":
            raise UnknownOutcome("no answer")
        if call == "read" and refusals:
            raise refusals.pop()

    world.server.fail = fail
    world.waits(make_pod("pod"))
    await world.step()
    assert (all(held), world.nodes_of()) == (True, {"pod": "node"})
    assert "uid-pod" in world.ledgers()["node"]


@dataclass
class FakeGate:
    """Binds to one node wait until it opens."""

    node: str
    opened: asyncio.Event = field(default_factory=asyncio.Event)


async def test_a_slow_bind_delays_only_its_own_node() -> None:
    world, gate = kubelet_world(2), FakeGate("node-00")
    bind = world.server.bind

    async def slow(pod, node, annotations):  # type: ignore[no-untyped-def]  # as Server.bind
        if node == gate.node:
            await gate.opened.wait()
        await bind(pod, node, annotations)

    world.server.bind = slow  # type: ignore[method-assign]  # a slower one
    world.waits(*(make_pod(f"pod-{i:02}", 1000, 0) for i in range(16 + LONG_LINE)))
    await run_until(world, lambda: list(world.nodes_of().values()).count("node-01") == LONG_LINE)


async def test_a_node_with_many_binds_is_chosen_again_later() -> None:
    world = kubelet_world(1)
    cache = world.engine.cache
    cache.set_bind_line("node-00", True)
    world.waits(make_pod("pod"))
    await world.settle()
    pending = world.pending(make_pod("pod"))
    verdict = world.engine.queue.verdict(pending)
    assert verdict is not None
    assert [no.reason for no in verdict.rejections.values()] == [Reason.BIND_QUEUE]
    assert world.diary.events == []
    cache.set_bind_line("node-00", False)
    await world.settle()
    assert world.nodes_of() == {"pod": "node-00"}


async def test_hopeless_classes_do_not_delay_a_pod_that_fits() -> None:
    """All of them are woken; the young pod is at most one attempt in vain behind its turn."""
    world = make_world(make_node("node", cpu=4))
    world.waits(*(make_pod(f"large-{i:03}", 5000 + i) for i in range(400)))
    await world.settle(2000)
    world.clock.now += 20
    world.engine.handlers.nodes.observe("ADDED", make_node("other", cpu=4, unschedulable=True))
    world.engine.handlers.nodes.observe("ADDED", make_node("more", cpu=999, taints=()))
    world.engine.handlers.nodes.observe("MODIFIED", make_node("more", cpu=4))
    assert world.engine.queue.numbers().active == 400
    world.waits(make_pod("small", 1000))
    tried = [await world.step(), await world.step()]
    assert "small" in {pod.key.name for pod in tried if pod is not None}


async def test_a_higher_priority_is_first_though_its_class_pauses() -> None:
    world = make_world(make_node("node", cpu=4))
    world.engine.handlers.bound_pods.observe(None, bound(make_pod("old", 4000), "node"))
    urgent = make_pod("urgent", 4000)
    urgent = replace(urgent, request=replace(urgent.request, priority=1000), preempts=False)
    world.waits(urgent)
    await world.settle()
    world.waits(*(make_pod(f"plain-{i:03}", 1000) for i in range(300)))
    world.engine.handlers.bound_pods.observe("DELETED", bound(make_pod("old", 4000), "node"))
    pod = await world.step()
    assert (pod and pod.key.name, world.nodes_of()["urgent"]) == ("urgent", "node")


async def test_room_on_an_overcommitted_node_wakes_unaffected_pods() -> None:
    world = make_world(make_node("node", cpu=2, memory=8))
    for name, cpu, memory in (("foreign", 3000, 4), ("fat", 500, 4)):
        foreign = make_pod(name, cpu, memory, scheduler="default-scheduler")
        world.engine.handlers.bound_pods.observe(None, bound(foreign, "node"))
    world.waits(make_pod("no-cpu", 0, 2))
    await world.settle()
    assert world.nodes_of() == {"no-cpu": ""}
    world.engine.handlers.bound_pods.observe("DELETED", bound(make_pod("fat", 500, 4), "node"))
    world.clock.now += 1
    await world.settle()
    assert world.nodes_of() == {"no-cpu": "node"}


async def test_a_flush_that_comes_before_the_pause_is_over_is_a_retry() -> None:
    world = make_world(make_node("node", cpu=2), settings="{parkedRetrySeconds: 0.5, backoff: {initial: 5, max: 10}}")
    world.waits(make_pod("large", 4000))
    await world.settle()
    before = world.engine.handle.pending.get("uid-large")
    assert before is not None
    tried = before.attempts
    world.clock.now += 0.6
    await world.settle()
    assert before.attempts == tried + 1


async def test_a_nominated_pod_gets_its_room_after_a_restart() -> None:
    world = make_world(make_node("node", cpu=4), synced=True)
    older = make_pod("older", 4000, created=1.0)
    nominated = make_pod("nominated", 4000, created=2.0, nominated="node")
    for pod in (older, nominated):
        world.server.pods[pod.key.uid] = pod
    world.engine.handlers.pending_pods.replace([older, nominated])
    await world.settle()
    assert world.nodes_of() == {"older": "", "nominated": "node"}


async def test_a_terminating_pod_makes_hopeless_classes_retry() -> None:
    world = make_world(make_node("node", cpu=4))
    resident = bound(make_pod("resident", 4000), "node")
    world.engine.handlers.bound_pods.observe(None, resident)
    freed: list[str] = []
    world.engine.preemption.nodes_changed = freed.append  # type: ignore[assignment]  # only told, not acted upon
    world.engine.handlers.bound_pods.observe("MODIFIED", replace(resident, deleting=True))
    assert freed == ["node"]


@pytest.mark.parametrize("leads", [False, True], ids=["standby", "leader"])
async def test_nothing_grows_through_many_lifecycles_of_a_replica(leads: bool, request: pytest.FixtureRequest) -> None:
    """Every container that can be reached from the scheduler is as large after a quarter of them as at the end."""
    lifecycles = request.config.getoption("--lifecycles")
    world = make_world(make_node("node", cpu=4), settings="{rememberedClasses: 16}")
    world.engine.handle.placed = LRUCache(maxsize=16)  # classes of placed pods, full before a quarter
    world.lease.held = leads
    world.engine.handlers.budgets.replace([])
    early: dict[str, int] = {}
    for number in range(lifecycles):
        if number == lifecycles // 4:
            early = container_sizes(world.engine)
        await live(world, number, leads)
    at_the_end = container_sizes(world.engine)
    grown = {
        path: (early.get(path, 0), size)
        for path, size in at_the_end.items()
        # Values of labels that no node has any more are swept only when there are more than SPARE of them.
        if size > most(early.get(path, 0)) + (SPARE if "labels._columns[]" in path else 0)
    }
    assert grown == {}
    handle = world.engine.handle
    assert len(handle.pending) == len(handle.queue) == len(handle.nominator) == len(handle.conditions) == 0
    assert (handle.queue.sizes()["classes"], len(handle.cache.node_of), len(handle.cache.assumed)) == (0, 0, 0)


async def live(world: World, number: int, leads: bool) -> None:
    """One pod comes, is placed or waits, and goes; every now and then a node does too."""
    pod = lifecycle_pod(number)
    world.waits(pod)
    if number % 10 == 0:
        passing = make_node(f"passing-{number}", cpu=4, labels={"app": f"a{number}"})
        world.engine.handlers.nodes.observe("ADDED", passing)
        world.engine.handlers.topologies.observe("ADDED", make_topology(passing.name))
        world.engine.claims.observe_slice("ADDED", devices_of(passing.name))
        world.engine.claims.pools_of(passing)
    if leads:
        await world.settle()
    world.engine.handlers.pending_pods.observe("DELETED", pod)
    node = world.server.pods[pod.key.uid].node or "node"
    world.engine.handlers.bound_pods.observe("DELETED", bound(pod, node))
    if number % 10 == 0:
        world.engine.claims.observe_slice("DELETED", devices_of(passing.name))
        world.engine.handlers.topologies.observe("DELETED", make_topology(passing.name))
        world.engine.handlers.nodes.observe("DELETED", passing)
    world.server.pods.clear()
    world.server.calls.clear()
    world.diary.events.clear()
    world.clock.now += 1.0
    world.engine.writers.tick()
    world.engine.assumed_pods.end_node_backoffs()
    world.engine.cache.expire_unreported()
    world.engine.preemption.look_again()
    await world.engine.preemption.work()


def devices_of(node: str) -> ResourceSlice:
    """Its only slice, without devices."""
    return ResourceSlice(f"slice-{node}", PoolId("gpu.example.com", node), 1, 1, NodeChoice(name=node))


def lifecycle_pod(number: int) -> Pod:
    """Some fit and some do not; classes come and go too."""
    pod = make_pod(f"pod-{number}", 1000 + number % 7000)
    return replace(pod, request=replace(pod.request, constraints=Constraints(node_selector=selector(number))))


def selector(number: int) -> tuple[tuple[str, str], ...]:
    """Every third pod asks for a node that there is not."""
    return (("app", f"a{number}"),) if number % 3 == 0 else ()
