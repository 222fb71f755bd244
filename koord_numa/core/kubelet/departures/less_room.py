"""Which pods may be refused because there is more room: where several pods' departures have to be asked about."""

from koord_numa.core.kubelet.demand import ContainerDemand, PodDemand
from koord_numa.core.kubelet.room import STRICT, fits_on
from koord_numa.core.kubelet.state import KubeletNode, KubeletState
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.resources import CPU


def takes_turns(demand: PodDemand, node: KubeletNode) -> bool:
    """
    May more room for one container leave less for the next? Where they are aligned one by one and need several kinds of resources.

    With one kind the next finds on the NUMA node that the first leaves what it lacks on the other; with several the first may move for a
    device, say, and take CPUs that only its new NUMA node had. Best-effort admits what it cannot align.
    """
    config = node.config
    if len(demand.containers) < 2:
        return False
    if config.topology_scope is not KubeletScope.CONTAINER or config.topology_policy not in STRICT:
        return False
    units = [kinds for _, part in demand.containers if (kinds := _kinds_of(part, node))]
    taken = [kind for kinds in units for kind in kinds]
    return len(set(taken)) > 1 and len(set(taken)) < len(taken)


def is_confined(demand: PodDemand, node: KubeletNode) -> bool:
    """Does an init container tie later containers to the NUMA node that it gets? Only where containers are aligned one by one."""
    # Without alignment, or with one hint for the whole pod, no container is tied to another's NUMA node.
    config = node.config
    if len(demand.containers) < 2:
        return False
    if config.topology_policy in (None, KubeletPolicy.NONE) or config.topology_scope is not KubeletScope.CONTAINER:
        return False
    held = False
    for container, part in demand.containers:
        own = (part.cpus and node.pins_cpus) or any(
            name in node.devices for name, count in part.devices.items() if count
        )
        if held and own:
            return True
        held = held or (bool(own) and container.kind is ContainerKind.INIT)
    return False


def hides_memory(demand: PodDemand, node: KubeletNode) -> bool:
    """
    Does an init container ask for a kind of memory of which the hint of the whole pod knows nothing, as no app container asks for it?

    Then more room may take the pod to a NUMA node without it (getPodRequestedResources in the kubelet's memorymanager/policy_static.go).
    """
    if not node.pins_memory or not node.aligns or node.config.topology_scope is not KubeletScope.POD:
        return False
    known = demand.pod.memory or {}
    return any(
        kind not in known for _, part in demand.containers for kind, amount in (part.memory or {}).items() if amount
    )


def _kinds_of(part: ContainerDemand, node: KubeletNode) -> list[str]:
    """What the managers tie to NUMA nodes for a container; CPUs last."""
    kinds = [name for name, count in part.devices.items() if count and name in node.devices]
    kinds += [kind for kind, amount in (part.memory or {}).items() if amount and node.pins_memory]
    return [*kinds, CPU] if part.cpus and node.pins_cpus else kinds


def binds_freely(demand: PodDemand, node: KubeletNode) -> bool:
    """Return whether the memory manager may bind memory of the pod to several NUMA nodes under this policy."""
    policy = node.config.topology_policy
    if not node.pins_memory or policy is KubeletPolicy.SINGLE_NUMA_NODE:
        return False
    if not any(part.memory for _, part in demand.containers):
        return False
    by_pod = node.config.topology_scope is KubeletScope.POD
    units = [demand.pod] if by_pod else [part for _, part in demand.containers]
    return policy is not KubeletPolicy.RESTRICTED or not all(_fits_one(unit, node) for unit in units)


def _fits_one(unit: ContainerDemand, node: KubeletNode) -> bool:
    """Return whether one empty NUMA node can hold the unit."""
    empty = KubeletState.empty(node).managers
    return any(fits_on(node, empty, numa, unit) for numa in node.machine.numa_ids)
