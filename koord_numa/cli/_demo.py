"""The demo as a sequence: start a cluster, submit pods, watch them being placed, report. Nothing here knows the command line."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

from koord_numa.cli._report import Seen, find_cpus, numa_of
from koord_numa.cli._sandbox_world import World
from koord_numa.core.cpuset import EMPTY
from koord_numa.core.machine import Machine
from koord_numa.core.request import Pod
from koord_numa.sandbox.machines import Style
from koord_numa.wire.pods import parse_pod

Json = dict[str, Any]

WAVE: Final = 6
"""So many pods are submitted at once: a spectator wants to see the rack being filled."""

QUIET: Final = 2.0
"""Seconds without any change after which every pod has what it gets."""

LONGEST: Final = 45.0
"""Seconds after which the demo reports, whatever the state."""

_LOOK: Final = 0.1


@dataclass(frozen=True, slots=True)
class Progress:
    """How far things are."""

    submitted: int
    running: int
    waiting: int
    refused: int
    by_node: Counter[str]


class OperatorEnded(Exception):
    """The operator's process is gone before the demo was over."""


async def fill(
    world: World, pods: Sequence[Json], alive: Callable[[], bool], show: Callable[[Progress], Awaitable[None]]
) -> None:
    """Submit the pods in waves and wait until nothing changes any more. Raises ``OperatorEnded``."""
    begun = monotonic()
    left = list(pods)
    before, changed = -1, monotonic()
    while True:
        if not alive():
            raise OperatorEnded
        progress = look(world)
        settled = progress.running + progress.waiting + progress.refused == progress.submitted
        if left and (settled or monotonic() - changed > QUIET):
            for pod in left[:WAVE]:
                world.server.store.create(pod)
            del left[:WAVE]
        await show(progress)
        if world.server.revision != before:
            before, changed = world.server.revision, monotonic()
        quiet = settled and monotonic() - changed > QUIET
        if (not left and quiet) or monotonic() - begun > LONGEST:
            return
        await asyncio.sleep(_LOOK)


def look(world: World) -> Progress:
    """Count the pods of this moment."""
    running = waiting = refused = submitted = 0
    by_node: Counter[str] = Counter()
    for obj in world.server.store.list("pods"):
        submitted += 1
        phase = obj["status"].get("phase")
        if phase == "Failed":
            refused += 1
        elif obj["spec"].get("nodeName"):
            by_node[obj["spec"]["nodeName"]] += 1
            running += phase == "Running"
        elif _unschedulable(obj):
            waiting += 1
    return Progress(submitted, running, waiting, refused, by_node)


def seen(world: World) -> list[Seen]:
    """Every pod as the cluster and its simulated machine show it."""
    holders = world.rack.history.holders()
    found = []
    for obj in world.server.store.list("pods"):
        pod = parse_pod(obj)
        node = world.rack.nodes.get(pod.node)
        cpus = find_cpus(holders.get(pod.node, {}), pod) if node else EMPTY
        machine = node.description.hardware.machine if node else None
        chosen_by_kubelet = node is not None and node.description.style is Style.KUBELET
        found.append(Seen(pod, cpus, chosen_by_kubelet, numa_of(pod, cpus, machine), _unschedulable(obj)))
    return found


def machine_to_show(world: World, pods: Sequence[Seen]) -> tuple[str, Machine]:
    """The machine whose CPUs tell most: the one with most pods that hold CPUs, among those of less than 128 CPUs if any."""
    counts = Counter(seen.pod.node for seen in pods if seen.cpus)
    machines = {name: node.description.hardware.machine for name, node in world.rack.nodes.items()}
    name = max(sorted(machines), key=lambda name: (len(machines[name].cpus) < 128, counts[name]))
    return name, machines[name]


def shared_on(pods: Sequence[Seen], node: str) -> dict[int, str]:
    """Per NUMA node how many pods share its CPUs there."""
    counts: Counter[int] = Counter()
    for one in pods:
        if one.pod.node == node and not one.cpus:
            counts.update(one.numa)
    return {numa: f"{count} pods share CPUs" for numa, count in counts.items()}


def pods_by_node(pods: Sequence[Seen], node: str) -> list[Seen]:
    """The pods of one node."""
    return [one for one in pods if one.pod.node == node]


def is_placed(pod: Pod) -> bool:
    """Does it run somewhere?"""
    return bool(pod.node) and not pod.finished


def _unschedulable(obj: Json) -> str:
    for condition in obj["status"].get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message") or condition.get("reason") or "")
    return ""
