"""Input of a decision: a pod's request under its profile, and the relevant pods and volumes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from koord_numa.core.allocation.allocate import demand_of
from koord_numa.core.allocation.demand import AllocateOptions, AllocationDemand
from koord_numa.core.claims import claims_at, containers_without, served_by_claim
from koord_numa.core.devices import TYPE_OF
from koord_numa.core.fit.pod_placement import PodAffinityCounts, SpreadCounts
from koord_numa.core.objects.claims import PodClaims
from koord_numa.core.objects.node import Node, PodImages
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.objects.vocabulary import NodeScoring, ScoringType, UnknownKubeletOptions
from koord_numa.core.objects.volumes import Storage
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import CPU, MEMORY, ResourceList
from koord_numa.core.state.inventory import NodeSnapshot
from koord_numa.core.value_objects import replace, value_object


@dataclass(frozen=True, slots=True)
class Profile:
    """
    Configuration of a scheduler name for decisions.

    ``scoring`` and ``weights`` (by resource) are the strategy of the ``resources`` scorer, ``node_scoring`` is the method of the ``numa``
    scorer. ``score_weights`` overrides the default weights of scorers by name. ``numa_method`` is the effective method of the ``numa``
    scorer: a LeastNUMANodes strategy implies it (KEP-454).
    """

    allocate: AllocateOptions = field(default_factory=AllocateOptions)
    node_scoring: NodeScoring = NodeScoring.FEWEST_NUMA_NODES
    scoring: ScoringType = ScoringType.MOST_ALLOCATED
    weights: Mapping[str, int] = field(default_factory=lambda: {CPU: 1, MEMORY: 1})
    score_weights: Mapping[str, int] = field(default_factory=dict)
    kubelet_options: UnknownKubeletOptions = UnknownKubeletOptions.EXPLORE
    numa_method: NodeScoring = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_count = self.scoring is ScoringType.LEAST_NUMA_NODES
        object.__setattr__(self, "numa_method", NodeScoring.LEAST_NUMA_NODES if by_count else self.node_scoring)


@value_object
class SchedulingRequest:
    """
    Request of a pod, its effective amounts, and its demand where the scheduler allocates CPUs.

    ``neighbours`` and ``spread`` are counts of placed pods by topology domain, ``storage`` is the state of volumes; each is ``None`` for a
    pod that does not depend on it. ``claims`` are the demands of the pod's resource claims. ``images`` belong to a single pod, because pods
    with equal requests may have different images. ``by_claim`` are amounts that a node serves by claim. ``variants`` caches the results of
    ``on_node`` by the resources that are served by claim; ``derived`` caches derived data of other modules by key.
    """

    request: PodRequest
    amounts: ResourceList
    demand: AllocationDemand | Rejection
    neighbours: PodAffinityCounts | None = None
    spread: SpreadCounts | None = None
    storage: Storage | None = None
    claims: PodClaims | None = None
    images: PodImages | None = None
    kubelet_options: UnknownKubeletOptions = UnknownKubeletOptions.EXPLORE
    by_claim: ResourceList = field(default_factory=dict)
    variants: dict[frozenset[str], "SchedulingRequest"] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    derived: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)


def scheduling_request(request: PodRequest, profile: Profile) -> SchedulingRequest:
    """Return the request of a pod without the parts that depend on other pods and volumes."""
    return SchedulingRequest(
        request,
        effective_requests(request),
        demand_of(request, profile.allocate),
        kubelet_options=profile.kubelet_options,
    )


def with_claims(ask: SchedulingRequest, claims: PodClaims) -> SchedulingRequest:
    """Return the request of a pod with resource claims, which may provide its exclusive CPUs."""
    holds = bool(claims.to_allocate or claims.devices or claims.extended)
    demand = ask.demand if isinstance(ask.demand, Rejection) else replace(ask.demand, claims=holds)
    return replace(ask, claims=claims, demand=demand)


def on_node(ask: SchedulingRequest, node: Node) -> SchedulingRequest:
    """
    Return the request for this node: extended resources that the node serves by claim are devices of a claim instead of amounts.

    No other rule has to consider them then (``fitsRequest`` of kube-scheduler's noderesources leaves them to the plugin of claims).
    """
    claims = ask.claims
    if claims is None or not claims.extended:
        return ask
    served = served_by_claim(claims, node.allocatable)
    key = frozenset(resource for resource, _ in served)
    known = ask.variants.get(key)
    if known is None:
        found = claims_at(claims, ask.request.containers, node.allocatable)
        # A claim that cannot be used here is rejected when devices are allocated.
        at_node = replace(claims, extended=(), made=None) if isinstance(found, str) else found
        by_claim = {name: amount for name, amount in ask.amounts.items() if name in key}
        known = ask.variants[key] = replace(with_claims(without_resources(ask, key), at_node), by_claim=by_claim)
    return known


def amounts_of_node(amounts: ResourceList, seen: NodeSnapshot) -> ResourceList:
    """
    Return the requested amounts that the Node must have free.

    Devices by id are counted by the Device object. Where the Node lists their resources too, both must have them: the kubelet checks
    what the Node lists.
    """
    if seen.devices is None or TYPE_OF.keys().isdisjoint(amounts):
        return amounts
    return {name: amount for name, amount in amounts.items() if name not in TYPE_OF or name in seen.allocatable}


def without_resources(ask: SchedulingRequest, resources: Iterable[str]) -> SchedulingRequest:
    """Return the request without these resources."""
    gone = dict.fromkeys(resources)
    amounts = {name: amount for name, amount in ask.amounts.items() if name not in gone}
    demand = ask.demand if isinstance(ask.demand, Rejection) else replace(ask.demand, amounts=amounts)
    request = replace(ask.request, containers=containers_without(ask.request.containers, gone))
    return replace(ask, request=request, amounts=amounts, demand=demand)


def depends_on_other_pods(request: PodRequest) -> bool:
    """Return whether the result or the score of a node depends on more than the node: on other pods or on volumes."""
    demands = request.constraints
    preferred = demands.preferred_affinity or demands.preferred_anti_affinity or demands.spread
    return bool(preferred) or may_be_refused_for_others(request)


def may_be_refused_for_others(request: PodRequest) -> bool:
    """Return whether a node may reject the pod because of other pods or volumes. Preferences never cause rejections."""
    demands = request.constraints
    required = demands.affinity or demands.anti_affinity or any(each.hard for each in demands.spread)
    # Claims and disks depend on volumes, which are outside the node.
    return bool(required or demands.claims or demands.disks)
