"""Filters that depend on other pods: inter-pod affinity and topology spread constraints with their defaults."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import floor, log
from typing import Final

from koord_numa.core.fit.node_filters import fits_taints, matches_node
from koord_numa.core.objects.constraints import (
    Labels,
    LabelSelector,
    PodTerm,
    SpreadConstraint,
    Workload,
    WorkloadKind,
    selects,
)
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import Pod, PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.score.node_scores import MISSING
from koord_numa.core.value_objects import ValueObject, replace, value_field

# Inter-pod affinity and anti-affinity (kube-scheduler's InterPodAffinity).
#
# Placed pods are counted once per decision, by value of the topology label. Nodes are then checked by lookups.
# Anti-affinity is symmetric: the terms of a placed pod can exclude the pending pod.

Domain = tuple[str, str]
"""A topology label and its value: ``("topology.kubernetes.io/zone", "a")``."""

Namespaces = Mapping[str, Labels]
"""Labels of all namespaces, for terms with a namespace selector."""

HARD_WEIGHT: Final = 1
"""Weight of a placed pod's required affinity to the pending pod (kube-scheduler's ``hardPodAffinityWeight``)."""


# Unresolvable: preemption adds no pods that match the affinity (interpodaffinity/filtering.go).
AFFINITY_RULES: Final = Rejection(Reason.POD_AFFINITY, "node(s) didn't match pod affinity rules", resolvable=False)
ANTI_AFFINITY_RULES: Final = Rejection(Reason.POD_AFFINITY, "node(s) didn't match pod anti-affinity rules")
EXISTING_ANTI_AFFINITY: Final = Rejection(
    Reason.POD_AFFINITY, "node(s) didn't satisfy existing pods anti-affinity rules"
)


class PodAffinityCounts(ValueObject):
    """Counts of placed pods that affect one pending pod, per topology domain."""

    affine: Counter[Domain] = value_field(default_factory=Counter)  # pods that match all of its affinity terms
    repelled: Counter[tuple[int, Domain]] = value_field(default_factory=Counter)  # by anti-affinity term
    forbidden: Counter[Domain] = value_field(default_factory=Counter)  # by anti-affinity of placed pods
    pulls: Counter[Domain] = value_field(default_factory=Counter)  # weights of preferred terms, in both directions
    # As in satisfyPodAffinity, ``first`` is used only while ``affine`` is empty.
    first: bool = False  # no placed pod matches its affinity yet, and the pod matches its own affinity
    namespaces: Namespaces = value_field(default_factory=dict)


def pod_affinity_counts(
    request: PodRequest, placed: Iterable[tuple[Node, Pod]], namespaces: Namespaces
) -> PodAffinityCounts:
    """Count the placed pods that affect the pending pod."""
    view = PodAffinityCounts(first=is_first(request, namespaces), namespaces=namespaces)
    for node, pod in placed:
        _count_what_we_ask(view, request, (node, pod), namespaces)
        _count_what_they_ask(view, request, (node, pod), namespaces)
    return view


def is_first(request: PodRequest, namespaces: Namespaces) -> bool:
    """
    Return whether the pod matches its own required affinity. It may then run anywhere while no placed pod matches.
    """
    terms, own = request.constraints.affinity, dict(request.labels)
    return bool(terms) and all(_picks(term, request.namespace, own, namespaces) for term in terms)


def _count_what_we_ask(
    view: PodAffinityCounts, request: PodRequest, placed: tuple[Node, Pod], namespaces: Namespaces
) -> None:
    node, pod = placed
    demands, namespace, labels = request.constraints, pod.key.namespace, dict(pod.labels)
    # A pod counts for affinity only if it matches *all* terms (podMatchesAllAffinityTerms).
    if demands.affinity and all(_picks(term, namespace, labels, namespaces) for term in demands.affinity):
        view.affine.update(_domains(demands.affinity, node))
    # Anti-affinity terms count separately: any matching term excludes the domain.
    for index, term in enumerate(demands.anti_affinity):
        if _picks(term, namespace, labels, namespaces):
            view.repelled.update((index, domain) for domain in _domains((term,), node))
    for weight, wish in _preferences(request):
        if _picks(wish, namespace, labels, namespaces):
            _pull(view, weight, wish, node)


def _count_what_they_ask(
    view: PodAffinityCounts, request: PodRequest, placed: tuple[Node, Pod], namespaces: Namespaces
) -> None:
    node, pod = placed
    # The other direction: the terms of a placed pod are matched against the pending pod.
    own = dict(request.labels)
    for term in pod.request.constraints.anti_affinity:
        if _picks(term, request.namespace, own, namespaces):
            view.forbidden.update(_domains((term,), node))
    for term in pod.request.constraints.affinity:
        if _picks(term, request.namespace, own, namespaces):
            _pull(view, HARD_WEIGHT, term, node)
    for weight, wish in _preferences(pod.request):
        if _picks(wish, request.namespace, own, namespaces):
            _pull(view, weight, wish, node)


def _pull(view: PodAffinityCounts, weight: int, wish: PodTerm, node: Node) -> None:
    for domain in _domains((wish,), node):
        view.pulls[domain] += weight


def fits_pod_affinity(
    request: PodRequest, node: Node, view: PodAffinityCounts, nominated: Sequence[Pod] = ()
) -> Rejection | None:
    """
    Check required affinity, then the pod's own anti-affinity, then the anti-affinity of placed pods.

    The pod must fit with and without the nominated pods of the node. Their anti-affinity therefore counts, but they do
    not satisfy the affinity of the pod (``RunFilterPluginsWithNominatedPods``).
    """
    demands = request.constraints
    if not _near(request, node, view):
        return AFFINITY_RULES
    for index, term in enumerate(demands.anti_affinity):
        # A node without the label is in no domain, so the term excludes nothing there.
        if any(view.repelled[index, domain] for domain in _domains((term,), node)):
            return ANTI_AFFINITY_RULES
    if view.forbidden and any(view.forbidden[key, value] for key, value in node.labels.items()):
        return EXISTING_ANTI_AFFINITY
    return refused_beside(request, node, nominated, view.namespaces) if nominated else None


def refused_beside(
    request: PodRequest, node: Node, nominated: Sequence[Pod], namespaces: Namespaces
) -> Rejection | None:
    """Check required anti-affinity between the pod and the nominated pods of the node."""
    own = dict(request.labels)
    # Only anti-affinity: nominated pods do not exist yet, so they cannot satisfy affinity.
    for pod in nominated:
        for term in _labelled(request.constraints.anti_affinity, node):
            if _picks(term, pod.key.namespace, dict(pod.labels), namespaces):
                return ANTI_AFFINITY_RULES
        for term in _labelled(pod.request.constraints.anti_affinity, node):
            if _picks(term, request.namespace, own, namespaces):
                return EXISTING_ANTI_AFFINITY
    return None


def _labelled(terms: Iterable[PodTerm], node: Node) -> list[PodTerm]:
    return [term for term in terms if term.topology_key in node.labels]


def pod_preference(node: Node, view: PodAffinityCounts) -> int:
    """Return the sum of the preference weights of this node. Negative for repelling pods."""
    return sum(view.pulls[key, value] for key, value in node.labels.items()) if view.pulls else 0


def _near(request: PodRequest, node: Node, view: PodAffinityCounts) -> bool:
    terms = request.constraints.affinity
    # The node needs the label of every term, even for the first pod of a group.
    if not all(term.topology_key in node.labels for term in terms):
        return False
    if not view.affine and view.first:
        return True  # the first pod of a group with mutual affinity may run anywhere
    return all(view.affine[domain] for domain in _domains(terms, node))


def _preferences(request: PodRequest) -> list[tuple[int, PodTerm]]:
    demands = request.constraints
    return [(wish.weight, wish.term) for wish in demands.preferred_affinity] + [
        # Anti-affinity weights count with a negative sign.
        (-wish.weight, wish.term)
        for wish in demands.preferred_anti_affinity
    ]


def _domains(terms: Iterable[PodTerm], node: Node) -> list[Domain]:
    return [(t.topology_key, node.labels[t.topology_key]) for t in terms if t.topology_key in node.labels]


def _picks(term: PodTerm, namespace: str, labels: Labels, namespaces: Namespaces) -> bool:
    # The parser replaces an empty namespace list without a selector by the pod's own namespace.
    inside = namespace in term.namespaces or selects(term.namespace_selector, namespaces.get(namespace, {}))
    return inside and selects(term.selector, labels)


SYSTEM_DEFAULTS: Final = (
    SpreadConstraint("kubernetes.io/hostname", 3, hard=False, selector=None, default=True, needs_label=False),
    SpreadConstraint("topology.kubernetes.io/zone", 5, hard=False, selector=None, default=True, needs_label=False),
)
"""``systemDefaultConstraints``. Nodes without a zone are still compared by hostname (``requireAllTopologies``)."""


def default_selector(services: Iterable[Workload], controller: Workload | None) -> LabelSelector | None:
    """
    Return the default selector: all requirements of the selectors of the pod's ``services`` and ``controller``.

    None when there are no requirements. As ``DefaultSelector`` in ``helper/spread.go``: the labels of Services, and of
    a ReplicationController on top, are merged key by key. The requirements of a ReplicaSet or StatefulSet are added.
    """
    merged = {need.key: need for each in services if each.selector for need in each.selector.requirements}
    more = () if controller is None or controller.selector is None else controller.selector.requirements
    if controller is not None and controller.key.kind is WorkloadKind.REPLICATION_CONTROLLER:
        # The selector of a ReplicationController is a plain map and overwrites keys of Services, as Services overwrite
        # each other.
        merged.update((need.key, need) for need in more)
        more = ()
    needs = {*merged.values(), *more}
    if not needs:
        return None
    # Sorted, so that equal workloads have equal selectors. Caches compare them.
    return LabelSelector(tuple(sorted(needs, key=lambda need: (need.key, need.operator.value, need.values))))


def constraints_for(
    defaults: Iterable[SpreadConstraint], selector: LabelSelector | None
) -> tuple[SpreadConstraint, ...]:
    """Return the default constraints with the selector of the pod's workload. Empty without a selector."""
    return () if selector is None else tuple(replace(each, selector=selector) for each in defaults)


