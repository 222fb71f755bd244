"""
Requests of a pod to the kubelet's resource managers, and the kubelet's node-level check.

The amounts are those that the managers generate hints for. They have no overhead and differ from the effective requests that a
scheduler sums.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from koord_numa.core.objects.request import Container, PodRequest, once_per_request
from koord_numa.core.objects.vocabulary import ContainerKind, KubeQos
from koord_numa.core.pod_resources import has_pod_level, kube_qos
from koord_numa.core.resources import (
    CPU,
    EPHEMERAL_STORAGE,
    MEMORY,
    MILLI,
    PODS,
    ResourceList,
    add,
    is_hugepages,
    total,
)
from koord_numa.core.value_objects import ValueObject, replace

TOPOLOGY_AFFINITY: Final = "TopologyAffinityError"
SMT_ALIGNMENT: Final = "SMTAlignmentError"
UNEXPECTED_ADMISSION: Final = "UnexpectedAdmissionError"
EMPTY_POD_SHARED_POOL: Final = "EmptyPodSharedPoolError"
REASONS: Final = (TOPOLOGY_AFFINITY, SMT_ALIGNMENT, UNEXPECTED_ADMISSION, EMPTY_POD_SHARED_POOL)
"""``status.reason`` of a pod that the resource managers rejected."""
OUT_OF: Final = "OutOf"
"""Prefix of ``status.reason`` of a pod that does not fit the node; the resource follows: ``OutOfcpu``."""

_LONG_RUNNING: Final = (ContainerKind.APP, ContainerKind.SIDECAR)
_NOT_DEVICES: Final = frozenset({CPU, MEMORY, EPHEMERAL_STORAGE})
_NAMED_FIRST: Final = (PODS, CPU, MEMORY, EPHEMERAL_STORAGE)


class AdmitRejection(ValueObject):
    """A rejection by the kubelet: ``reason`` is the pod's ``status.reason``, ``detail`` names the missing amounts."""

    reason: str
    detail: str


class ContainerDemand(ValueObject):
    """
    Request of one alignment unit: exclusive CPUs, bytes per memory type, devices per resource.

    ``memory`` is ``None`` where the memory manager ignores the unit. A device with quantity 0 is kept, because it still restricts the
    unit to NUMA nodes that have such devices.
    """

    cpus: int
    memory: Mapping[str, int] | None
    devices: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PodDemand:
    """
    Requests of a pod: one per container in the kubelet's order, and one for the whole pod.

    ``counts`` lists the exclusive CPUs of the containers that have any. ``lasting`` is the sum of CPUs (milli) and devices of the
    containers that keep running, ``lasting_memory`` of their bound memory. ``leftovers`` is the excess of init containers over ``lasting``.
    ``pod_level`` means that ``pod`` is what ``spec.resources`` requests, and that the managers allocate it as one under scope pod.
    """

    qos: KubeQos
    containers: tuple[tuple[Container, ContainerDemand], ...]
    pod: ContainerDemand
    pod_level: bool = False
    counts: tuple[int, ...] = field(init=False, repr=False, compare=False)
    lasting: ResourceList = field(init=False, repr=False, compare=False)
    leftovers: ResourceList = field(init=False, repr=False, compare=False)
    lasting_memory: ResourceList = field(init=False, repr=False, compare=False)
    memory_types: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        lasting = total(
            _cpus_and_devices(demand) for container, demand in self.containers if container.kind in _LONG_RUNNING
        )
        excess = {name: amount - lasting.get(name, 0) for name, amount in _cpus_and_devices(self.pod).items()}
        object.__setattr__(self, "counts", tuple(demand.cpus for _, demand in self.containers if demand.cpus))
        object.__setattr__(self, "lasting", lasting)
        object.__setattr__(self, "leftovers", {name: amount for name, amount in excess.items() if amount > 0})
        memory = total(
            demand.memory for container, demand in self.containers if demand.memory and container.kind in _LONG_RUNNING
        )
        object.__setattr__(self, "lasting_memory", memory)
        types = frozenset(name for _, demand in self.containers for name in demand.memory or ())
        object.__setattr__(self, "memory_types", types)

    def of_memory_types(self, listed: Collection[str]) -> "PodDemand":
        """Return the requests without the memory types that are not listed."""

        def of_unit(unit: ContainerDemand) -> ContainerDemand:
            if unit.memory is None:
                return unit
            kept = {name: amount for name, amount in unit.memory.items() if name in listed}
            return replace(unit, memory=kept or None)

        containers = tuple((container, of_unit(unit)) for container, unit in self.containers)
        return replace(self, containers=containers, pod=of_unit(self.pod))


