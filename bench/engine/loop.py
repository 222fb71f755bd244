"""
Cost of many pods at once: the operator's scheduling loop, against a binder that answers after a given time.

Wall time of this process. ``loop-longest`` is the longest time between two turns of an idle task while events come in.
"""

import asyncio
import gc
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from bench.engine._answering import AnsweringBinder, scheduler_with
from bench.engine._requests import pod_request
from bench.engine.engine import Cluster, make_cluster
from bench.figure import Figure
from koord_numa.core.cpu_topology import regular_topology
from koord_numa.core.objects.constraints import Constraints, LabelSelector, Operator, PodTerm, Requirement
from koord_numa.core.objects.node import KubeletConfig, Node, NodeResourceTopology, Zone
from koord_numa.core.objects.request import Pod, PodKey, PodRequest
from koord_numa.core.objects.vocabulary import CpuOwner, KubeletPolicy
from koord_numa.core.value_objects import replace
from koord_numa.engine import Scheduler

NAMES: Final = ("loop",)
GIB: Final = 1 << 30
HOSTNAME: Final = "kubernetes.io/hostname"


def app_pod(name: str, request: PodRequest) -> Pod:
    """The only pod of an app that keeps away from its own kind, as charts write it."""
    labels = (("app", name), ("release", "stable"))
    # The term has the pod's own label, so that each app is a request class of its own: the worst case for all caches.
    term = PodTerm(HOSTNAME, LabelSelector((Requirement("app", Operator.IN, (name,)),)), ("bench",))
    own = replace(request, constraints=Constraints(anti_affinity=(term,)), namespace="bench", labels=labels)
    return Pod(PodKey("bench", name, f"uid-{name}"), own, scheduler="koord-numa", labels=labels)


def plain_nodes(scheduler: Scheduler, count: int) -> None:
    """Nodes without topology whose CPUs need none."""
    for number in range(count):
        amounts = {"cpu": 64_000, "memory": 256 * GIB, "pods": 250}
        name = f"node-{number:05}"
        node = Node(name=name, uid=f"uid-{name}", allocatable=amounts, labels={HOSTNAME: name})
        scheduler.handlers.nodes.observe("ADDED", node)


def kubelet_nodes(scheduler: Scheduler, count: int) -> list[NodeResourceTopology]:
    """Nodes whose kubelets choose CPUs on two NUMA nodes of 32."""
    machine, made = regular_topology(2, 1, 16, 2), []
    plain_nodes(scheduler, count)
    for number in range(count):
        share = {"cpu": 32_000, "memory": 128 * GIB}
        zones = tuple(Zone(numa, share, share, share) for numa in machine.numa_ids)
        topology = NodeResourceTopology(
            node=f"node-{number:05}",
            owner=CpuOwner.KUBELET,
            zones=zones,
            kubelet=KubeletConfig(topology_policy=KubeletPolicy.SINGLE_NUMA_NODE, cpu_policy="static"),
            distances=machine.distances,
        )
        scheduler.handlers.topologies.observe("ADDED", topology)
        made.append(topology)
    return made


async def _running(scheduler: Scheduler, work: Callable[[], Awaitable[float]]) -> float:
    running = asyncio.create_task(scheduler.run())
    try:
        return await work()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _bind_all(scheduler: Scheduler, binder: AnsweringBinder, pods: list[Pod]) -> float:
    """Pods a second, from the first that comes to the last that is bound."""
    done = asyncio.Event()

    def one_more() -> None:
        if len(binder.bound) >= len(pods):
            done.set()

    binder.on_bound = one_more

    async def work() -> float:
        started = time.perf_counter()
        for number, pod in enumerate(pods):
            binder.pods[pod.key.uid] = pod
            scheduler.handlers.pending_pods.observe("ADDED", pod)
            # As the informers do: a burst of events gives way to the loop now and then.
            if number % 50 == 0:
                await asyncio.sleep(0)
        # Generous: a loop that stands still is to fail here, and not to hang the run.
        async with asyncio.timeout(120):
            await done.wait()
        return len(pods) / (time.perf_counter() - started)

    return await _running(scheduler, work)


