"""
What a kubelet answers to a pod, and what a scheduler may conclude beforehand. Values only; nothing here decides.

What a container, or a whole pod, asks of the kubelet's CPU, memory and device managers.

These are the sums that hints are made for: without overhead, and different from the effective requests of a scheduler.

The kubelet's last admission check: does the pod fit into what the Node object says is allocatable?
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from koord_numa.core.objects.request import Container, PodRequest, once_per_request
from koord_numa.core.objects.vocabulary import ContainerKind, KubeQos
from koord_numa.core.pod_resources import has_pod_level, kube_qos
from koord_numa.core.resources import CPU, EPHEMERAL_STORAGE, MEMORY, MILLI, PODS, ResourceList, is_hugepages, total

TOPOLOGY_AFFINITY: Final = "TopologyAffinityError"


SMT_ALIGNMENT: Final = "SMTAlignmentError"


UNEXPECTED_ADMISSION: Final = "UnexpectedAdmissionError"


REASONS: Final = (TOPOLOGY_AFFINITY, SMT_ALIGNMENT, UNEXPECTED_ADMISSION)
"""What ``status.reason`` says of a pod that the resource managers refused."""


OUT_OF: Final = "OutOf"
"""Followed by the resource that does not fit the node: ``OutOfcpu``."""


@dataclass(frozen=True, slots=True)
class AdmitRejection:
    """The kubelet refuses: ``reason`` is the pod's ``status.reason``, ``detail`` says what was missing, with numbers."""

    reason: str
    detail: str


_LASTING: Final = (ContainerKind.APP, ContainerKind.SIDECAR)


_NO_DEVICE: Final = frozenset({CPU, MEMORY, EPHEMERAL_STORAGE})


@dataclass(frozen=True, slots=True)
class ContainerDemand:
    """
    What one alignment unit asks for: whole exclusive CPUs, bytes per memory type, devices per resource.

    ``memory`` is ``None`` when the memory manager leaves the unit alone. A device named with quantity 0 is kept: it still
    confines the unit to NUMA nodes that have such devices.
    """

    cpus: int
    memory: Mapping[str, int] | None
    devices: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PodDemand:
    """
    A pod as the managers see it: one demand per container in the kubelet's order, and one for the whole pod.

    ``counts`` are the exclusive CPUs of those containers that get any. ``lasting`` is what containers that keep running hold of CPUs
    (milli) and devices, ``leftovers`` what init containers held beyond that.
    """

    qos: KubeQos
    containers: tuple[tuple[Container, ContainerDemand], ...]
    pod: ContainerDemand
    counts: tuple[int, ...] = field(init=False, repr=False, compare=False)
    lasting: ResourceList = field(init=False, repr=False, compare=False)
    leftovers: ResourceList = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        lasting = total(_pinned(demand) for container, demand in self.containers if container.kind in _LASTING)
        peak = _pinned(self.pod)
        # Differences of amounts that containers hold at once: what init containers had beyond the containers that stay.
        beyond = {name: amount - lasting.get(name, 0) for name, amount in peak.items()}
        object.__setattr__(self, "counts", tuple(demand.cpus for _, demand in self.containers if demand.cpus))
        object.__setattr__(self, "lasting", lasting)
        object.__setattr__(self, "leftovers", {name: amount for name, amount in beyond.items() if amount > 0})


@once_per_request
def pod_demand(request: PodRequest) -> PodDemand:
    """
    The demands of a pod and its containers.

    Exclusive CPUs go to containers of Guaranteed pods that ask for whole CPUs; memory is bound for every container of a
    Guaranteed pod; pods with pod-level resources get neither (as policy_static.go of both managers with the feature
    PodLevelResourceManagers off); devices are given to any pod.
    """
    qos = kube_qos(request)
    # Exclusive CPUs and bound memory need QoS class Guaranteed; with pod-level resources the managers leave the pod alone.
    pinned = qos is KubeQos.GUARANTEED and not has_pod_level(request)
    containers = tuple((container, _demand(container, pinned)) for container in request.containers)
    app_types = {
        kind for container, demand in containers if container.kind is ContainerKind.APP for kind in demand.memory or ()
    }
    memory = at_once(containers, lambda demand: demand.memory or {})
    return PodDemand(
        qos=qos,
        containers=containers,
        pod=ContainerDemand(
            cpus=at_once(containers, lambda demand: {CPU: demand.cpus}).get(CPU, 0),
            # Types that only init containers ask for are left out, as getPodRequestedResources in the memory manager.
            memory={kind: amount for kind, amount in memory.items() if kind in app_types} if pinned else None,
            devices=at_once(containers, lambda demand: demand.devices),
        ),
    )


def _demand(container: Container, pinned: bool) -> ContainerDemand:
    milli = container.requests.get(CPU, 0)
    return ContainerDemand(
        # A count that is no whole number runs in the shared pool.
        cpus=milli // MILLI if pinned and milli % MILLI == 0 else 0,
        memory={kind: amount for kind, amount in sorted(container.requests.items()) if is_memory(kind)}
        if pinned
        else None,
        # By limits: extended resources must have limits, and requests default to them.
        devices={name: amount for name, amount in sorted(container.limits.items()) if _may_be_device(name)},
    )


def _pinned(demand: ContainerDemand) -> ResourceList:
    return {CPU: demand.cpus * MILLI, **demand.devices}


def is_memory(resource: str) -> bool:
    """Does the memory manager account for this resource?"""
    return resource == MEMORY or is_hugepages(resource)


def _may_be_device(resource: str) -> bool:
    return resource not in _NO_DEVICE and not is_hugepages(resource)


def at_once(
    containers: tuple[tuple[Container, ContainerDemand], ...], amounts_of: Callable[[ContainerDemand], ResourceList]
) -> dict[str, int]:
    """
    The most that containers hold at the same time: all that keep running, or an init container beside earlier sidecars.

    As podGuaranteedCPUs, getPodRequestedResources and PodLimits in the kubelet.
    """
    running: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container, demand in containers:
        for name, amount in amounts_of(demand).items():
            # Sidecars (restartable init containers) count as running from their place in the list on.
            before = running.get(name, 0)
            if container.kind is not ContainerKind.INIT:
                running[name] = before + amount
            peak[name] = max(peak.get(name, 0), before + amount)
    return peak


_FIRST: Final = (PODS, CPU, MEMORY, EPHEMERAL_STORAGE)


def check_node_fit(requests: ResourceList, requested: ResourceList, allocatable: ResourceList) -> AdmitRejection | None:
    """
    The refusal that names the first resource that is short, or ``None``.

    ``requested`` sums the pods present and counts them as ``pods``. Extended resources that the node does not list are not
    checked (fitsRequest of the scheduler framework, called by the kubelet after removeMissingExtendedResources).
    """
    short: dict[str, tuple[int, int]] = {}
    has, held = allocatable.get, requested.get
    pods = has(PODS, 0) - held(PODS, 0)
    if pods < 1:
        short[PODS] = 1, pods
    for resource, amount in requests.items():
        if amount <= has(resource, 0) - held(resource, 0) or not amount or resource == PODS:
            continue
        # An extended resource (with a slash) that the node does not list was removed by the kubelet before the check.
        if "/" not in resource or resource in allocatable:
            short[resource] = amount, has(resource, 0) - held(resource, 0)
    if not short:
        return None
    # ``PODS`` first, the rest in a fixed order: the first that is short names the reason, which must not depend on map order.
    resource = next((name for name in _FIRST if name in short), None) or min(short)
    amount, free = short[resource]
    return AdmitRejection(OUT_OF + resource, f"{resource}: needed {amount}, free {free}")