@once_per_request
def pod_demand(request: PodRequest) -> PodDemand:
    """
    Return the requests of a pod and its containers.

    Containers of Guaranteed pods get exclusive CPUs if they request whole CPUs, and bound memory. Pods with pod-level resources get
    neither (policy_static.go of both managers while the gate PodLevelResourceManagers is off). Devices are given to every pod.

    A running pod counts with what the kubelet has allocated: a static kubelet rejects every resize of a Guaranteed pod as infeasible
    (until KEP-5554).
    """
    qos = kube_qos(request)
    pinned = qos is KubeQos.GUARANTEED and not has_pod_level(request)
    containers = tuple((container, _container_demand(container, pinned)) for container in _allocated(request))
    app_types = {
        resource
        for container, demand in containers
        if container.kind is ContainerKind.APP
        for resource in demand.memory or ()
    }
    memory = peak_of(containers, lambda demand: demand.memory or {})
    return PodDemand(
        qos=qos,
        containers=containers,
        pod=ContainerDemand(
            cpus=peak_of(containers, lambda demand: {CPU: demand.cpus}).get(CPU, 0),
            # Memory types that only init containers request are left out (getPodRequestedResources in the memory manager).
            memory={name: amount for name, amount in memory.items() if name in app_types} if pinned else None,
            devices=peak_of(containers, lambda demand: demand.devices),
        ),
    )


@once_per_request
def pod_level_demand(request: PodRequest) -> PodDemand:
    """
    Return the requests of a pod to managers with the gate PodLevelResourceManagers on (KEP-5526).

    Without pod-level resources the gate changes nothing. With them, the QoS class is that of ``spec.resources``, and a container gets
    exclusive CPUs and memory only if it has equal requests and limits for both (IsContainerEquivalentQOSGuaranteed). The pod as a whole
    requests ``spec.resources`` (podGuaranteedCPUs, getPodRequestedResources); devices cannot be requested there.
    """
    if not has_pod_level(request) or kube_qos(request) is not KubeQos.GUARANTEED:
        return pod_demand(request)
    containers = []
    for container in _allocated(request):
        demand = _container_demand(container, pinned=True)
        if not all(container.requests.get(name, 0) == container.limits.get(name) for name in (CPU, MEMORY)):
            demand = ContainerDemand(cpus=0, memory={}, devices=demand.devices)
        containers.append((container, demand))
    requests = request.pod_requests or {}
    milli = requests.get(CPU, 0)
    return PodDemand(
        qos=KubeQos.GUARANTEED,
        containers=tuple(containers),
        pod=ContainerDemand(
            cpus=milli // MILLI if milli % MILLI == 0 else 0,
            memory={name: amount for name, amount in sorted(requests.items()) if is_memory(name) and amount},
            devices=peak_of(tuple(containers), lambda demand: demand.devices),
        ),
        pod_level=True,
    )


def check_pod_pool(demand: PodDemand) -> str:
    """
    Return why the exclusive requests of containers leave too little of the pod's resources, or an empty string (scope pod).

    Every init container must fit beside the sidecars before it. A container without exclusive CPUs or memory needs a rest of every
    resource that the pod requests (validatePodScopeResources in both managers).
    """
    parts = [(container, part.cpus, part.memory or {}) for container, part in demand.containers]
    pod_cpus = {CPU: demand.pod.cpus} if demand.pod.cpus else {}
    return _check_pool(
        pod_cpus, [(container, {CPU: cpus} if cpus else {}) for container, cpus, _ in parts]
    ) or _check_pool(demand.pod.memory or {}, [(container, memory) for container, _, memory in parts])