MISSING_LABEL: Final = Rejection(
    Reason.SPREAD,
    "node(s) didn't match pod topology spread constraints (missing required label)",
    resolvable=False,
)
SPREAD_RULES: Final = Rejection(Reason.SPREAD, "node(s) didn't match pod topology spread constraints")


@dataclass(frozen=True, slots=True)
class SpreadCounts:
    """Number of matching pods by value of the topology label, per constraint (by its position in the request)."""

    counts: Mapping[int, Counter[str]] = field(default_factory=dict)

    def skew(self, index: int, constraint: SpreadConstraint, value: str, more: int = 0) -> int:
        """
        Return the difference between a domain with ``more`` additional pods and the domain with the fewest matching
        pods.

        The minimum counts as 0 while there are fewer domains than ``minDomains``.
        """
        domains = self.counts[index]
        here = domains[value] + more
        # As minMatchNum in podtopologyspread/filtering.go.
        if len(domains) < constraint.min_domains:
            return here
        # The domain itself may be the minimum. With more pods in it another domain can become the minimum.
        others = min((count for domain, count in domains.items() if domain != value), default=here)
        return here - (min(here, others) if value in domains else others)


def spread_counts(request: PodRequest, nodes: Iterable[Node], placed: Iterable[tuple[Node, Pod]]) -> SpreadCounts:
    """
    Count matching pods per domain.

    Domains are those of the nodes that have the labels of all hard constraints and pass the inclusion policies of the
    constraint.
    """
    constraints = request.constraints.spread
    counts: dict[int, Counter[str]] = {index: Counter() for index in range(len(constraints))}
    for node in nodes:
        for index, constraint in enumerate(constraints):
            if _counts_here(request, node, constraint):
                # Domains without a matching pod count as 0 and may be the minimum.
                counts[index][_domain(node, constraint)] += 0
    for node, pod in placed:
        # Terminating pods do not count (countPodsMatchSelector).
        if pod.key.namespace != request.namespace or pod.deleting:
            continue
        labels = dict(pod.labels)
        for index, constraint in enumerate(constraints):
            if selects(constraint.selector, labels) and _counts_here(request, node, constraint):
                counts[index][_domain(node, constraint)] += 1
    return SpreadCounts(counts)


