"""The demo as a sequence: start a cluster, submit pods, watch them being placed, report. Nothing here knows the command line."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic, time
from typing import Any, Final

from koord_numa.cli.demo.sandbox_cluster import SandboxCluster
from koord_numa.cli.render.placements import PodView, find_cpus, numa_of
from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.request import Pod
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import CPU, MILLI
from koord_numa.sandbox.devices.kubelets import cpus_prepared, devices_prepared
from koord_numa.sandbox.machines import NodeDescription, SimulatedNode, Style
from koord_numa.view.text import count
from koord_numa.wire.pod.pods import parse_pod

Json = dict[str, Any]

WAVE: Final = 8
"""So many pods are submitted at once: a spectator wants to see the rack being filled."""

PAUSE: Final = 0.4
"""Seconds between two waves, at the very least."""

TOPOLOGY_DELAY: Final = 0.3
"""Seconds after which the scheduler has heard what the nodes report: then it decides the same in every run. Longer at a slower pace."""

SETTLED_SECONDS: Final = 1.5
"""Seconds without any change after which every pod has what it gets."""

LONGEST_SECONDS: Final = 45.0
"""Seconds without any change after which the demo reports, whatever the state."""

LATEST_IN_SECOND: Final = 0.5
"""
The part of a second after which no wave is begun: the pods of a wave are equally old, whose age the API gives in whole seconds, and
what is decided by age comes out the same in every run.
"""

_POLL_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """One node: its pods, and the CPUs that they ask for out of those there are. In milli-CPU."""

    pods: int
    asked: int
    cpus: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far things are."""

    submitted: int
    running: int
    waiting: int
    refused: int
    nodes: Mapping[str, NodeLoad]

    @property
    def settled(self) -> bool:
        """Does every pod that was submitted have its answer?"""
        return self.running + self.waiting + self.refused == self.submitted


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast pods are submitted: ``wave`` of them at once, and not before so many seconds after the last ones."""

    wave: int = WAVE
    pause: float = PAUSE


class OperatorEnded(Exception):
    """The operator's process is gone before the demo was over."""


async def fill(
    cluster: SandboxCluster,
    pods: Sequence[Json],
    alive: Callable[[], bool],
    show: Callable[[Progress], None],
    pace: Pace,
) -> None:
    """
    Submit the pods in waves and wait until nothing changes any more. Raises ``OperatorEnded``.

    Nodes report between the waves, and at no other time.
    """
    begun = submitted = reported = monotonic()
    left, delay = list(pods), max(TOPOLOGY_DELAY, pace.pause)
    before, changed = -1, begun
    while monotonic() - changed < LONGEST_SECONDS:
        if not alive():
            raise OperatorEnded
        progress, now = look(cluster), monotonic()
        show(progress)
        if cluster.server.revision != before:
            before, changed = cluster.server.revision, now
        if progress.settled and await cluster.publish():
            reported = now
        elif left and progress.settled and now - submitted >= pace.pause and now - reported >= delay:
            if time() % 1 > LATEST_IN_SECOND:
                await asyncio.sleep(1 - time() % 1)
            wave = next_wave(left, pace.wave)
            # In the order in which the scheduling queue pops pods of one age, so that the result does not depend on timing.
            for pod in sorted(wave, key=_name):
                cluster.server.store.create(pod)
            del left[: len(wave)]
            submitted = now
        elif not left and progress.settled and now - changed > SETTLED_SECONDS:
            return
        await asyncio.sleep(_POLL_SECONDS)


def next_wave(left: Sequence[Json], most: int) -> Sequence[Json]:
    """
    The pods that are submitted at once: the first ones, and of those with claims one. Such a pod is tried in vain until its claims are
    made, and then again after a backoff: which of several comes first would depend on timing.
    """
    with_claims = [index for index, pod in enumerate(left[:most]) if pod["spec"].get("resourceClaims")]
    return left[: with_claims[1] if len(with_claims) > 1 else most]


def _name(pod: Json) -> str:
    return str(pod["metadata"]["name"])