def kubelet_line() -> float:
    """Pods a second onto 20 nodes whose kubelets choose, at 20 ms a bind."""
    binder = AnsweringBinder(0.02)
    scheduler = scheduler_with(binder)
    kubelet_nodes(scheduler, 20)
    request = pod_request(1000, 1)
    pods = [Pod(PodKey("bench", f"p{i}", f"uid-{i}"), request, scheduler="koord-numa") for i in range(1000)]
    return asyncio.run(_bind_all(scheduler, binder, pods))


def anti_affine_apps(count: int = 1000, nodes: int = 500) -> float:
    """Pods a second of a stream of apps of one pod each that keep away from their own kind."""
    binder = AnsweringBinder()
    scheduler = scheduler_with(binder)
    plain_nodes(scheduler, nodes)
    pods = [app_pod(f"app-{number:04}", pod_request(500, 1)) for number in range(count)]
    return asyncio.run(_bind_all(scheduler, binder, pods))


def young_pod(classes: int = 400, nodes: int = 1000) -> float:
    """Seconds until a small pod is bound while classes that fit nowhere are woken by topologies that are published."""
    binder = AnsweringBinder()
    scheduler = scheduler_with(binder)
    topologies = kubelet_nodes(scheduler, nodes)

    async def work() -> float:
        for number in range(classes):
            request = pod_request(
                33_000 + number % 4 * 1000, 1 + number // 4
            )  # whole CPUs: on one NUMA node or not at all
            pod = Pod(PodKey("bench", f"large-{number}", f"uid-l{number}"), request, scheduler="koord-numa")
            scheduler.handlers.pending_pods.observe("ADDED", pod)
        # A second and a half of topologies first: the classes have been tried and woken many times when the small pod comes.
        for turn in range(300):
            _publish(scheduler, topologies, turn)
            await asyncio.sleep(0.005)
        small = Pod(PodKey("bench", "small", "uid-small"), pod_request(1000, 1), scheduler="koord-numa")
        binder.pods["uid-small"] = small
        began = time.monotonic()
        scheduler.handlers.pending_pods.observe("ADDED", small)
        turn = 300
        # Events keep coming while it waits: fairness under load is what is measured.
        while "uid-small" not in binder.bound and time.monotonic() - began < 60:
            turn += 1
            _publish(scheduler, topologies, turn)
            await asyncio.sleep(0.005)
        return binder.bound.get("uid-small", time.monotonic()) - began

    return asyncio.run(_running(scheduler, work))


def _publish(scheduler: Scheduler, topologies: list[NodeResourceTopology], turn: int) -> None:
    topology = topologies[turn % len(topologies)]
    zones = tuple(
        # Never enough for the large classes: each publication wakes them and none gets placed.
        replace(zone, available={**zone.available, "cpu": 32_000 - turn % 7 * 1000})
        for zone in topology.zones
    )
    news = replace(topology, zones=zones, resource_version=str(turn))
    scheduler.handlers.topologies.observe("MODIFIED", news)


@dataclass
class Reactions:
    """The longest reaction to each kind of event, and the longest turn of the loop, in milliseconds."""

    longest: dict[str, float] = field(default_factory=dict)
    turn: float = 0.0


def crowd() -> tuple[Reactions, int]:
    """5,000 nodes, 20,000 pods on them and 5,000 that wait in 1,500 classes; then every kind of event, 40 times."""
    cluster = make_cluster(5_000, full=0.5)
    engine = cluster.engine
    silent: Any = engine.dependencies.binder
    answering = AnsweringBinder()
    # make_cluster's engine makes no requests; this measurement binds.
    silent.set_unschedulable, silent.bind = answering.set_unschedulable, answering.bind
    reactions = Reactions()
    pods = _waiting_crowd(cluster)

    async def work() -> float:
        for pod in pods:
            engine.handlers.pending_pods.observe("ADDED", pod)
        begun = time.monotonic()
        while engine.queue.numbers().active and time.monotonic() - begun < 240:  # noqa: ASYNC110  (until nothing is left to try)
            await asyncio.sleep(0.1)
        if engine.queue.numbers().active:
            raise TimeoutError(f"{engine.queue.numbers()} after 240 s")
        # A full collection walks every object: its pause would be the longest turn, whatever the loop does.
        gc.collect()
        gc.freeze()
        watching = asyncio.create_task(_watch(reactions))
        for turn in range(40):
            for name, event in _events(cluster, turn):
                started = time.perf_counter()
                event()
                took = (time.perf_counter() - started) * 1000
                reactions.longest[name] = max(reactions.longest.get(name, 0.0), took)
                # The loop works off what the event caused before the next one comes.
                await asyncio.sleep(0.002)
        watching.cancel()
        gc.unfreeze()
        return 0.0

    asyncio.run(_running(engine, work))
    return reactions, len(cluster.placed)


