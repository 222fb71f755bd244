"""
Nodes that differ from a recorded one in their uncore caches, on which the kubelet keeps containers inside one where it can.

With ``prefer-align-cpus-by-uncorecache`` a container that fills a cache gets another one than a smaller container does, so that init
containers keep CPUs that packing into cores would hand on. Which caches there are no exporter tells. Nodes that are drawn with other
sockets and devices too hardly ever agree with dozens of scans; these nearly always do.
"""

from collections.abc import Iterator
from random import Random
from typing import Final

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.kubelet.demand import pod_demand
from koord_numa.core.kubelet.state import KubeletNode
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.core.value_objects import replace
from tests.conformance.kubelet.variants import HALF, ORDERS, machine_of, ordered_ids, possible_threads, reserving
from tests.conformance.kubelet.worlds import Played, Recorded, World

BY_CACHE: Final = "prefer-align-cpus-by-uncorecache"

EVENTS: Final = 40_000
"""So many events are played on such nodes for one question."""

NODES: Final = 2_000
"""So many nodes are drawn at most for one question."""

ALSO_WHOLE_CORES: Final = 0.2
"""So often full-pcpus-only is on, too, where options are not published."""


def other_caches(truth: World, index: int, dice: Random) -> Iterator[tuple[World, Played]]:
    """Histories on such nodes that agree with all that was shown before this question, with the recorded departures."""
    recorded = truth.recorded
    if not caches_matter(recorded, index):
        return
    left = EVENTS
    for _ in range(NODES):
        world = replace(truth, node=_drawn(recorded, dice))
        played = world.play_while_agreeing(index)
        left -= len(played.states) - 1
        if played.agrees_until(index):
            yield world, played
        if left < 0:
            return


def caches_matter(recorded: Recorded, index: int) -> bool:
    """May containers be kept inside a cache, and is there a pod whose later containers may leave CPUs of its init containers behind?"""
    node = recorded.node
    if not node.pins_cpus or (recorded.case["published"] and not node.config.cpu_options.get(BY_CACHE)):
        return False
    asked = [recorded.requests[event["pod"]] for event in recorded.events[: index + 1] if event["ev"] == "pod"]
    return any(map(_has_init_cpus, [*asked, recorded.requests[recorded.events[index]["pod"]]]))


def _has_init_cpus(request: PodRequest) -> bool:
    return any(part.cpus and one.kind is ContainerKind.INIT for one, part in pod_demand(request).containers)


def _drawn(recorded: Recorded, dice: Random) -> KubeletNode:
    node = replace(recorded.node, machine=_machine(recorded, dice), whole_cores=None)
    if recorded.case["published"]:
        return node
    options = {BY_CACHE: True}
    if dice.random() < ALSO_WHOLE_CORES:
        options["full-pcpus-only"] = True
    return reserving(replace(node, config=replace(node.config, cpu_options=options)), dice)


def _machine(recorded: Recorded, dice: Random) -> CpuTopology:
    """The CPUs of each NUMA node and its socket as they are, in other cores and caches: of one size, or of one on each NUMA node."""
    threads, order = dice.choice(possible_threads(recorded)), dice.choice(ORDERS)
    ids = ordered_ids(recorded, threads, order, dice)
    most = max(map(len, ids.values())) // threads
    share, mixed = dice.randint(1, most), dice.random() < HALF
    places = {
        cpu.numa: (cpu.socket, dice.randint(1, most) if mixed else share)
        for cpu in {cpu.numa: cpu for cpu in recorded.node.machine.cpus}.values()
    }
    return machine_of(recorded, ids, threads, places, apart=order == "apart")
