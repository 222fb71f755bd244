"""
Table of all rules that can reject a pod: PreFilter and Filter plugins of kube-scheduler, and the NUMA placement.

A new rule is a file in ``core/fit`` and a row here: metrics, messages and the events that wake rejected pods read the rows. Rows run in
order, the cheapest first; the first rejection of a node is its result.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from koord_numa.core.devices import device_demand
from koord_numa.core.fit.node_filters import (
    fits_features,
    fits_node_affinity,
    fits_node_name,
    fits_ports,
    fits_resources,
    fits_taints,
    fits_unschedulable,
)
from koord_numa.core.fit.pod_affinity import fits_pod_affinity
from koord_numa.core.fit.spread import fits_spread
from koord_numa.core.fit.volume_binding import fits_volume_binding
from koord_numa.core.fit.volumes import fits_volume_limits, fits_volume_restrictions, fits_volume_zone, refuse_claims
from koord_numa.core.objects.request import PodRequest, once_per_request
from koord_numa.core.objects.verdicts import Placement, Reason, Rejection
from koord_numa.core.objects.volumes import Storage
from koord_numa.core.scheduling.placement import place
from koord_numa.core.scheduling.request import SchedulingRequest, amounts_of_node
from koord_numa.core.state.node_snapshot import NodeSnapshot


class ClusterEvent(Enum):
    """Change that may make an unschedulable pod schedulable."""

    NODE_ADDED = "node added"
    NODE_CHANGED = "node changed"  # labels, taints, cordon, allocatable
    TOPOLOGY_CHANGED = "topology changed"
    CAPACITY_FREED = "capacity freed"
    POD_BOUND = "pod bound"  # for affinity or topology spread
    POD_GONE = "pod gone"
    NAMESPACE_CHANGED = "namespace changed"  # changed labels, which affinity terms may select
    VOLUME_CHANGED = "volume changed"
    CLAIM_CHANGED = "claim changed"  # devices, their classes, or resource claims
    NODE_UNLOCKED = "node unlocked"
    BACKOFF_ENDED = "node backoff ended"  # after a rejection by a kubelet
    BINDS_DONE = "binds done"  # the bind queue of a node is short again


Events = frozenset[ClusterEvent]

ON_NODE: Final[Events] = frozenset({ClusterEvent.NODE_ADDED, ClusterEvent.NODE_CHANGED})
ON_CAPACITY: Final[Events] = ON_NODE | {ClusterEvent.TOPOLOGY_CHANGED, ClusterEvent.CAPACITY_FREED}
ON_TOPOLOGY: Final[Events] = ON_NODE | {ClusterEvent.TOPOLOGY_CHANGED}
ON_PODS: Final[Events] = ON_NODE | {ClusterEvent.POD_BOUND, ClusterEvent.POD_GONE}
ON_CLAIMS: Final[Events] = ON_NODE | {ClusterEvent.CLAIM_CHANGED}
ON_VOLUMES: Final[Events] = ON_NODE | {ClusterEvent.VOLUME_CHANGED, ClusterEvent.POD_GONE}


Check = Callable[[SchedulingRequest, NodeSnapshot], Rejection | None]


class Scope(Enum):
    """Data that a filter's result depends on, which determines how long it may be cached."""

    NODE_OBJECT = "the Node object alone"
    NODE = "the node and what is on it"
    CLUSTER = "pods on other nodes, or volumes"


@dataclass(frozen=True, slots=True)
class Filter:
    """
    Filter rule. ``plugin`` is its name in metrics, as in kube-scheduler or Koordinator if they have the rule.

    ``events`` maps each reason of the rule to the changes that may resolve the rejection (``EventsToRegister`` of kube-scheduler).
    ``concerns`` is false for requests that the rule never rejects: it is not evaluated for them.
    """

    plugin: str
    events: Mapping[Reason, Events]
    scope: Scope
    check: Check
    concerns: Callable[[PodRequest], bool] = lambda _: True


@dataclass(frozen=True, slots=True)
class PreFilter:
    """Rule about the pod only, evaluated once for all nodes."""

    plugin: str
    events: Mapping[Reason, Events]
    check: Callable[[SchedulingRequest], Rejection | None]


@dataclass(frozen=True, slots=True)
class Reserve:
    """Last rule: the placement on the node, or the rejection."""

    plugin: str
    events: Mapping[Reason, Events]
    place: Callable[[SchedulingRequest, NodeSnapshot], Placement | Rejection]


