"""
Can a pod's containers be aligned, as the scheduler-plugins' NodeResourceTopologyMatch filter asks it of the published zones?

This is the public design's own rule, kept comparable with it: it acts only for ``single-numa-node`` and knows neither the
kubelet's init-container pinning nor its SMT and memory rules. Whether a kubelet admits is decided by ``core/kubelet``.
"""

from collections.abc import Iterable, Sequence

from koord_numa.core.objects.node import NodeResourceTopology, Zone
from koord_numa.core.objects.request import Container, PodRequest
from koord_numa.core.objects.verdicts import NumaNumbers, Reason, Rejection
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope, KubeQos
from koord_numa.core.resources import (
    CPU,
    EPHEMERAL_STORAGE,
    MEMORY,
    PODS,
    ResourceList,
    add,
    is_hugepages,
    is_native,
    largest,
    total,
)

ALWAYS_ALLOCATABLE = frozenset({CPU, MEMORY, PODS, EPHEMERAL_STORAGE})  # a node without them lists them as zero

_MESSAGES = {
    ContainerKind.INIT: "cannot align init container",
    ContainerKind.SIDECAR: "cannot align sidecar container",
    ContainerKind.APP: "cannot align container",
}


def is_numa_affine(resource: str) -> bool:
    """CPU, memory and huge pages: the resources whose amounts bind only Guaranteed pods (KEP-119)."""
    return resource in (CPU, MEMORY) or is_hugepages(resource)


def is_host_level(resource: str) -> bool:
    """Resources that need not be published per zone: storage and everything that is not Kubernetes' own."""
    return resource in ("ephemeral-storage", "storage") or not is_native(resource)


def aligned_request(pod: PodRequest) -> dict[str, int]:
    """
    The pod as one unit: the larger of all app containers together and any init container, plus overhead.

    As the plugin computes it; sidecars count like regular init containers here, and pod-level resources are not looked at.
    """
    request = total(c.requests for c in pod.containers if c.kind is ContainerKind.APP)
    # Each init container or sidecar alone against the sum of app containers: the plugin's GetPodEffectiveRequest knows no
    # overlap.
    for container in pod.containers:
        if container.kind is not ContainerKind.APP:
            request = largest(request, container.requests)
    return add(request, pod.overhead)


def fits_zones(
    pod: PodRequest, qos: KubeQos, topology: NodeResourceTopology | None, allocatable: ResourceList
) -> Rejection | None:
    """
    Would every unit of the pod fit into one zone? ``None`` means yes, or that nothing is asked of this node.

    ``allocatable`` is the node's; of it only the names matter. Zones are compared by what they publish as available.
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
    """Init containers one by one against untouched zones, then app containers that consume what they get."""
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
    """Does any container ask for a resource that is not Kubernetes' own?"""
    return any(not is_native(name) for container in containers for name in container.requests)


class _Zones:
    """The zones of one node while one pod's units are placed on them, each on the lowest NUMA id that fits."""

    def __init__(self, zones: Sequence[Zone], qos: KubeQos, allocatable: ResourceList) -> None:
        self._free = {zone.numa: dict(zone.available) for zone in zones}
        self._exact = qos is KubeQos.GUARANTEED
        self._allocatable = allocatable
        self._chosen = 0

    def refuse(self, message: str, request: ResourceList, name: str = "") -> Rejection | None:
        """Choose the zone for a request, or say why there is none."""
        candidates = sorted(self._free)
        for resource, quantity in sorted(request.items()):
            if not quantity:
                continue
            # The plugin checks against the Node object first and then against zones.
            if resource not in self._allocatable and resource not in ALWAYS_ALLOCATABLE:
                return self._rejection(message, resource, quantity, name)
            listing = [numa for numa, free in self._free.items() if resource in free]
            # Not listed by any zone and not tied to one: nothing to align (storage, network devices without a NUMA node).
            if not listing and is_host_level(resource):
                continue
            # Shares of CPU and memory bind only Guaranteed pods; devices bind all of them.
            binds = self._exact or not is_numa_affine(resource)
            candidates = [n for n in candidates if n in listing and (not binds or self._free[n][resource] >= quantity)]
            if not candidates:
                return self._rejection(message, resource, quantity, name)
        # Any zone for a request that no zone lists; nothing is taken from it then.
        self._chosen = candidates[0] if candidates else 0
        return None

    def take(self, request: ResourceList) -> None:
        """Consume a request on the zone just chosen; shared CPUs and memory of lesser pods consume nothing."""
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
