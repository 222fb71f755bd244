"""
Table of all rules that can reject a pod, and the evaluation of a node by them.

The rules are the PreFilter and Filter plugins of kube-scheduler, and NUMA placement.

A new rule is a file in ``core/fit`` and a row here: metrics, messages and the events that wake rejected pods read the rows. Rows run in
order, the cheapest first; the first rejection of a node is its result.
"""

from collections.abc import Callable, Iterable, Mapping
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
from koord_numa.core.fit.pod_placement import fits_pod_affinity, fits_spread
from koord_numa.core.fit.volumes import (
    fits_volume_binding,
    fits_volume_limits,
    fits_volume_restrictions,
    fits_volume_zone,
    refuse_claims,
)
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import PodRequest, once_per_request
from koord_numa.core.objects.verdicts import Placement, Reason, Rejection, Unschedulable
from koord_numa.core.objects.volumes import Storage
from koord_numa.core.ordering import node_key
from koord_numa.core.scheduling.placement import place
from koord_numa.core.scheduling.request import Profile, SchedulingRequest, amounts_of_node, on_node
from koord_numa.core.scheduling.scorers import SCORERS, Score, preference_points, weight_of
from koord_numa.core.state.inventory import NodeSnapshot
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.value_objects import ValueObject


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


class Filter(ValueObject):
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


class PreFilter(ValueObject):
    """Rule about the pod only, evaluated once for all nodes."""

    plugin: str
    events: Mapping[Reason, Events]
    check: Callable[[SchedulingRequest], Rejection | None]


class Reserve(ValueObject):
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


def _of_storage(fits: Callable[[PodRequest, Node, Storage], Rejection | None]) -> Check:
    return lambda ask, seen: None if ask.storage is None else fits(ask.request, seen.node, ask.storage)


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
    Filter(
        "VolumeRestrictions", {Reason.DISK_CONFLICT: ON_VOLUMES}, Scope.CLUSTER, _of_storage(fits_volume_restrictions)
    ),
    Filter("NodeVolumeLimits", {Reason.VOLUME_LIMIT: ON_VOLUMES}, Scope.CLUSTER, _of_storage(fits_volume_limits)),
    Filter("VolumeBinding", {Reason.VOLUME: ON_VOLUMES}, Scope.CLUSTER, _of_storage(fits_volume_binding)),
    Filter("VolumeZone", {Reason.VOLUME_ZONE: ON_VOLUMES}, Scope.CLUSTER, _of_storage(fits_volume_zone)),
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


# Evaluation of a node: filters in ascending order of cost, then the placement, then the absolute scores.
#
# Results may be cached as long as the snapshot of the node does not change, except for filters of the scope ``CLUSTER``.

_NOTHING_OFFERED: Final = Rejection(Reason.NO_TOPOLOGY, "only the Node object is evaluated")
_NO_PODS: Final = Ledger()
_NAMES: Final = tuple(row.name for row in SCORERS)

EARNING: Final = "earning"
"""Key of the relevant scorers in ``SchedulingRequest.derived``."""


class ScoredPlacement(ValueObject, gc=False):
    """
    Placement on a node with its score.

    ``score`` is the sum of the weighted points; ``parts`` are the points by scorer, set in dry runs only.
    """

    score: int
    placement: Placement
    parts: Mapping[str, int] | None = None


def refuse_everywhere(ask: SchedulingRequest) -> Rejection | None:
    """Return the rejection of a pod that applies to every node: unsupported requirements are rejected, never ignored."""
    for row in PRE_FILTERS:
        if (refusal := row.check(ask)) is not None:
            return refusal
    return None


def evaluate(ask: SchedulingRequest, seen: NodeSnapshot, profile: Profile) -> ScoredPlacement | Rejection:
    """Return the placement of the pod on this node with the score of the absolute scorers, or the rejection."""
    return _evaluate(filters_of(ask.request), ask, seen, profile)


def evaluate_alone(ask: SchedulingRequest, seen: NodeSnapshot, profile: Profile) -> ScoredPlacement | Rejection:
    """Evaluate without rules that depend on other pods and volumes: the result may be cached until the node changes."""
    return _evaluate(node_filters_of(ask.request), ask, seen, profile)


def fits_node_object(ask: SchedulingRequest, node: Node) -> Rejection | None:
    """Evaluate the filters on the Node object only: name, cordon, taints and labels."""
    # A rejecting offer and an empty ledger, which filters of this scope do not read.
    seen = NodeSnapshot(node, _NOTHING_OFFERED, _NO_PODS)
    return _first_refusal(OF_NODE_OBJECT, ask, seen)