def _supported(ask: SchedulingRequest) -> Rejection | None:
    demands = ask.request.constraints
    if not demands.unsupported:
        return None
    why = "; ".join(demands.unsupported)
    return Rejection(Reason.UNSUPPORTED, f"koord-numa does not support: {why}", resolvable=False)


def _claims_usable(ask: SchedulingRequest) -> Rejection | None:
    # Without a list of volumes a pod with claims is not placed: the result would be unreliable.
    if not ask.request.constraints.claims:
        return None
    return refuse_claims(ask.request, ask.storage or Storage(known=False))


def _resource_claims_usable(ask: SchedulingRequest) -> Rejection | None:
    if ask.claims is None or not ask.claims.problem:
        return None
    return Rejection(Reason.RESOURCE_CLAIMS, ask.claims.problem, resolvable=False)


def _device_requests_valid(ask: SchedulingRequest) -> Rejection | None:
    demand = device_demand(ask.request)
    return Rejection(Reason.DEVICES, demand, resolvable=False) if isinstance(demand, str) else None


def _well_formed(_ask: SchedulingRequest, seen: NodeSnapshot) -> Rejection | None:
    if not seen.node.problem:
        return None
    why = "node(s) had malformed labels or annotations"
    return Rejection(Reason.BAD_NODE, why, seen.node.problem, resolvable=False)


def _offers(_ask: SchedulingRequest, seen: NodeSnapshot) -> Rejection | None:
    # Barred first: a lock or distrust is temporary and more specific than the offer of the node.
    return seen.barred or (seen.offer if isinstance(seen.offer, Rejection) else None)


def _resources(ask: SchedulingRequest, seen: NodeSnapshot) -> Rejection | None:
    return fits_resources(amounts_of_node(ask.amounts, seen), seen.allocatable, seen.ledger.amounts, len(seen.ledger))


def _disks(ask: SchedulingRequest, seen: NodeSnapshot) -> Rejection | None:
    return None if ask.storage is None else fits_volume_restrictions(ask.request, seen.node, ask.storage)


def _volume_limits(ask: SchedulingRequest, seen: NodeSnapshot) -> Rejection | None:
    return None if ask.storage is None else fits_volume_limits(ask.request, seen.node, ask.storage)


def _volume_binding(ask: SchedulingRequest, seen: NodeSnapshot) -> Rejection | None:
    return None if ask.storage is None else fits_volume_binding(ask.request, seen.node, ask.storage)


def _volume_zone(ask: SchedulingRequest, seen: NodeSnapshot) -> Rejection | None:
    return None if ask.storage is None else fits_volume_zone(ask.request, seen.node, ask.storage)


def _spread(ask: SchedulingRequest, seen: NodeSnapshot) -> Rejection | None:
    if ask.spread is None:
        return None
    return fits_spread(ask.request, seen.node, ask.spread, seen.nominated)


def _pod_affinity(ask: SchedulingRequest, seen: NodeSnapshot) -> Rejection | None:
    if ask.neighbours is None:
        return None
    return fits_pod_affinity(ask.request, seen.node, ask.neighbours, seen.nominated)


PRE_FILTERS: Final = (
    PreFilter("UnsupportedFields", {Reason.UNSUPPORTED: frozenset({ClusterEvent.NODE_ADDED})}, _supported),
    PreFilter("VolumeBinding", {Reason.VOLUME: ON_VOLUMES}, _claims_usable),
    # Devices are allocated last, on the nodes that all other rules accept: ``engine/claims/late_check.py``.
    PreFilter(
        "DynamicResources",
        {Reason.RESOURCE_CLAIMS: ON_CLAIMS, Reason.CLAIM_ALIGNMENT: ON_CLAIMS | ON_CAPACITY},
        _resource_claims_usable,
    ),
    PreFilter("DeviceShare", {Reason.DEVICES: ON_CAPACITY}, _device_requests_valid),
)

