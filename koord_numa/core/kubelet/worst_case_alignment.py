"""
A kubelet that aligns, on a node whose CPUs are ours to choose: it goes by its own state, and where it put what we cannot know.

So a pod is placed only where it would be admitted however the kubelet has spread everything that is taken. Decides that and nothing else.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from koord_numa.core.explain import amounts_text
from koord_numa.core.kubelet.demand import ContainerDemand, is_memory, pod_demand
from koord_numa.core.objects.node import KubeletConfig, Node, NodeResourceTopology
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.resources import CPU, MEMORY, MILLI, ResourceList, is_batch, total
from koord_numa.core.state.ledger import Ledger

NOT_SURELY_ALIGNED: Final = "node(s) whose kubelet might not align the pod to NUMA nodes"

TAKEN: Final = "taken by containers"
"""What the sum is called among what is remembered of a ledger."""

_STRICT: Final = frozenset({KubeletPolicy.RESTRICTED, KubeletPolicy.SINGLE_NUMA_NODE})


@dataclass(frozen=True, slots=True)
class Aligner:
    """
    A kubelet that may refuse pods by its own state. ``zones`` is what each NUMA node has, ``gone`` what is not for pods, wherever it is
    missing. ``amplified`` are resources whose published amounts are not the kubelet's.
    """

    config: KubeletConfig
    zones: tuple[ResourceList, ...]
    gone: ResourceList
    amplified: frozenset[str] = frozenset()

    @property
    def is_strict(self) -> bool:
        """Does it refuse what it cannot align?"""
        return self.config.topology_policy in _STRICT

    @property
    def binds_memory(self) -> bool:
        """Where it is not published whether memory is bound, a strict kubelet is taken to do it."""
        return self.config.memory_policy == "Static" or (self.is_strict and self.config.memory_policy is None)

    def counts(self, resource: str) -> bool:
        """
        Whether the kubelet looks for this resource on one NUMA node. Without any policy the memory manager still does for memory.

        A zone that does not list a resource says nothing about it. A resource that no zone lists counts only where the published policy of
        the memory manager shows that the kubelet binds it.
        """
        if not any(resource in zone for zone in self.zones):
            return is_memory(resource) and self.config.memory_policy == "Static"
        if is_memory(resource):
            return self.binds_memory
        if self.config.topology_policy is KubeletPolicy.NONE or is_batch(resource):
            return False
        return resource != CPU or self.config.cpu_policy != "none"


def aligner(node: Node, topology: NodeResourceTopology, ratios: Mapping[str, float]) -> Aligner | None:
    """
    The kubelet of a node with scheduler-owned CPUs, if it might refuse a pod for its NUMA nodes; ``None`` where it cannot.

    Its managers have no more than a NUMA node's capacity; what Node allocatable lacks may be missing on any (``--reserved-memory``).
    """
    policies = topology.kubelet.topology_policy, topology.kubelet.memory_policy
    # Only strict policies refuse what they cannot align; a static memory manager refuses by itself.
    if policies[0] not in _STRICT and policies[1] != "Static":
        return None
    # Capacity over allocatable: the kubelet's managers count from what the machine has.
    zones = tuple(_capacity(zone.numa, {**zone.allocatable, **zone.capacity}, topology) for zone in topology.zones)
    whole = total(zones)
    gone = {name: max(0, amount - node.allocatable.get(name, 0)) for name, amount in whole.items()}
    return Aligner(topology.kubelet, zones, gone, frozenset(name for name, ratio in ratios.items() if ratio > 1))


def refuse_unsure(request: PodRequest, kubelet: Aligner, ledger: Ledger) -> Rejection | None:
    """
    Could this kubelet refuse the pod, depending on where it put the others?

    Each resource can be used up on so many NUMA nodes at most by what is taken of it. When all resources together cannot close every NUMA
    node, one is left that has enough of each: the merged hint is then a single NUMA node and preferred, which every policy admits
    (policy_restricted.go, policy_single_numa_node.go). Wider requests are refused, for nothing is sure about them.
    """
    if passing := _only_passing(request, kubelet):
        return _refuse(kubelet, f"{', '.join(passing)} of init containers alone it binds anywhere", resolvable=False)
    if _uses_again(request, kubelet):
        why = "what init containers leave ties the others to NUMA nodes that were chosen without them"
        return _refuse(kubelet, why, resolvable=False)
    taken: dict[str, int] | None = None
    for wanted in _units(request, kubelet):
        # An amount that no zone lists cannot be compared; the kubelet may align it all the same.
        if unknown := sorted(name for name in wanted if not any(zone.get(name) for zone in kubelet.zones)):
            return _refuse(kubelet, f"the NUMA nodes of {', '.join(unknown)} are not published", resolvable=False)
        # Amplified amounts are the scheduler's; the kubelet's own accounting does not know them.
        if amplified := sorted(kubelet.amplified & wanted.keys()):
            return _refuse(kubelet, f"{', '.join(amplified)} is amplified, by which it does not go", resolvable=False)
        if not any(
            all(zone.get(name, 0) >= max(1, amount) for name, amount in wanted.items()) for zone in kubelet.zones
        ):
            return _refuse(kubelet, f"no NUMA node has {amounts_text(wanted)}", resolvable=False)
        if taken is None:
            taken = total([kubelet.gone, _taken(ledger)])
        # Each resource closes as many NUMA nodes as it can on its own; in the worst case these do not overlap.
        closed = sum(_most_closed(kubelet, name, amount, taken.get(name, 0)) for name, amount in wanted.items())
        if closed >= len(kubelet.zones):
            why = f"it chooses by its own state, in which no NUMA node is sure to have {amounts_text(wanted)} left"
            return _refuse(kubelet, why, resolvable=True)
        # Container scope: containers before this one are taken too when the next one is asked.
        taken = total([taken, wanted])
    return None


def _capacity(numa: int, published: ResourceList, topology: NodeResourceTopology) -> ResourceList:
    if topology.machine is None:
        return published
    cpus = topology.machine.numa_bits.get(numa, 0)
    reserved = topology.kubelet.reserved_cpus
    return {**published, CPU: (cpus & ~reserved.bits if reserved else cpus).bit_count() * MILLI}


def _units(request: PodRequest, kubelet: Aligner) -> Iterator[ResourceList]:
    """What has to be on one NUMA node together: of the whole pod, or of one container after the other."""
    demand = pod_demand(request)
    whole = kubelet.config.topology_scope is KubeletScope.POD
    for unit in [demand.pod] if whole else [unit for _, unit in demand.containers]:
        wanted = {name: amount for name, amount in _amounts(unit).items() if kubelet.counts(name)}
        if wanted:
            yield wanted


def _only_passing(request: PodRequest, kubelet: Aligner) -> list[str]:
    """Types of memory that pod scope makes no hint for (getPodRequestedResources), so that they may tie NUMA nodes together."""
    if not kubelet.binds_memory or kubelet.config.topology_scope is not KubeletScope.POD:
        return []
    demand = pod_demand(request)
    return sorted({name for _, unit in demand.containers for name in unit.memory or ()} - set(demand.pod.memory or ()))


def _uses_again(request: PodRequest, kubelet: Aligner) -> bool:
    """Container scope: is there an init container whose share others must use again (as the managers' hints for reusable CPUs)?"""
    return (
        kubelet.config.topology_scope is KubeletScope.CONTAINER
        and any(container.kind is ContainerKind.INIT for container in request.containers)
        and len(list(_units(request, kubelet))) > 1
    )


def _amounts(unit: ContainerDemand) -> dict[str, int]:
    cpus = {CPU: unit.cpus * MILLI} if unit.cpus else {}
    memory = {name: amount for name, amount in (unit.memory or {}).items() if amount}
    return {**cpus, **memory, **unit.devices}


def _taken(ledger: Ledger) -> ResourceList:
    """Of all pods there, summed once for each change of the ledger."""
    # Kept beside the ledger: every decision on the node asks for it.
    known: ResourceList | None = ledger.derived.get(TAKEN)
    if known is None:
        known = ledger.derived[TAKEN] = total(_taken_by(held.request, held.amounts) for held in ledger)
    return known


def _taken_by(request: PodRequest | None, amounts: ResourceList) -> ResourceList:
    """All containers' together: what init containers had may be elsewhere than what is used again of it."""
    if request is None:
        return amounts
    return total(_amounts(unit) for _, unit in pod_demand(request).containers)


def _most_closed(kubelet: Aligner, resource: str, amount: int, taken: int) -> int:
    """On how many NUMA nodes at most less than ``amount`` is left when so much is taken: the smallest are used up first."""
    # 0 devices are had on any NUMA node with such devices, in use or not (devicemanager/topology_hints.go).
    if not amount:
        return sum(not zone.get(resource) for zone in kubelet.zones)
    closed = 0
    # Ascending: small NUMA nodes take the least to close, so that most of them close.
    for has in sorted(zone.get(resource, 0) for zone in kubelet.zones):
        # Closed when less than ``amount`` is left: ``has - amount + 1`` units are enough for that.
        taken -= max(0, has - amount + 1)
        if taken < 0:
            break
        closed += 1
    return closed


def _refuse(kubelet: Aligner, why: str, *, resolvable: bool) -> Rejection:
    policy = kubelet.config.topology_policy or "policy unknown"
    what = "CPUs, memory and devices" if kubelet.is_strict else MEMORY
    detail = f"its kubelet aligns {what} itself ({policy}): {why}"
    return Rejection(Reason.KUBELET_ALIGNMENT, NOT_SURELY_ALIGNED, detail, resolvable=resolvable)