def score_parts(ask: SchedulingRequest, seen: NodeSnapshot, placement: Placement, profile: Profile) -> dict[str, int]:
    """
    Return the weighted points of each absolute scorer.

    The points of an exploring placement are 0, so that every node with a known result is preferred and a rejection is risked only if no
    other node is left, apart from the pod's own preferences.
    """
    # All zero, with every scorer, so that columns and scalars have the same parts.
    if placement.explores:
        return dict.fromkeys([row.name for row in SCORERS], 0)
    return dict(zip(_NAMES, _points(on_node(ask, seen.node), seen, placement, profile), strict=True))


def _points(ask: SchedulingRequest, seen: NodeSnapshot, placement: Placement, profile: Profile) -> list[int]:
    """Return the points of each scorer, in their order."""
    return [weight_of(row, profile) * row.score(ask, seen, placement, profile) for row in SCORERS]


def _score(ask: SchedulingRequest, seen: NodeSnapshot, placement: Placement, profile: Profile) -> int:
    """Return the sum of ``score_parts``."""
    if placement.explores:
        return 0
    points = 0
    # The scorers that may give points to the request on any node, with their weights.
    known: tuple[Profile, list[tuple[int, Score]]] | None = ask.derived.get(EARNING)
    if known is None or known[0] is not profile:
        found = [(weight_of(row, profile), row.score) for row in SCORERS if row.concerns(ask)]
        known = ask.derived[EARNING] = profile, found
    for weight, score in known[1]:
        points += weight * score(ask, seen, placement, profile)
    return points


def _evaluate(
    rows: Iterable[Filter], ask: SchedulingRequest, seen: NodeSnapshot, profile: Profile
) -> ScoredPlacement | Rejection:
    ask = on_node(ask, seen.node)
    refusal = _first_refusal(rows, ask, seen)
    if refusal is not None:
        return refusal
    placed = NUMA_RESERVE.place(ask, seen)
    if isinstance(placed, Rejection):
        return placed
    return ScoredPlacement(_score(ask, seen, placed, profile), placed)


def _first_refusal(rows: Iterable[Filter], ask: SchedulingRequest, seen: NodeSnapshot) -> Rejection | None:
    for row in rows:
        if (refusal := row.check(ask, seen)) is not None:
            return refusal
    return None


Answers = Mapping[str, ScoredPlacement | Rejection]
"""Results by node name."""


def answers(
    ask: SchedulingRequest, nodes: Iterable[NodeSnapshot], profile: Profile
) -> dict[str, ScoredPlacement | Rejection]:
    """Return every node's result with complete scores: preferences are normalized over the nodes that fit; ``parts`` has all points."""
    found: dict[str, ScoredPlacement | Rejection] = {}
    fitting: list[tuple[NodeSnapshot, Placement]] = []
    everywhere = refuse_everywhere(ask)
    for seen in nodes:
        answer = everywhere or evaluate(ask, seen, profile)
        found[seen.node.name] = answer
        if isinstance(answer, ScoredPlacement):
            fitting.append((seen, answer.placement))
    # After all nodes: normalization over the nodes that fit needs all raw scores.
    compared = preference_points(ask, [seen for seen, _ in fitting], profile)
    for index, (seen, placement) in enumerate(fitting):
        parts = score_parts(ask, seen, placement, profile)
        parts.update({name: points[index] for name, points in compared.items()})
        found[seen.node.name] = ScoredPlacement(sum(parts.values()), placement, parts)
    return found


def choose(answered: Answers) -> Placement | Unschedulable:
    """
    Return the placement on the best node, or every node's rejection.

    The highest score wins; among equal scores, the node whose name comes first. This is the only tie-break between nodes.
    """
    fitting = [answer for answer in answered.values() if isinstance(answer, ScoredPlacement)]
    if not fitting:
        return Unschedulable({name: no for name, no in answered.items() if isinstance(no, Rejection)})
    return min(fitting, key=lambda answer: node_key(answer.score, answer.placement.node)).placement


def decide(ask: SchedulingRequest, nodes: Iterable[NodeSnapshot], profile: Profile) -> Placement | Unschedulable:
    """Return the placement on the best of these nodes, or every node's rejection."""
    return choose(answers(ask, nodes, profile))