def fits_spread(request: PodRequest, node: Node, view: SpreadCounts, nominated: Sequence[Pod] = ()) -> Rejection | None:
    """
    Reject a node where the pod would exceed the maximum skew of a hard constraint.

    The check applies with and without the nominated pods of the node (``RunFilterPluginsWithNominatedPods``).
    """
    for index, constraint in enumerate(request.constraints.spread):
        if not constraint.hard:
            continue
        value = node.labels.get(constraint.topology_key)
        if value is None:
            return MISSING_LABEL
        # The pod itself counts only if its labels match the selector (``selfMatchNum``).
        own = selects(constraint.selector, dict(request.labels))
        beside = matching(request.namespace, constraint, nominated) if _counts_here(request, node, constraint) else 0
        # A set, so that a node without nominated pods is checked once.
        for more in {0, beside}:
            if view.skew(index, constraint, value, more) + own > constraint.max_skew:
                return SPREAD_RULES
    return None


def matching(namespace: str, constraint: SpreadConstraint, pods: Iterable[Pod]) -> int:
    """Return the number of pods that match the constraint of a pod in this namespace."""
    return sum(
        pod.key.namespace == namespace and not pod.deleting and selects(constraint.selector, dict(pod.labels))
        for pod in pods
    )


def crowding(request: PodRequest, node: Node, view: SpreadCounts) -> int:
    """
    Return the weighted number of matching pods in the node's domains over all soft constraints, or ``MISSING`` without
    a label.

    Fewer is better. As ``Score`` in ``podtopologyspread/scoring.go``: counts are weighted by ``log(domains + 2)``, so
    that a constraint over few domains weighs as much as a constraint over many. Domains are those of all counted nodes,
    so the result does not depend on which nodes fit. Constraints that need no label ignore nodes without the label, and
    such nodes together form one domain.
    """
    crowd = 0.0
    for index, constraint in enumerate(request.constraints.spread):
        if constraint.hard:
            continue
        value = node.labels.get(constraint.topology_key)
        if value is None and constraint.needs_label:
            return MISSING
        if value is None:
            continue
        counts = view.counts[index]
        crowd += counts[value] * log(len(counts) + 2) + float(constraint.max_skew - 1)
    # Rounded half up as Go's math.Round. Scores are not negative.
    return floor(crowd + 0.5)


def _counts_here(request: PodRequest, node: Node, constraint: SpreadConstraint) -> bool:
    # The labels of all constraints of the same kind (hard or soft) are required together.
    needed = [c.topology_key for c in request.constraints.spread if c.hard == constraint.hard and c.needs_label]
    if any(key not in node.labels for key in needed):
        return False
    if constraint.honor_affinity and not matches_node(request, node):
        return False
    return not constraint.honor_taints or fits_taints(request, node) is None


def _domain(node: Node, constraint: SpreadConstraint) -> str:
    """Return the node's value of the topology label. Counted nodes without the label form one domain."""
    return node.labels.get(constraint.topology_key, "")
