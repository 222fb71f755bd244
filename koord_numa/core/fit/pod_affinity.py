"""
Inter-pod affinity and anti-affinity (kube-scheduler's InterPodAffinity).

Placed pods are counted once per decision, by value of the topology label. Nodes are then checked by lookups.
Anti-affinity is symmetric: the terms of a placed pod can exclude the pending pod.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from koord_numa.core.objects.constraints import Labels, PodTerm, selects
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import Pod, PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.value_objects import ValueObject, value_field

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
