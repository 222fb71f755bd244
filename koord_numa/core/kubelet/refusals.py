"""
How a kubelet's refusal that is foreseen is worded: the reason of its ``status.reason``, and the numbers of every NUMA node.

Decides nothing but whether evicting pods may help.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from koord_numa.core.explain import largest_that_fits, needs_text
from koord_numa.core.kubelet.admit import NotAdmitted
from koord_numa.core.kubelet.demand import OUT_OF, SMT_ALIGNMENT, TOPOLOGY_AFFINITY, ContainerDemand
from koord_numa.core.kubelet.empty_node import fits_empty_node
from koord_numa.core.kubelet.state import KubeletNode, KubeletState, free_on
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import NumaNumbers, Reason, Rejection
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.core.resources import CPU, MILLI, PODS, ResourceList

CANNOT_ALIGN: Final = "node(s) whose kubelet cannot align the pod to NUMA nodes"
NO_WHOLE_CORES: Final = "node(s) whose kubelet cannot give whole cores"
CANNOT_ALLOCATE: Final = "node(s) whose kubelet lacks exclusive CPUs, memory or devices"


def rejection_of(request: PodRequest, refused: NotAdmitted, view: KubeletView, state: KubeletState) -> Rejection:
    """What the kubelet's refusal in this state means for the pod: which reason, which numbers, and whether evicting pods may help."""
    reason, detail = refused.refusal.reason, refused.refusal.detail
    # If even the empty node refuses the pod, evicting pods cannot help.
    resolvable = fits_empty_node(request, state.node)
    if reason.startswith(OUT_OF):
        resource = reason.removeprefix(OUT_OF)
        message = "Too many pods" if resource == PODS else f"Insufficient {resource}"
        return Rejection(Reason.RESOURCES, message, detail, resolvable=resolvable)
    kind, message = {
        TOPOLOGY_AFFINITY: (Reason.KUBELET_ALIGNMENT, CANNOT_ALIGN),
        SMT_ALIGNMENT: (Reason.KUBELET_SMT, NO_WHOLE_CORES),
    }.get(reason, (Reason.KUBELET_ALLOCATION, CANNOT_ALLOCATE))
    # The pod or the container that was refused, so that the numbers show its amounts and not the pod's sum.
    wanted = _wanted(refused.unit, state.node)
    rooms = {numa: free_on(state.node, state.managers, numa) for numa in state.node.machine.numa_ids}
    numbers = tuple(_numbers(wanted, rooms, KubeletState.empty(state.node)))
    if kind is Reason.KUBELET_ALIGNMENT and view.state.node.config.topology_policy is KubeletPolicy.SINGLE_NUMA_NODE:
        numbers = _decisive(numbers)
        unit, colon, _ = detail.rpartition(": ")  # in the container scope, which container it is
        detail = f"{unit}{colon}needs {needs_text(wanted)} in one NUMA node"
        # The device manager's hints for 0 devices are the NUMA nodes with such devices (devicemanager/topology_hints.go).
        if tied := [name for name, amount in wanted.items() if not amount and name in state.node.devices]:
            detail += f", which must have {', '.join(tied)} (a request of 0 is aligned too)"
    if view.overlooked:
        detail += f"; {needs_text(view.overlooked.amounts)} of running pods that the exporter overlooks may be on any NUMA node"
    core = view.cores.threads if view.cores.free is not None else 1
    largest = largest_that_fits(wanted, rooms.values(), {CPU: MILLI * core})
    return Rejection(kind, message, detail, resolvable=resolvable, numbers=numbers, largest=largest)


def _decisive(numbers: tuple[NumaNumbers, ...]) -> tuple[NumaNumbers, ...]:
    """Those of the resources that rule some NUMA node out by themselves; all of them where none does."""
    scarce = {number.resource for number in numbers if number.free < number.needed}
    return tuple(number for number in numbers if number.resource in scarce) or numbers


def _wanted(unit: ContainerDemand | None, node: KubeletNode) -> dict[str, int]:
    """The amounts of a unit that are tied to NUMA nodes, in our units."""
    if unit is None:
        return {}
    wanted = {
        name: amount for name, amount in unit.devices.items() if name in node.devices and node.devices[name].hosts
    }
    if unit.cpus and node.pins_cpus:
        wanted[CPU] = unit.cpus * MILLI
    if unit.memory and node.pins_memory:
        wanted.update(unit.memory)
    return dict(sorted(wanted.items()))


def _numbers(wanted: ResourceList, rooms: Mapping[int, ResourceList], empty: KubeletState) -> Iterator[NumaNumbers]:
    """Of each resource what every NUMA node has on the empty node, and what ``rooms`` say is free of it."""
    if not wanted:
        return
    whole = {numa: free_on(empty.node, empty.managers, numa) for numa in rooms}
    for resource, needed in wanted.items():
        for numa, room in rooms.items():
            yield NumaNumbers(numa, resource, whole[numa].get(resource, 0), room.get(resource, 0), needed)
