"""
Worst-case check of alignment by the kubelet on nodes where the scheduler chooses CPUs.

The kubelet of such a node aligns by its own state, and where it put the present pods is not known. A pod is accepted only if the kubelet
admits it for every distribution of all held amounts over NUMA nodes.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from koord_numa.core.explain import amounts_text
from koord_numa.core.kubelet.demand import ContainerDemand, is_memory, pod_demand
from koord_numa.core.objects.node import KubeletConfig, Node, NodeResourceTopology
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.resources import CPU, MEMORY, MILLI, ResourceList, is_batch, total
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.value_objects import ValueObject

NOT_SURELY_ALIGNED: Final = "node(s) whose kubelet might not align the pod to NUMA nodes"

TAKEN: Final = "taken by containers"
"""Key of the sum of held amounts in the derived values of a ledger."""

_STRICT: Final = frozenset({KubeletPolicy.RESTRICTED, KubeletPolicy.SINGLE_NUMA_NODE})


class Aligner(ValueObject):
    """
    A kubelet that may reject pods by its own state.

    ``zones`` are the amounts of every NUMA node. ``gone`` are reserved amounts, on unknown NUMA nodes.
    ``amplified`` are resources whose published
    amounts differ from the kubelet's.
    """

    config: KubeletConfig
    zones: tuple[ResourceList, ...]
    gone: ResourceList
    amplified: frozenset[str] = frozenset()

    @property
    def is_strict(self) -> bool:
        """Whether the kubelet rejects pods that it cannot align."""
        return self.config.topology_policy in _STRICT

    @property
    def binds_memory(self) -> bool:
        """Whether the kubelet binds memory. If not published, a strict kubelet is assumed to bind it."""
        return self.config.memory_policy == "Static" or (self.is_strict and self.config.memory_policy is None)

    def counts(self, resource: str) -> bool:
        """
        Return whether the kubelet aligns this resource. Without a topology manager policy, the memory manager still aligns memory.

        A zone that does not list a resource gives no information about it. A resource that no zone lists counts
        only if the published policy of
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
    Return the kubelet of a node with scheduler-owned CPUs if it may reject a pod for its NUMA nodes, else ``None``.

    Its managers have at most a NUMA node's capacity. The amount that the Node's allocatable lacks may be missing on any NUMA node
    (``--reserved-memory``).
    """
    policies = topology.kubelet.topology_policy, topology.kubelet.memory_policy
    # Only strict policies reject pods that they cannot align. A static memory manager rejects pods under any policy.
    if policies[0] not in _STRICT and policies[1] != "Static":
        return None
    # Capacity and not allocatable: the kubelet's managers count from the machine's amounts.
    zones = tuple(_capacity(zone.numa, {**zone.allocatable, **zone.capacity}, topology) for zone in topology.zones)
    whole = total(zones)
    gone = {name: max(0, amount - node.allocatable.get(name, 0)) for name, amount in whole.items()}
    return Aligner(topology.kubelet, zones, gone, frozenset(name for name, ratio in ratios.items() if ratio > 1))


def refuse_unsure(request: PodRequest, kubelet: Aligner, ledger: Ledger) -> Rejection | None:
    """
    Return a rejection if this kubelet might reject the pod, depending on the NUMA nodes of the other pods.

    Held amounts of a resource can leave too little of it on a limited number of NUMA nodes. If all resources together cannot do so on every
    NUMA node, one NUMA node has enough of every resource. The merged hint is then a single NUMA node and preferred,
    which every policy admits
    (policy_restricted.go, policy_single_numa_node.go). Requests that need several NUMA nodes are rejected, because
    they cannot be guaranteed.
    """
    if passing := _only_passing(request, kubelet):
        return _refuse(kubelet, f"{', '.join(passing)} of init containers alone it binds anywhere", resolvable=False)
    if _uses_again(request, kubelet):
        why = "what init containers leave ties the others to NUMA nodes that were chosen without them"
        return _refuse(kubelet, why, resolvable=False)
    taken: dict[str, int] | None = None
    for wanted in _units(request, kubelet):
        # An amount that no zone lists cannot be compared, but the kubelet may align it.
        if unknown := sorted(name for name in wanted if not any(zone.get(name) for zone in kubelet.zones)):
            return _refuse(kubelet, f"the NUMA nodes of {', '.join(unknown)} are not published", resolvable=False)
        # Only the scheduler amplifies amounts. The kubelet's accounting uses the original amounts.
        if amplified := sorted(kubelet.amplified & wanted.keys()):
            return _refuse(kubelet, f"{', '.join(amplified)} is amplified, by which it does not go", resolvable=False)
        if not any(
            all(zone.get(name, 0) >= max(1, amount) for name, amount in wanted.items()) for zone in kubelet.zones
        ):
            return _refuse(kubelet, f"no NUMA node has {amounts_text(wanted)}", resolvable=False)
        if taken is None:
            taken = total([kubelet.gone, _taken(ledger)])
        # Every resource excludes as many NUMA nodes as possible. In the worst case these are different NUMA nodes.
        closed = sum(_most_closed(kubelet, name, amount, taken.get(name, 0)) for name, amount in wanted.items())
        if closed >= len(kubelet.zones):
            why = f"it chooses by its own state, in which no NUMA node is sure to have {amounts_text(wanted)} left"
            return _refuse(kubelet, why, resolvable=True)
        # In container scope, earlier containers of the pod are held when the next container is aligned.
        taken = total([taken, wanted])
    return None


def _capacity(numa: int, published: ResourceList, topology: NodeResourceTopology) -> ResourceList:
    if topology.machine is None:
        return published
    cpus = topology.machine.numa_bits.get(numa, 0)
    reserved = topology.kubelet.reserved_cpus
    return {**published, CPU: (cpus & ~reserved.bits if reserved else cpus).bit_count() * MILLI}


def _units(request: PodRequest, kubelet: Aligner) -> Iterator[ResourceList]:
    """Yield the amounts that must be on one NUMA node: of the whole pod, or of every container in order."""
    demand = pod_demand(request)
    whole = kubelet.config.topology_scope is KubeletScope.POD
    for unit in [demand.pod] if whole else [unit for _, unit in demand.containers]:
        wanted = {name: amount for name, amount in _amounts(unit).items() if kubelet.counts(name)}
        if wanted:
            yield wanted


def _only_passing(request: PodRequest, kubelet: Aligner) -> list[str]:
    """Return the memory types without a hint in pod scope (getPodRequestedResources), which may group NUMA nodes."""
    if not kubelet.binds_memory or kubelet.config.topology_scope is not KubeletScope.POD:
        return []
    demand = pod_demand(request)
    return sorted({name for _, unit in demand.containers for name in unit.memory or ()} - set(demand.pod.memory or ()))


def _uses_again(request: PodRequest, kubelet: Aligner) -> bool:
    """Return whether, in container scope, other containers must reuse what an init container leaves (hints for reusable CPUs)."""
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
    """Return the sum over all pods of the ledger, computed once per change."""
    # Cached with the ledger, because every decision on the node reads it.
    known: ResourceList | None = ledger.derived.get(TAKEN)
    if known is None:
        known = ledger.derived[TAKEN] = total(_taken_by(held.request, held.amounts) for held in ledger)
    return known


def _taken_by(request: PodRequest | None, amounts: ResourceList) -> ResourceList:
    """Return the sum over all containers, because what an init container leaves may be on other NUMA nodes than what is reused."""
    if request is None:
        return amounts
    return total(_amounts(unit) for _, unit in pod_demand(request).containers)


def _most_closed(kubelet: Aligner, resource: str, amount: int, taken: int) -> int:
    """
    Return the maximum number of NUMA nodes with less than ``amount`` left if ``taken`` is held. The smallest NUMA nodes are used up first.
    """
    # A request of 0 devices fits on every NUMA node with such devices, in use or not (devicemanager/topology_hints.go).
    if not amount:
        return sum(not zone.get(resource) for zone in kubelet.zones)
    closed = 0
    # Ascending: the smallest NUMA nodes need the least to be excluded.
    for has in sorted(zone.get(resource, 0) for zone in kubelet.zones):
        # A NUMA node is excluded with less than ``amount`` left, for which ``has - amount + 1`` held units suffice.
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