async def _watch(reactions: Reactions) -> None:
    last = time.perf_counter()
    while True:
        # Sleeping 0 seconds hands over once round the loop: the time until it is back is one turn.
        await asyncio.sleep(0)
        now = time.perf_counter()
        reactions.turn = max(reactions.turn, (now - last) * 1000)
        last = now


def _waiting_crowd(cluster: Cluster) -> list[Pod]:
    # More than any node has: they stay waiting, and every event has to decide whether it could help them.
    plain = [pod_request(200_000 + 10 * number, 1) for number in range(1250)]
    found = [cluster.pod(plain[number % len(plain)]) for number in range(4_750)]
    return found + [app_pod(f"waiting-{number}", pod_request(300_000, 1)) for number in range(250)]


def _events(cluster: Cluster, turn: int) -> Iterator[tuple[str, Callable[[], None]]]:
    engine, dice = cluster.engine, Random(turn)
    info = engine.cache.nodes[f"node-{dice.randrange(5_000):05}"]
    node = info.node
    if node is None:
        raise LookupError(info.name)
    yield (
        "node changed",
        lambda: engine.handlers.nodes.observe("MODIFIED", replace(node, labels={**node.labels, "t": str(turn)})),
    )
    yield "node cordoned", lambda: engine.handlers.nodes.observe("MODIFIED", replace(node, unschedulable=turn % 2 == 0))
    topology = info.published
    if topology is not None:
        yield (
            "topology changed",
            lambda: engine.handlers.topologies.observe("MODIFIED", replace(topology, resource_version=f"v{turn}")),
        )
    placed = [pod for uid in list(info.pods) if (pod := engine.cache.pod(uid)) is not None]
    if placed:
        yield "pod gone", lambda: engine.handlers.bound_pods.observe("DELETED", placed[0])
        # The pod that just went comes back, so that every turn finds the same cluster.
        yield "pod bound", lambda: engine.handlers.bound_pods.observe("ADDED", replace(placed[0], node=info.name))
    app = replace(app_pod(f"placed-{turn}", pod_request(100, 1)), node=info.name)
    yield "pod with terms bound", lambda: engine.handlers.bound_pods.observe("ADDED", app)
    yield "pod with terms gone", lambda: engine.handlers.bound_pods.observe("DELETED", app)
    yield (
        "pod created",
        lambda: engine.handlers.pending_pods.observe("ADDED", cluster.pod(pod_request(250_000 + turn, 1))),
    )
    yield (
        "node added",
        lambda: engine.handlers.nodes.observe("ADDED", replace(node, name=f"new-{turn}", uid=f"uid-new-{turn}")),
    )
    yield (
        "node removed",
        lambda: engine.handlers.nodes.observe("DELETED", replace(node, name=f"new-{turn}", uid=f"uid-new-{turn}")),
    )


def figures() -> Iterator[Figure]:
    """One line a kind of crowd."""
    logging.disable(logging.WARNING)  # that pods come bound, as if by another scheduler
    yield Figure("loop-kubelet-line", kubelet_line(), "pods/s", 500.0, "higher", "20 kubelet-owned nodes, 20 ms a bind")
    yield Figure(
        "loop-anti-affine-apps", anti_affine_apps(), "pods/s", 300.0, "higher", "1,000 apps of one pod, 500 nodes"
    )
    yield Figure(
        "loop-young-pod", young_pod(), "s", 1.0, note="behind 400 classes that fit nowhere, 1,000 kubelet nodes"
    )
    reactions, placed = crowd()
    worst = max(reactions.longest, key=reactions.longest.__getitem__)
    note = f"5,000 nodes, {placed} pods, 5,000 waiting; longest: {worst}"
    yield Figure("loop-reaction", reactions.longest[worst], "ms", 50.0, note=note)
    yield Figure(
        "loop-longest", reactions.turn, "ms", 50.0, note="decisions, explaining and reactions between two turns"
    )
