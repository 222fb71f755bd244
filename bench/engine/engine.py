"""
The scheduling engine on synthetic clusters of mixed machines, half full: cold and warm decisions, and a sustained stream of them.

CPU time of this process, not wall time. Decisions are those of the real engine; only the API server is absent.
"""

import gc
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from statistics import median
from types import SimpleNamespace
from typing import Any, Final

from bench.engine._requests import EIGHT_NUMA, FILLERS, GIB, KINDS, REQUESTS, Kind, pod_request
from bench.figure import Figure
from koord_numa.app.tasks import THRESHOLDS
from koord_numa.core.cpu_topology import CpuTopology, regular_topology
from koord_numa.core.objects.node import KubeletConfig, Node, NodeResourceTopology, Zone
from koord_numa.core.objects.request import Pod, PodKey, PodRequest
from koord_numa.core.objects.verdicts import Placement, Unschedulable
from koord_numa.core.objects.vocabulary import (
    CpuOwner,
    KubeletPolicy,
)
from koord_numa.core.resources import ResourceList, subtract_to_zero
from koord_numa.core.value_objects import replace
from koord_numa.engine import Dependencies, Scheduler, Source
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.queue.pending_pod import RequestClass
from koord_numa.settings import Settings

SIZES: Final = (500, 5_000, 50_000)
ROUNDS: Final = 25
"""So many pods of each class at a time."""  # # large enough that the clock's own cost vanishes


@dataclass
class Cluster:
    """An engine that knows a synthetic cluster. Pods are numbered; ``placed`` are those that can leave again."""

    engine: Scheduler
    dice: Random
    count: int = 0
    placed: list[str] = field(default_factory=list)

    def request_class(self, request: PodRequest) -> RequestClass:
        """The class of a request."""
        found = self.engine.classes.of(self.pod(request))
        if found is None:
            raise LookupError("the bench's pods name a scheduler that is not configured")
        return found

    def place(self, request_class: RequestClass, pod: Pod) -> Placement | Unschedulable:
        """Decide one pod and count it, as the loop does."""
        verdict = self.engine.handle.selector.decide(request_class)
        if isinstance(verdict, Placement):
            self.count_in(pod, verdict)
        return verdict

    def count_in(self, pod: Pod, placement: Placement) -> None:
        """Count a pod where it was placed."""
        self.engine.cache.hold(pod, placement)
        self.placed.append(pod.key.uid)

    def leave(self) -> None:
        """One of the pods ends."""
        # Swapped with the last: removing from the middle of 20,000 would cost more than the decision.
        index = self.dice.randrange(len(self.placed))
        self.placed[index], self.placed[-1] = self.placed[-1], self.placed[index]
        self.engine.cache.release(self.placed.pop())

    def pod(self, request: PodRequest) -> Pod:
        """A new pod with this request."""
        self.count += 1
        return Pod(PodKey("bench", f"pod-{self.count}", f"uid-{self.count}"), request, scheduler="koord-numa")


def new_engine(settings: Settings | None = None) -> Scheduler:
    """An engine that knows nothing yet and makes no requests."""
    silent: Any = SimpleNamespace(fresh=lambda: True, event=lambda *_, **__: None, node_event=lambda *_, **__: None)
    outside = Dependencies(silent, silent, silent, lambda *_: {}, time.monotonic)
    engine = Scheduler(settings or Settings(), outside)
    for source in Source:
        engine.synced(source)
    return engine


def make_cluster(size: int, kinds: tuple[Kind, ...] = KINDS, full: float = 0.5) -> Cluster:
    """So many nodes, filled to a share of their CPUs with a mix of pods."""
    # A fixed seed: figures of two runs differ by the code alone.
    cluster = Cluster(new_engine(), Random(7))
    machines = [regular_topology(*kind.shape) for kind in kinds]
    for number in range(size):
        which = number % len(kinds)
        node, topology = _node(f"node-{number:05}", kinds[which], machines[which])
        cluster.engine.handlers.nodes.observe("ADDED", node)
        if topology is not None:
            cluster.engine.handlers.topologies.observe("ADDED", topology)
    _fill(cluster, full)
    _publish(cluster)
    # Building the cluster leaves garbage, which the first measured decision would pay for.
    gc.collect()
    gc.set_threshold(*THRESHOLDS)  # as the operator does
    return cluster


