"""Request of a pod as far as decisions depend on it. Pods with equal requests form a request class."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.claims import PodResourceClaim
from koord_numa.core.objects.constraints import Constraints, LabelSelector, WorkloadKey
from koord_numa.core.objects.devices import NO_DEVICE_SPEC, DeviceGrants, DeviceSpec
from koord_numa.core.objects.gangs import GangRef
from koord_numa.core.objects.vocabulary import (
    ContainerKind,
    CpuBindPolicy,
    CpuExclusivePolicy,
    NumaAllocateStrategy,
    NumaExclusive,
    NumaPolicy,
    NumaSpreadMode,
    NumaSpreadScope,
    PriorityClass,
    QosClass,
)
from koord_numa.core.resources import NOTHING, ResourceList
from koord_numa.core.value_objects import ValueObject, replace, value_field


class PodKey(ValueObject, gc=False):
    """Identity of a pod: a recreated pod of the same name has another UID. Prints as ``namespace/name``."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Container(ValueObject):
    """
    Requests and limits of a container (requests are defaulted from limits, as by the API server).

    ``claims`` are the entries of the pod's ``resourceClaims`` that it uses, each with the name of the request, empty for all requests.
    """

    name: str
    kind: ContainerKind
    requests: ResourceList = value_field(default_factory=dict)
    limits: ResourceList = value_field(default_factory=dict)
    claims: tuple[tuple[str, str], ...] = ()


class CpuBind(ValueObject, gc=False):
    """CPU policies of the pod, from the annotation ``scheduling.koordinator.sh/resource-spec``."""

    required: CpuBindPolicy = CpuBindPolicy.NONE
    preferred: CpuBindPolicy = CpuBindPolicy.NONE
    exclusive: CpuExclusivePolicy = CpuExclusivePolicy.NONE
    isolated: bool = False  # prefers CPUs that the kernel isolates (annotation cpu-isolation)


class NumaSpec(ValueObject):
    """NUMA policy of the pod, from ``scheduling.koordinator.sh/numa-topology-spec``."""

    policy: NumaPolicy = NumaPolicy.NONE
    exclusive: NumaExclusive = NumaExclusive.NONE
    strategy: NumaAllocateStrategy | None = None  # applies to nodes that set none


class NumaSpread(ValueObject):
    """Distribution of the pods of one workload inside a node, from ``scheduling.koord-numa.io/numa-spread``."""

    selector: LabelSelector
    namespace: str = "default"
    scope: NumaSpreadScope = NumaSpreadScope.NUMA
    mode: NumaSpreadMode = NumaSpreadMode.SPREAD
    required: bool = False


@dataclass(frozen=True, slots=True)
class PodRequest:
    """
    Properties of a pod that affect its placement. ``class_key`` is equal for pods that every node treats alike.

    ``containers`` are in the kubelet's order: init containers (including sidecars) as listed, then app containers. ``pod_requests`` and
    ``pod_limits`` are pod-level resources (``spec.resources``), ``None`` without. ``counted`` replaces the effective request of a running
    pod whose containers do not have the resources of the spec, or not yet (in-place resize). ``allocated`` are the containers with the
    requests that the kubelet has allocated, if these differ from the spec; the kubelet's resource managers allocated for them. ``gang``
    determines when the pod is placed, not the result of a node, and is not part of the class.
    """

    containers: tuple[Container, ...] = ()
    overhead: ResourceList = field(default_factory=dict)
    pod_requests: ResourceList | None = None
    pod_limits: ResourceList | None = None
    qos: QosClass = QosClass.NONE
    priority_class: PriorityClass = (
        PriorityClass.NONE
    )  # from its label; the derived class follows the rules of requests
    priority: int = 0
    bind: CpuBind = CpuBind()
    numa: NumaSpec = NumaSpec()
    numa_spread: NumaSpread | None = None
    devices: DeviceSpec = NO_DEVICE_SPEC
    constraints: Constraints = Constraints()
    namespace: str = "default"
    labels: tuple[tuple[str, str], ...] = ()  # sorted pairs, only those that affinity and spread depend on
    replaceable: bool = True  # a controller recreates the pod when it is lost
    gang: GangRef | None = None
    counted: ResourceList | None = None  # amounts that the pod counts for during a resize
    allocated: tuple[Container, ...] | None = None
    derived: dict[Callable[["PodRequest"], Any], Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )  # cached results, by the function that computed them

    @property
    def class_key(self) -> Hashable:
        """Hashable key that is equal exactly for requests that are treated alike."""
        return _class_key(self)


Derived = TypeVar("Derived")


def once_per_request(derive: Callable[[PodRequest], Derived]) -> Callable[[PodRequest], Derived]:
    """Cache a function of a request in the request: requests are immutable and evaluated in every decision."""

    @wraps(derive)
    def kept(request: PodRequest) -> Derived:
        found: Derived
        try:
            found = request.derived[derive]
        except KeyError:
            found = request.derived[derive] = derive(request)
        return found

    return kept