def look(cluster: SandboxCluster) -> Progress:
    """Count the pods of this moment."""
    running = waiting = refused = submitted = 0
    for obj in cluster.server.store.list("pods"):
        submitted += 1
        phase = obj["status"].get("phase")
        refused += phase == "Failed"
        running += phase == "Running"
        waiting += not obj["spec"].get("nodeName") and bool(_unschedulable(obj))
    nodes = {name: _load(node) for name, node in sorted(cluster.fleet.nodes.items())}
    return Progress(submitted, running, waiting, refused, nodes)


def seen(cluster: SandboxCluster) -> list[PodView]:
    """Every pod as the cluster and its simulated machine show it."""
    holders = cluster.fleet.history.holders()
    found = []
    for obj in cluster.server.store.list("pods"):
        pod = parse_pod(obj)
        node = cluster.fleet.nodes.get(pod.node)
        prepared = cluster.devices.kubelets.prepared_for(pod.key.uid) if node else ()
        own = find_cpus(holders.get(pod.node, {}), pod) if node else EMPTY
        cpus = CpuSet.of(cpu for part in (own, *map(cpus_prepared, prepared)) for cpu in part)
        machine = node.description.hardware.machine if node else None
        devices = tuple(name for claim in prepared for name in devices_prepared(claim))
        found.append(PodView(pod, cpus, numa_of(pod, cpus, machine), _unschedulable(obj), devices))
    return found


def node_titles(cluster: SandboxCluster) -> dict[str, str]:
    """What a reader should know of each node."""
    return {name: _title(node.description) for name, node in cluster.fleet.nodes.items()}


def machine_to_show(cluster: SandboxCluster, pods: Sequence[PodView]) -> tuple[str, CpuTopology]:
    """The machine whose CPUs tell most: the one with most pods that hold CPUs, among those of less than 128 CPUs if any."""
    counts = Counter(seen.pod.node for seen in pods if seen.cpus)
    machines = {name: node.description.hardware.machine for name, node in cluster.fleet.nodes.items()}
    name = max(sorted(machines), key=lambda name: (len(machines[name].cpus) < 128, counts[name]))
    return name, machines[name]


def shared_on(pods: Sequence[PodView], node: str) -> dict[int, str]:
    """Per NUMA node how many pods share its CPUs there."""
    counts: Counter[int] = Counter()
    for one in pods:
        if one.pod.node == node and not one.cpus:
            counts.update(one.numa)
    return {numa: f"{count(number, 'pod')} on shared CPUs" for numa, number in counts.items()}


def pods_by_node(pods: Sequence[PodView], node: str) -> list[PodView]:
    """The pods of one node."""
    return [one for one in pods if one.pod.node == node]


def is_placed(pod: Pod) -> bool:
    """Does it run somewhere?"""
    return bool(pod.node) and not pod.finished


def _load(node: SimulatedNode) -> NodeLoad:
    asked = sum(effective_requests(pod.request).get(CPU, 0) for pod in node.pods.values())
    reserved = 0 if node.description.style is Style.KUBELET else MILLI * len(node.description.reserved)
    return NodeLoad(len(node.pods), asked, node.description.allocatable[CPU] - reserved)


def _title(node: NodeDescription) -> str:
    counts = node.hardware.machine.counts
    parts = [count(counts.sockets, "socket"), count(counts.numa, "NUMA node"), count(counts.cpus, "CPU")]
    parts += [f"{number} {name.rpartition('/')[2]}" for name, number in sorted(node.hardware.device_counts().items())]
    if node.hardware.claimed_devices:
        kinds = Counter(it.resource.rpartition("/")[2] for it in node.hardware.claimed_devices)
        parts += [f"{number} {kind}" for kind, number in sorted(kinds.items())]
        parts.append("devices and CPUs by claim")
        return ", ".join(parts)
    if node.style is Style.KUBELET:
        parts.append(f"CPUs chosen by its kubelet ({node.kubelet.topology_policy})")
    return ", ".join(parts)


def _unschedulable(obj: Json) -> str:
    for condition in obj["status"].get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message") or condition.get("reason") or "")
    return ""