FILTERS: Final = (
    Filter("NodeValidity", {Reason.BAD_NODE: ON_NODE}, Scope.NODE_OBJECT, _well_formed),
    Filter(
        "NodeName",
        {Reason.NODE_NAME: frozenset({ClusterEvent.NODE_ADDED})},
        Scope.NODE_OBJECT,
        lambda ask, seen: fits_node_name(ask.request, seen.node),
        lambda request: bool(request.constraints.node_name),
    ),
    Filter(
        "NodeUnschedulable",
        {Reason.UNSCHEDULABLE: ON_NODE},
        Scope.NODE_OBJECT,
        lambda ask, seen: fits_unschedulable(ask.request, seen.node),
    ),
    Filter(
        "TaintToleration",
        {Reason.TAINT: ON_NODE},
        Scope.NODE_OBJECT,
        lambda ask, seen: fits_taints(ask.request, seen.node),
    ),
    Filter(
        "NodeAffinity",
        {Reason.NODE_AFFINITY: ON_NODE},
        Scope.NODE_OBJECT,
        lambda ask, seen: fits_node_affinity(ask.request, seen.node),
        lambda request: bool(request.constraints.node_selector) or request.constraints.node_terms is not None,
    ),
    Filter(
        "NodeDeclaredFeatures",
        {Reason.NODE_FEATURE: ON_NODE},
        Scope.NODE_OBJECT,
        lambda ask, seen: fits_features(ask.request, seen.node),
        lambda request: bool(request.constraints.features),
    ),
    Filter(
        "NodeResourceTopology",
        {
            Reason.LOCKED: frozenset({ClusterEvent.NODE_ADDED, ClusterEvent.NODE_UNLOCKED}),
            Reason.UNTRUSTED: ON_CAPACITY,
            Reason.BAD_TOPOLOGY: ON_TOPOLOGY,
        },
        Scope.NODE,
        _offers,
    ),
    Filter(
        "NodePorts",
        {Reason.HOST_PORT: frozenset({ClusterEvent.NODE_ADDED, ClusterEvent.CAPACITY_FREED})},
        Scope.NODE,
        lambda ask, seen: fits_ports(ask.request, seen.ports),
        lambda request: bool(request.constraints.host_ports),
    ),
    Filter("NodeResourcesFit", {Reason.RESOURCES: ON_CAPACITY}, Scope.NODE, _resources),
    Filter("VolumeRestrictions", {Reason.DISK_CONFLICT: ON_VOLUMES}, Scope.CLUSTER, _disks),
    Filter("NodeVolumeLimits", {Reason.VOLUME_LIMIT: ON_VOLUMES}, Scope.CLUSTER, _volume_limits),
    Filter("VolumeBinding", {Reason.VOLUME: ON_VOLUMES}, Scope.CLUSTER, _volume_binding),
    Filter("VolumeZone", {Reason.VOLUME_ZONE: ON_VOLUMES}, Scope.CLUSTER, _volume_zone),
    Filter("PodTopologySpread", {Reason.SPREAD: ON_PODS}, Scope.CLUSTER, _spread),
    Filter(
        "InterPodAffinity",
        {Reason.POD_AFFINITY: ON_PODS | {ClusterEvent.NAMESPACE_CHANGED}},
        Scope.CLUSTER,
        _pod_affinity,
    ),
)

NUMA_RESERVE: Final = Reserve(
    "NodeNUMAResource",
    {
        Reason.CPUS: ON_CAPACITY,
        Reason.CPU_COUNT: ON_TOPOLOGY,
        Reason.BIND_POLICY: ON_TOPOLOGY,
        Reason.NUMA_POLICY: ON_TOPOLOGY,
        Reason.NUMA_AFFINITY: ON_CAPACITY,
        Reason.NUMA_SPREAD: ON_CAPACITY | ON_PODS,
        Reason.NO_TOPOLOGY: ON_TOPOLOGY,
        Reason.BAD_POD: ON_NODE,
        Reason.KUBELET_ALIGNMENT: ON_CAPACITY,
        # Whether whole cores are required is inferred from the pods on the node: a pod that leaves may change it.
        Reason.KUBELET_SMT: ON_CAPACITY,
        Reason.KUBELET_ALLOCATION: ON_CAPACITY,
    },
    place,
)

ROWS: Final[tuple[PreFilter | Filter | Reserve, ...]] = (*PRE_FILTERS, *FILTERS, NUMA_RESERVE)

EVENTS: Final[Mapping[Reason, Events]] = {reason: events for row in ROWS for reason, events in row.events.items()}
"""For every rejection reason, the changes that may resolve it on the same node, or add another node."""

PLUGINS: Final[Mapping[Reason, str]] = {reason: row.plugin for row in ROWS for reason in row.events}
"""For every reason, its plugin: the label ``plugin`` of metrics."""

OF_NODE_OBJECT: Final = tuple(row for row in FILTERS if row.scope is Scope.NODE_OBJECT)


@once_per_request
def filters_of(request: PodRequest) -> tuple[Filter, ...]:
    """Return the filters that may reject this request, in their order."""
    return tuple(row for row in FILTERS if row.concerns(request))


@once_per_request
def node_filters_of(request: PodRequest) -> tuple[Filter, ...]:
    """Return the filters of ``filters_of`` that depend on one node only."""
    return tuple(row for row in filters_of(request) if row.scope is not Scope.CLUSTER)
