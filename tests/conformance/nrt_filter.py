"""
The NodeResourceTopologyMatch filter of scheduler-plugins: NUMA alignment of a pod with the published zones.

The rule applies only to ``single-numa-node`` and ignores the kubelet's init container pinning and its SMT and memory
rules. The product predicts the kubelet's admission instead (``core.kubelet``).
"""

from collections.abc import Iterable, Sequence

from koord_numa.core.objects.node import NodeResourceTopology, Zone
from koord_numa.core.objects.request import Container, PodRequest
from koord_numa.core.objects.verdicts import NumaNumbers, Reason, Rejection
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope, KubeQos
from koord_numa.core.resources import CPU, EPHEMERAL_STORAGE, MEMORY, PODS, ResourceList, is_hugepages, is_native
from koord_numa.core.score.least_numa_nodes import aligned_request

ALWAYS_ALLOCATABLE = frozenset(
    {CPU, MEMORY, PODS, EPHEMERAL_STORAGE}
)  # a node without these resources lists them as zero


_MESSAGES = {
    ContainerKind.INIT: "cannot align init container",
    ContainerKind.SIDECAR: "cannot align sidecar container",
    ContainerKind.APP: "cannot align container",
}


def is_numa_affine(resource: str) -> bool:
    """
    Return whether the resource is CPU, memory or huge pages.

    Their amounts are binding only for Guaranteed pods (KEP-119).
    """
    return resource in (CPU, MEMORY) or is_hugepages(resource)


def is_host_level(resource: str) -> bool:
    """Return whether zones need not publish the resource: storage, and resources that are not native to Kubernetes."""
    return resource in ("ephemeral-storage", "storage") or not is_native(resource)


def fits_zones(
    pod: PodRequest, qos: KubeQos, topology: NodeResourceTopology | None, allocatable: ResourceList
) -> Rejection | None:
    """
    Reject a node where a unit of the pod fits into no single zone.

    None means that the pod fits or that the filter does not apply.

    Zones are compared by their available amounts. Of ``allocatable``, the amounts of the node, only the names are used.
    """
    if qos is KubeQos.BEST_EFFORT and not asks_devices(pod.containers):
        return None
    if topology is None or topology.kubelet.topology_policy is not KubeletPolicy.SINGLE_NUMA_NODE:
        return None
    handle = _Zones(topology.zones, qos, allocatable)
    if topology.kubelet.topology_scope is KubeletScope.POD:
        return handle.refuse("cannot align pod", aligned_request(pod))
    return _fit_containers(pod.containers, handle)


def _fit_containers(containers: Sequence[Container], handle: "_Zones") -> Rejection | None:
    """Check init containers independently against full zones, then app containers, which consume zone amounts."""
    # Stable sort: init containers and sidecars first, in their order, then app containers.
    ordered = sorted(containers, key=lambda c: c.kind is ContainerKind.APP)
    for container in ordered:
        refusal = handle.refuse(_MESSAGES[container.kind], container.requests, container.name)
        if refusal is not None:
            return refusal
        if container.kind is ContainerKind.APP:
            handle.take(container.requests)
    return None


def asks_devices(containers: Iterable[Container]) -> bool:
    """Return whether any container requests a resource that is not native to Kubernetes."""
    return any(not is_native(name) for container in containers for name in container.requests)


class _Zones:
    """The zones of one node during the placement of one pod. Each unit gets the lowest NUMA id that fits."""

    def __init__(self, zones: Sequence[Zone], qos: KubeQos, allocatable: ResourceList) -> None:
        self._free = {zone.numa: dict(zone.available) for zone in zones}
        self._exact = qos is KubeQos.GUARANTEED
        self._allocatable = allocatable
        self._chosen = 0

    def refuse(self, message: str, request: ResourceList, name: str = "") -> Rejection | None:
        """Choose the zone for a request. Returns a rejection if no zone fits."""
        candidates = sorted(self._free)
        for resource, quantity in sorted(request.items()):
            if not quantity:
                continue
            # The plugin checks the Node object before the zones.
            if resource not in self._allocatable and resource not in ALWAYS_ALLOCATABLE:
                return self._rejection(message, resource, quantity, name)
            listing = [numa for numa, free in self._free.items() if resource in free]
            # Resources that no zone lists and that are not tied to a zone are not aligned (storage, network devices
            # without a NUMA node).
            if not listing and is_host_level(resource):
                continue
            # CPU and memory amounts are binding only for Guaranteed pods, device amounts for all pods.
            binds = self._exact or not is_numa_affine(resource)
            candidates = [n for n in candidates if n in listing and (not binds or self._free[n][resource] >= quantity)]
            if not candidates:
                return self._rejection(message, resource, quantity, name)
        # A request that no zone lists fits any zone and consumes nothing.
        self._chosen = candidates[0] if candidates else 0
        return None

    def take(self, request: ResourceList) -> None:
        """
        Consume a request in the chosen zone. Shared CPUs and memory of pods that are not Guaranteed consume nothing.
        """
        free = self._free.get(self._chosen, {})
        for resource, quantity in request.items():
            if resource in free and (self._exact or not is_numa_affine(resource)):
                free[resource] -= quantity

    def _rejection(self, message: str, resource: str, quantity: int, name: str) -> Rejection:
        numbers = tuple(
            NumaNumbers(numa=numa, resource=resource, total=free[resource], free=free[resource], needed=quantity)
            for numa, free in sorted(self._free.items())
            if resource in free
        )
        return Rejection(
            reason=Reason.NUMA_AFFINITY,
            message=message,
            detail=f"{message.removeprefix('cannot align ')}{f' {name}' if name else ''} finds no zone for {resource}",
            numbers=numbers,
        )
