"""
Is a pod admitted whichever pods leave, whose containers are tied to one another in parts that share nothing but memory?

Theory. Under a strict policy an init container ties later ones to its NUMA node by CPUs or by devices of one kind, and only those that ask
for some of these too. So containers with CPUs are one part of a pod, and those with devices of a kind another one, as long as none asks for
both; one with memory alone is a part by itself. What one part gets of CPUs and devices another one never asks for. Memory that others take
before a part comes, or leave to it, is missing on one NUMA node or another, as that of pods which come before: no more than all of them ask
for. What they take later is none of its own. So each part is admitted if it is as a pod of its own with that memory kept from any NUMA
nodes (``room.py``), and the pod if all parts are. Where memory is bound, a container of another part may take some between an init
container and those that it ties, which find less than it found then: of such pods nothing is told.

Example: ``init 1, init 1`` and an app with a GPU and no CPUs. The second init container finds the CPU of the first wherever that is, which
needs no GPU there.
"""

from dataclasses import dataclass

from koord_numa.core.kubelet.demand import ContainerDemand, pod_demand
from koord_numa.core.kubelet.room import STRICT, Bound, has_room_between, together
from koord_numa.core.kubelet.state import KubeletNode
from koord_numa.core.objects.request import PodRequest, once_per_request
from koord_numa.core.objects.vocabulary import KubeletScope, KubeQos
from koord_numa.core.resources import CPU
from koord_numa.core.value_objects import replace


@dataclass(frozen=True, slots=True)
class _Part:
    """Some containers of a pod as a pod of their own; the memory that the others ask for, and are all of these before or after them?"""

    request: PodRequest
    others: ContainerDemand
    peak_of: bool


def has_room_apart(request: PodRequest, node: KubeletNode, least: Bound, most: Bound, kept: ContainerDemand) -> bool:
    """As ``has_room_between``, of each part of the pod by itself. A no says nothing."""
    config = node.config
    if config.topology_policy not in STRICT or config.topology_scope is not KubeletScope.CONTAINER:
        return False
    if node.static_options.align_by_socket:
        return False
    parts = _parts(request)
    if len(parts) < 2 or (node.pins_memory and not all(part.peak_of for part in parts)):
        return False
    return all(has_room_between(part.request, node, least, most, together([kept, part.others])) for part in parts)


@once_per_request
def _parts(request: PodRequest) -> tuple[_Part, ...]:
    """None where fewer containers would be another kind of pod to the managers."""
    demand = pod_demand(request)
    if demand.qos is not KubeQos.GUARANTEED or any(part.memory is None for _, part in demand.containers):
        return ()
    found: list[tuple[set[str], list[int]]] = []
    for place, (_, part) in enumerate(demand.containers):
        kinds = {CPU} if part.cpus else set()
        kinds |= part.devices.keys()
        same = [each for each in found if each[0] & kinds]
        found = [each for each in found if not each[0] & kinds]
        found.append(
            (kinds.union(*(each[0] for each in same)), sorted([place, *(at for each in same for at in each[1])]))
        )
    return tuple(_part(request, places) for _, places in found)


def _part(request: PodRequest, places: list[int]) -> _Part:
    containers = pod_demand(request).containers
    others = (part for place, (_, part) in enumerate(containers) if place not in places)
    return _Part(
        replace(request, containers=tuple(containers[place][0] for place in places)),
        ContainerDemand(cpus=0, memory=together(others).memory, devices={}),
        peak_of=places[-1] - places[0] == len(places) - 1,
    )