@once_per_request
def _class_key(request: PodRequest) -> Hashable:
    return (
        tuple((c.name, c.kind, _pairs(c.requests), _pairs(c.limits)) for c in request.containers),
        _pairs(request.overhead),
        None if request.pod_requests is None else _pairs(request.pod_requests),
        None if request.pod_limits is None else _pairs(request.pod_limits),
        request.qos,
        request.priority_class,
        request.priority,
        request.bind,
        request.numa,
        request.numa_spread,
        request.devices,
        request.replaceable,
        request.constraints,
        request.namespace if _cares_for_pods(request.constraints) or request.constraints.claims else "",
        _labels_that_matter(request),
    )


def _pairs(amounts: ResourceList) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(amounts.items()))


def _cares_for_pods(demands: Constraints) -> bool:
    return bool(
        demands.affinity
        or demands.anti_affinity
        or demands.preferred_affinity
        or demands.preferred_anti_affinity
        or demands.spread
    )


def _labels_that_matter(request: PodRequest) -> tuple[tuple[str, str], ...]:
    """
    Return the labels that decide whether the pod matches its own affinity or spread constraints.

    Labels that differ between the pods of a StatefulSet are not included, so that its pods form one class. The class, not the request,
    includes which terms of other pods select the pod.
    """
    demands = request.constraints
    selectors = [term.selector for term in demands.affinity] + [constraint.selector for constraint in demands.spread]
    keys = {need.key for selector in selectors if selector is not None for need in selector.requirements}
    return tuple(pair for pair in request.labels if pair[0] in keys)


class SharedPool(ValueObject):
    """CPUs of a NUMA node that pods without exclusive CPUs share."""

    socket: int
    numa: int
    cpus: CpuSet


class Assignment(ValueObject, gc=False):
    """Resources of a bound pod by its ``scheduling.koordinator.sh/resource-status``."""

    cpus: CpuSet = EMPTY
    numa: tuple[tuple[int, ResourceList], ...] = ()  # amounts per NUMA node, ascending
    shared_pools: tuple[SharedPool, ...] = ()

    def on(self, numa: int) -> ResourceList:
        """Return the amounts held on a NUMA node."""
        return next((amounts for node, amounts in self.numa if node == numa), NOTHING)


class Pod(ValueObject, gc=False):
    """
    Pod in the cluster state: identity, request, and status. Raw objects are converted in ``wire/``.

    ``problem`` is non-empty if the pod is malformed: it is never scheduled, and if it is bound it is counted by its plain amounts.
    ``created`` is in seconds since the epoch and is used only to order pods by age.
    """

    key: PodKey
    request: PodRequest
    scheduler: str = "default-scheduler"
    node: str = ""
    nominated: str = ""
    phase: str = "Pending"
    reason: str = ""  # status.reason, such as TopologyAffinityError
    created: float = 0.0
    deleting: bool = False
    gated: bool = False
    mirror: bool = False  # mirror of a static pod, which the kubelet runs independently of the scheduler
    labels: tuple[tuple[str, str], ...] = ()
    owner: str = ""  # UID of the controlling owner, to recognize siblings
    coined: bool = False  # the API server generated its name for a controller: no earlier pod had it
    controller: WorkloadKey | None = (
        None  # that owner, for a pod without a node and an owner kind that is spread by default
    )
    assignment: Assignment | None = None
    preempts: bool = True  # preemptionPolicy: PreemptLowerPriority
    ready: bool = True  # condition Ready
    started: bool = False  # the kubelet has admitted it: phase Running or a container status exists
    started_at: float = 0.0  # when its kubelet processed it, seconds since the epoch by the machine's clock; 0: unknown
    problem: str = ""
    unknown_cpus: str = ""  # why the exclusive CPUs of the pod are not known: its resource-status is unreadable
    devices: DeviceGrants = ()  # of a pod with a node, by its device-allocated
    unknown_devices: str = ""  # why they are not known: the annotation is unreadable
    stale_devices: bool = False  # not bound, but has a device-allocated: copied from another pod
    resource_version: str = ""
    spec_text: str = ""  # the resource-spec annotation as read: writing it must preserve the values of other writers
    never_rebound: bool = False  # annotation koord-numa/rebind: "false": no automatic rebind of its node
    stale_status: bool = False  # not bound, but has a resource-status: copied from another pod
    resource_claims: tuple[PodResourceClaim, ...] = ()
    extended_claim: str = ""  # name of the claim with devices for its extended resources, from its status
    explores: tuple[str, ...] = ()  # kubelet options that its placement explores
    images: tuple[str, ...] = ()  # for a pod without a node: a normalized name for each container and image volume

    @property
    def finished(self) -> bool:
        """True if the pod has finished and holds nothing."""
        return self.phase in ("Succeeded", "Failed")

    def placed(self, node: str, assignment: Assignment, devices: DeviceGrants = ()) -> "Pod":
        """Return the pod with a node, its assignment and its devices."""
        return replace(self, node=node, assignment=assignment, devices=devices)
