"""What one pod asks for, as far as a decision depends on it. Pods with equal requests form a request class."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar

from koord_numa.core.claims.resource_claim import PodResourceClaim
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.gangs.model import GangRef
from koord_numa.core.objects.constraints import Constraints, LabelSelector
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
from koord_numa.core.objects.workloads import WorkloadKey
from koord_numa.core.resources import NOTHING, ResourceList
from koord_numa.core.value_objects import ValueObject, replace


class PodKey(ValueObject, gc=False):
    """One pod, once: a re-created pod of the same name has another uid. Prints as ``namespace/name``."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Container:
    """
    One container's requests and limits (requests already filled in from limits, as the API server does).

    ``claims`` are entries of the pod's ``resourceClaims`` that it uses, each with the request that it means, empty for all of them.
    """

    name: str
    kind: ContainerKind
    requests: ResourceList = field(default_factory=dict)
    limits: ResourceList = field(default_factory=dict)
    claims: tuple[tuple[str, str], ...] = ()


class CpuBind(ValueObject, gc=False):
    """The pod's CPU policies, from the annotation ``scheduling.koordinator.sh/resource-spec``."""

    required: CpuBindPolicy = CpuBindPolicy.NONE
    preferred: CpuBindPolicy = CpuBindPolicy.NONE
    exclusive: CpuExclusivePolicy = CpuExclusivePolicy.NONE


@dataclass(frozen=True, slots=True)
class NumaSpec:
    """The pod's own NUMA policy, from ``scheduling.koordinator.sh/numa-topology-spec``."""

    policy: NumaPolicy = NumaPolicy.NONE
    exclusive: NumaExclusive = NumaExclusive.NONE
    strategy: NumaAllocateStrategy | None = None  # counts on nodes that name none


@dataclass(frozen=True, slots=True)
class NumaSpread:
    """Distribution of the pods of one workload inside a node, from ``scheduling.koord-numa.io/numa-spread``."""

    selector: LabelSelector
    namespace: str = "default"
    scope: NumaSpreadScope = NumaSpreadScope.NUMA
    mode: NumaSpreadMode = NumaSpreadMode.SPREAD
    required: bool = False


@dataclass(frozen=True, slots=True)
class PodRequest:
    """
    Everything about a pod that may change where it can go. ``class_key`` is equal for pods that every node treats alike.

    ``containers`` come in the kubelet's order: init containers (sidecars among them) as listed, then app containers.
    ``pod_requests`` / ``pod_limits`` are pod-level resources (``spec.resources``), ``None`` when the pod has none. ``counted`` replaces the
    effective request of a running pod whose containers have not, or not yet, what the spec asks for (in-place resize). ``allocated`` are
    the containers with the requests that the kubelet has allocated, where these differ from the spec; the kubelet's resource managers
    allocated for them. ``gang`` decides when the pod goes, and not what a node makes of it: it is no part of the class.
    """

    containers: tuple[Container, ...] = ()
    overhead: ResourceList = field(default_factory=dict)
    pod_requests: ResourceList | None = None
    pod_limits: ResourceList | None = None
    qos: QosClass = QosClass.NONE
    priority_class: PriorityClass = PriorityClass.NONE  # from its label; see the requests' rules for the derived one
    priority: int = 0
    bind: CpuBind = CpuBind()
    numa: NumaSpec = NumaSpec()
    numa_spread: NumaSpread | None = None
    constraints: Constraints = Constraints()
    namespace: str = "default"
    labels: tuple[tuple[str, str], ...] = ()  # only those that matter to spread and affinity: sorted pairs
    replaceable: bool = True  # a controller replaces the pod when it is lost
    gang: GangRef | None = None
    counted: ResourceList | None = None  # what the pod counts for while a resize of it is under way
    allocated: tuple[Container, ...] | None = None
    derived: dict[Callable[["PodRequest"], Any], Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )  # what others worked out of it, by the function that did

    @property
    def class_key(self) -> Hashable:
        """A hashable value that is equal exactly for requests that are treated alike."""
        return _class_key(self)


