"""
What NUMA nodes of a kubelet-owned node get back when pods leave. The kubelet chose their places, so only what is certain is credited.

Exporters publish what is available per NUMA node, not who uses the rest. A pod is *located* when its place follows from what is
known; one that is not is no victim, because no pod can say what its eviction frees.
"""

from collections.abc import Iterable, Mapping, Sequence

from koord_numa.core.kubelet.demand import PodDemand, pod_demand
from koord_numa.core.objects.node import NodeResourceTopology, Zone
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.resources import CPU, MILLI, ResourceList, total, without_zeros
from koord_numa.core.state.ledger import Holding
from koord_numa.core.value_objects import replace

Place = Mapping[int, ResourceList]
"""What a pod uses, by NUMA node. Empty for a pod that is tied to none."""


def locate(holding: Holding, topology: NodeResourceTopology, followed: int | None = None) -> Place | None:
    """
    Where a pod that the topology shows sits, by NUMA node; ``None`` when that is not certain.

    Known from ``followed``, the one NUMA node on which its kubelet is known to have it, if that is known; else from what was foreseen when
    it was placed, if that says one thing only; else where one NUMA node alone has that much in use and the policy allows one only. What
    init containers have left behind lies no pod knows where.
    """
    # A pod that is only known by name has no amounts to give back.
    if holding.request is None:
        return None
    demand = pod_demand(holding.request)
    tied = _tied(demand, topology.zones)
    if not tied:
        return {}
    # CPUs and devices of init containers stay held somewhere in the pod's NUMA nodes.
    if _leaves_something_behind(demand):
        return None
    foreseen = {numa: _only(amounts, tied) for numa, amounts in holding.numa}
    if followed is not None:
        foreseen = {followed: tied}
    if foreseen:
        # Charged on several NUMA nodes, the sum is more than the pod has: no single place follows.
        certain = without_zeros(total(foreseen.values())) == tied
        shown = all(_uses(zone, foreseen.get(zone.numa, {})) for zone in topology.zones)
        return foreseen if certain and shown else None
    return _deduced(demand, tied, topology)


def credited(topology: NodeResourceTopology, places: Iterable[Place]) -> NodeResourceTopology | None:
    """
    The topology as it will be published when the pods of these places are gone.

    ``None`` when that is more than is in use anywhere: then the places, or what is published, cannot be right.
    """
    back: dict[int, list[ResourceList]] = {}
    for place in places:
        for numa, amounts in place.items():
            back.setdefault(numa, []).append(amounts)
    if not back:
        return topology
    zones = []
    for zone in topology.zones:
        # ``pop``: what is left at the end names NUMA nodes that the topology does not have.
        more = total(back.pop(zone.numa, []))
        if not _uses(zone, more):
            return None
        zones.append(replace(zone, available={name: left + more.get(name, 0) for name, left in zone.available.items()}))
    return None if back else replace(topology, zones=tuple(zones))


def _tied(demand: PodDemand, zones: Sequence[Zone]) -> dict[str, int]:
    """What the pod asks for of resources that some zone lists; exporters list exactly what a kubelet ties to NUMA nodes."""
    wanted = {CPU: demand.pod.cpus * MILLI, **demand.pod.devices, **(demand.pod.memory or {})}
    # Only what some zone lists; the rest is not bound to NUMA nodes.
    return {name: amount for name, amount in wanted.items() if amount and any(z.allocatable.get(name) for z in zones)}


def _only(amounts: ResourceList, names: ResourceList) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if name in names}


def _uses(zone: Zone, amounts: ResourceList) -> bool:
    return all(zone.allocatable.get(n, 0) - zone.available.get(n, 0) >= amount for n, amount in amounts.items())


def _leaves_something_behind(demand: PodDemand) -> bool:
    return any(
        container.kind is ContainerKind.INIT and (part.cpus or any(part.devices.values()))
        for container, part in demand.containers
    )


def _deduced(demand: PodDemand, tied: ResourceList, topology: NodeResourceTopology) -> Place | None:
    zones = topology.zones
    if len(zones) > 1 and not _one_numa_only(demand, topology):
        return None
    possible = [zone.numa for zone in zones if _uses(zone, tied)]
    return {possible[0]: tied} if len(possible) == 1 else None


def _one_numa_only(demand: PodDemand, topology: NodeResourceTopology) -> bool:
    """Must everything that the pod holds be on one NUMA node, whichever it is?"""
    kubelet = topology.kubelet
    if kubelet.topology_policy is not KubeletPolicy.SINGLE_NUMA_NODE:
        return False
    units = sum(1 for _, part in demand.containers if part.cpus or part.memory or any(part.devices.values()))
    return kubelet.topology_scope is KubeletScope.POD or units == 1