def _check_pool(pool: ResourceList, parts: Sequence[tuple[Container, ResourceList]]) -> str:
    exclusive: dict[str, int] = {}
    shares = ""
    for container, amounts in parts:
        if container.kind is ContainerKind.INIT:
            for name, amount in pool.items():
                left = amount - exclusive.get(name, 0)
                if (amounts and amounts.get(name, 0) > left) or (not amounts and left <= 0):
                    return f"init container {container.name}: needed {amounts.get(name, 0)} of the pod's {name}, free {left}"
        elif amounts:
            exclusive = add(exclusive, amounts)
        else:
            shares = shares or container.name
    for name, amount in pool.items():
        if shares and exclusive.get(name, 0) >= amount:
            return f"exclusive containers leave no {name} of the pod to container {shares}"
    return ""


def _allocated(request: PodRequest) -> tuple[Container, ...]:
    return request.containers if request.allocated is None else request.allocated


def _container_demand(container: Container, pinned: bool) -> ContainerDemand:
    milli = container.requests.get(CPU, 0)
    return ContainerDemand(
        # A container that requests a fraction of a CPU runs in the shared pool.
        cpus=milli // MILLI if pinned and milli % MILLI == 0 else 0,
        memory={name: amount for name, amount in sorted(container.requests.items()) if is_memory(name)}
        if pinned
        else None,
        # The device manager reads limits: extended resources must have limits, and requests default to them.
        devices={name: amount for name, amount in sorted(container.limits.items()) if _may_be_device(name)},
    )


def _cpus_and_devices(demand: ContainerDemand) -> ResourceList:
    return {CPU: demand.cpus * MILLI, **demand.devices}


def is_memory(resource: str) -> bool:
    """Return whether the memory manager accounts for this resource."""
    return resource == MEMORY or is_hugepages(resource)


def _may_be_device(resource: str) -> bool:
    return resource not in _NOT_DEVICES and not is_hugepages(resource)


def peak_of(
    containers: tuple[tuple[Container, ContainerDemand], ...], amounts_of: Callable[[ContainerDemand], ResourceList]
) -> dict[str, int]:
    """
    Return the largest amounts that containers hold at the same time.

    The candidates are all long-running containers together, and every init container with the sidecars before it (podGuaranteedCPUs,
    getPodRequestedResources and PodLimits in the kubelet).
    """
    running: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container, demand in containers:
        for name, amount in amounts_of(demand).items():
            before = running.get(name, 0)
            # A sidecar counts as running from its place in the list on.
            if container.kind is not ContainerKind.INIT:
                running[name] = before + amount
            peak[name] = max(peak.get(name, 0), before + amount)
    return peak


def check_node_fit(requests: ResourceList, requested: ResourceList, allocatable: ResourceList) -> AdmitRejection | None:
    """
    Return the rejection for the first resource that the Node object's allocatable amounts do not cover, else ``None``.

    ``requested`` sums the pods on the node and counts them as ``pods``. Extended resources that the node does not list are not
    checked (removeMissingExtendedResources and fitsRequest in the kubelet's lifecycle/predicate.go).
    """
    short: dict[str, tuple[int, int]] = {}
    for resource, amount in {**requests, PODS: 1}.items():
        free = allocatable.get(resource, 0) - requested.get(resource, 0)
        if amount > free and amount and ("/" not in resource or resource in allocatable):
            short[resource] = amount, free
    if not short:
        return None
    # The kubelet names the first of these; the order of the rest must not depend on the order of a map.
    resource = next((name for name in _NAMED_FIRST if name in short), None) or min(short)
    amount, free = short[resource]
    return AdmitRejection(OUT_OF + resource, f"{resource}: needed {amount}, free {free}")