Derived = TypeVar("Derived")


def once_per_request(derive: Callable[[PodRequest], Derived]) -> Callable[[PodRequest], Derived]:
    """A function of a request alone, worked out once: requests never change, and are asked for the same in every decision."""

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
    Those that decide whether the pod matches its own affinity or spread constraints.

    Labels that tell the pods of one StatefulSet apart do not, so its pods form one class. Whether terms of other pods pick the pod is for
    the class to say, not for the request.
    """
    demands = request.constraints
    selectors = [term.selector for term in demands.affinity] + [constraint.selector for constraint in demands.spread]
    keys = {need.key for selector in selectors if selector is not None for need in selector.requirements}
    return tuple(pair for pair in request.labels if pair[0] in keys)


@dataclass(frozen=True, slots=True)
class SharedPool:
    """The CPUs of one NUMA node that pods without own CPUs share."""

    socket: int
    numa: int
    cpus: CpuSet


class Assignment(ValueObject, gc=False):
    """What a bound pod's ``scheduling.koordinator.sh/resource-status`` says it holds."""

    cpus: CpuSet = EMPTY
    numa: tuple[tuple[int, ResourceList], ...] = ()  # amounts per NUMA node, ascending
    shared_pools: tuple[SharedPool, ...] = ()

    def on(self, numa: int) -> ResourceList:
        """The amounts held on one NUMA node."""
        return next((amounts for node, amounts in self.numa if node == numa), NOTHING)


class Pod(ValueObject, gc=False):
    """
    A pod as the cluster state keeps it: identity, request, and where it stands. Raw objects stop at ``wire/``.

    ``problem`` is non-empty when something about the pod is malformed: it is then never scheduled, and if it is bound it is
    counted by its plain amounts. ``created`` is seconds since the epoch, used only to order pods by age.
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
    mirror: bool = False  # a static pod's mirror: the kubelet runs it whatever we think
    labels: tuple[tuple[str, str], ...] = ()
    owner: str = ""  # uid of the controlling owner, to recognise a pod's siblings
    coined: bool = False  # the API server made its name at random for a controller: no earlier pod had it
    controller: WorkloadKey | None = (
        None  # that owner, of a pod without a node, if it is of a kind that is spread by default
    )
    assignment: Assignment | None = None
    preempts: bool = True  # preemptionPolicy: PreemptLowerPriority
    ready: bool = True  # condition Ready
    started: bool = False  # the kubelet has admitted it: phase Running or a container status exists
    started_at: float = (
        0.0  # when its kubelet took note of it, seconds since the epoch by that machine's clock; 0: unknown
    )
    problem: str = ""
    unknown_cpus: str = (
        ""  # why it is not known which CPUs of its own the pod holds: its resource-status cannot be read
    )
    resource_version: str = ""
    spec_text: str = ""  # the resource-spec annotation as found: writing it back must not lose what others put there
    never_rebound: bool = False  # annotation koord-numa/rebind: "false": no automatic rebind of its node
    stale_status: bool = False  # not bound, yet it carries a resource-status: copied from another pod
    resource_claims: tuple[PodResourceClaim, ...] = ()
    extended_claim: str = ""  # the claim, by name, that has devices for its extended resources, as its status says
    explores: tuple[str, ...] = ()  # options of its kubelet that it was placed to find out about
    images: tuple[str, ...] = ()  # of a pod without a node: one normalised name for each container and image volume

    @property
    def finished(self) -> bool:
        """A finished pod holds nothing any more."""
        return self.phase in ("Succeeded", "Failed")

    def placed(self, node: str, assignment: Assignment) -> "Pod":
        """The pod with a node and what it was given there."""
        return replace(self, node=node, assignment=assignment)