def _node(name: str, kind: Kind, machine: CpuTopology) -> tuple[Node, NodeResourceTopology | None]:
    count, gib = len(machine.cpus), 4 * len(machine.cpus)
    amounts = {"cpu": count * 1000, "memory": gib * GIB, "pods": 250}
    if kind.gpus:
        amounts["nvidia.com/gpu"] = kind.gpus
    node = Node(
        name=name,
        uid=f"uid-{name}",
        allocatable=amounts,
        labels={"kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64"},
    )
    if kind.owner is None:
        return node, None
    numas = len(machine.numa_ids)
    # Equal parts: real zones differ by a page or two, which costs no decision more.
    share: ResourceList = {name: amount // numas for name, amount in amounts.items() if name != "pods"}
    zones = tuple(Zone(numa, share, share, share) for numa in machine.numa_ids)
    owned = kind.owner is CpuOwner.SCHEDULER
    kubelet = KubeletConfig(topology_policy=None if owned else KubeletPolicy.SINGLE_NUMA_NODE)
    topology = NodeResourceTopology(
        node=name,
        owner=kind.owner,
        zones=zones,
        machine=machine if owned else None,
        kubelet=kubelet,
        distances=machine.distances,
    )
    return node, topology


def _fill(cluster: Cluster, full: float) -> None:
    """
    Pods as the engine would place them on a node of each kind; the other nodes of the kind get the same, with other uids.
    """
    layouts: dict[int, list[tuple[PodRequest, Placement]]] = {}
    for record in list(cluster.engine.cache.nodes.values()):
        # CPUs and zones together tell the kinds of machines apart.
        shape = record.allocatable["cpu"] * 8 + len(record.topology.zones if record.topology else ())
        if shape not in layouts:
            layouts[shape] = _layout(cluster, record, full)
            continue
        for request, placement in layouts[shape]:
            cluster.count_in(cluster.pod(request), replace(placement, node=record.name))


def _publish(cluster: Cluster) -> None:
    """The pods have started, and exporters show what kubelets have left."""
    for record in list(cluster.engine.cache.nodes.values()):
        topology = record.topology
        if topology is None or topology.owner is not CpuOwner.KUBELET:
            continue
        # Only started pods are known to be in what a kubelet publishes; others would be subtracted twice.
        for pod in list(record.pods.values()):
            cluster.engine.handlers.bound_pods.observe("MODIFIED", replace(pod, started=True))
        held = record.ledger.numa
        zones = tuple(
            replace(zone, available=subtract_to_zero(zone.available, held.get(zone.numa, {})))
            for zone in topology.zones
        )
        cluster.engine.handlers.topologies.observe("MODIFIED", replace(topology, zones=zones))


def _layout(cluster: Cluster, record: NodeInfo, full: float) -> list[tuple[PodRequest, Placement]]:
    placed: list[tuple[PodRequest, Placement]] = []
    whole = record.free["cpu"]
    while record.free["cpu"] > whole * (1 - full):
        request = cluster.dice.choice(FILLERS)
        verdict = cluster.engine.handle.selector.try_node(cluster.request_class(request), record.name)
        if isinstance(verdict, Placement):
            cluster.count_in(cluster.pod(request), verdict)
            placed.append((request, verdict))
        # Not every request fits a node that is half full. When the smallest does not, none does.
        elif request is FILLERS[0]:
            break
    return placed


def _cpu_ms(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return (time.process_time() - started) * 1000


def figures() -> Iterator[Figure]:
    """One line per size and kind of decision."""
    base = 0.0
    for size in SIZES:
        cluster = make_cluster(size)
        classes = [(request, cluster.request_class(request)) for request in REQUESTS]
        cold = _cold(cluster)
        yield Figure(
            # Proportional to the nodes from 5,000 on; below that, the fixed part of a first decision counts.
            f"engine-cold-{size}",
            median(cold),
            "ms",
            25.0 * max(1, size // 5000),
            note="median of 20 classes",
        )
        warm = _warm(cluster)
        value = median(warm)
        base = value if size == 5_000 else base
        # At 50,000 nodes a warm decision may cost a fifth more than at 5,000: it looks at the few nodes that changed.
        target = 0.2 if size <= 5_000 else 1.2 * base
        yield Figure(f"engine-warm-{size}", value, "ms", target, note="class seen before, one node changed")
        if size == 5_000:
            yield Figure("engine-rate-5000", _rate(cluster, classes), "decisions/s", 4000.0, better="higher")
            yield Figure(
                "engine-batch-5000", _batch(cluster), "decisions/s", 10_000.0, "higher", "1,000 pods of a Deployment"
            )
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # # ru_maxrss is KiB
            yield Figure("engine-memory-5000", peak, "MB", 500.0, note=f"resident, {len(cluster.placed)} pods")
        # Before the next one is built: two clusters at once would both be in the figure of memory.
        del cluster
    eight = make_cluster(5_000, EIGHT_NUMA)
    cold = _cold(eight)
    yield Figure("engine-cold-5000x8", median(cold), "ms", 25.0, note=f"8 NUMA nodes each, worst {max(cold):.1f} ms")


def _cold(cluster: Cluster) -> list[float]:
    """Each class for the first time. What is known of the nodes is brought up to date before, by a class that is not counted."""
    decider = cluster.engine.handle.selector
    # Nodes changed since the table was filled; bringing it up to date is the cluster's cost, once.
    decider.decide(cluster.request_class(pod_request(100, 1)))
    return [_cpu_ms(partial(decider.decide, cluster.request_class(request))) for request in REQUESTS]


def _warm(cluster: Cluster, decisions: int = 2_000) -> list[float]:
    """The same class again and again: each decision changes one node."""
    request = REQUESTS[6]  # # two CPUs of its own: the commonest request that needs a topology
    request_class = cluster.request_class(request)
    pods = [cluster.pod(request) for _ in range(decisions)]
    return [_cpu_ms(partial(cluster.place, request_class, pod)) for pod in pods]


def _batch(cluster: Cluster, count: int = 1_000, rounds: int = 4) -> float:
    """A Deployment of ordinary pods, all at once; when they have left again, the next. The median of some rounds."""
    request_class, rates = cluster.request_class(REQUESTS[1]), []
    for _ in range(rounds):
        pods = [cluster.pod(REQUESTS[1]) for _ in range(count)]
        started = time.process_time()
        for pod in pods:
            cluster.place(request_class, pod)
        rates.append(count / (time.process_time() - started))
        for pod in pods:
            cluster.engine.cache.release(pod.key.uid)
        del cluster.placed[-count:]  # # count_in appended them, in this order
    return median(rates)


def _rate(cluster: Cluster, classes: list[tuple[PodRequest, RequestClass]], seconds: float = 4.0) -> float:
    """Arrivals of all classes in turn, as many departures as arrivals. Pods are made before the clock runs."""
    used, decisions = 0.0, 0
    while used < seconds:
        batch = [(request_class, cluster.pod(request)) for _ in range(ROUNDS) for request, request_class in classes]
        started = time.process_time()
        for request_class, pod in batch:
            if isinstance(cluster.place(request_class, pod), Placement):
                # As many leave as come, so that the rate is that of a cluster which stays half full.
                cluster.leave()
        used += time.process_time() - started
        decisions += len(batch)
    return decisions / used
