"""
Inter-pod affinity and anti-affinity (kube-scheduler's InterPodAffinity).

Everything that depends on other pods is counted once per decision, by value of the topology label; nodes are then checked by
look-ups. Anti-affinity works both ways: a placed pod can forbid its neighbourhood to the new one.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from koord_numa.core.objects.constraints import PodTerm
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import Pod, PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.selectors import Labels, selects

Domain = tuple[str, str]
"""A topology label and its value: ``("topology.kubernetes.io/zone", "a")``."""

Namespaces = Mapping[str, Labels]
"""Labels of every namespace, for terms with a namespace selector."""

HARD_WEIGHT: Final = 1
"""What a placed pod's required affinity to the new one is worth (kube-scheduler's ``hardPodAffinityWeight``)."""


# Unresolvable: evicting pods brings no pod that the affinity asks for (interpodaffinity/filtering.go).
AFFINITY_RULES: Final = Rejection(Reason.POD_AFFINITY, "node(s) didn't match pod affinity rules", resolvable=False)
ANTI_AFFINITY_RULES: Final = Rejection(Reason.POD_AFFINITY, "node(s) didn't match pod anti-affinity rules")
EXISTING_ANTI_AFFINITY: Final = Rejection(
    Reason.POD_AFFINITY, "node(s) didn't satisfy existing pods anti-affinity rules"
)


@dataclass(frozen=True, slots=True)
class PodAffinityCounts:
    """What placed pods mean for one pending pod, per topology domain."""

    affine: Counter[Domain] = field(default_factory=Counter)  # pods that match all of its affinity terms
    repelled: Counter[tuple[int, Domain]] = field(default_factory=Counter)  # by anti-affinity term
    forbidden: Counter[Domain] = field(default_factory=Counter)  # by anti-affinity of placed pods
    pulls: Counter[Domain] = field(default_factory=Counter)  # weights of preferred terms, both directions
    # ``first`` is looked at only while ``affine`` is empty, as in satisfyPodAffinity.
    first: bool = False  # no placed pod matches its affinity yet, and it matches its own
    namespaces: Namespaces = field(default_factory=dict)


def pod_affinity_counts(
    request: PodRequest, placed: Iterable[tuple[Node, Pod]], namespaces: Namespaces
) -> PodAffinityCounts:
    """Count the placed pods that matter to this one."""
    view = PodAffinityCounts(first=is_first(request, namespaces), namespaces=namespaces)
    for node, pod in placed:
        _count_what_we_ask(view, request, (node, pod), namespaces)
        _count_what_they_ask(view, request, (node, pod), namespaces)
    return view


def is_first(request: PodRequest, namespaces: Namespaces) -> bool:
    """Does the pod match its own required affinity, so that it may go anywhere while no placed pod does?"""
    terms, own = request.constraints.affinity, dict(request.labels)
    return bool(terms) and all(_picks(term, request.namespace, own, namespaces) for term in terms)


def _count_what_we_ask(
    view: PodAffinityCounts, request: PodRequest, placed: tuple[Node, Pod], namespaces: Namespaces
) -> None:
    node, pod = placed
    demands, namespace, labels = request.constraints, pod.key.namespace, dict(pod.labels)
    # A pod counts for affinity only when it matches *all* terms (podMatchesAllAffinityTerms).
    if demands.affinity and all(_picks(term, namespace, labels, namespaces) for term in demands.affinity):
        view.affine.update(_domains(demands.affinity, node))
    # Anti-affinity terms count one by one: any of them repels.
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
    # The other direction: a placed pod's terms are matched against the new pod.
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
    Required affinity, then the pod's own anti-affinity, then that of the pods already placed.

    The pod must fit with and without the pods for which room is kept on the node: what ``nominated`` pods forbid counts, that they would be
    near does not (``RunFilterPluginsWithNominatedPods``).
    """
    demands = request.constraints
    if not _near(request, node, view):
        return AFFINITY_RULES
    for index, term in enumerate(demands.anti_affinity):
        # A node without the label is in no domain and repels nothing.
        if any(view.repelled[index, domain] for domain in _domains((term,), node)):
            return ANTI_AFFINITY_RULES
    if view.forbidden and any(view.forbidden[key, value] for key, value in node.labels.items()):
        return EXISTING_ANTI_AFFINITY
    return refused_beside(request, node, nominated, view.namespaces) if nominated else None


def refused_beside(
    request: PodRequest, node: Node, nominated: Sequence[Pod], namespaces: Namespaces
) -> Rejection | None:
    """What required anti-affinity between the pod and those for which room is kept on the node forbids."""
    own = dict(request.labels)
    # Only anti-affinity: with ``nominated`` pods not there yet nothing may rely on them.
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
    """The sum of weights that pull the pod to this node; negative when they push it away."""
    return sum(view.pulls[key, value] for key, value in node.labels.items()) if view.pulls else 0


def _near(request: PodRequest, node: Node, view: PodAffinityCounts) -> bool:
    terms = request.constraints.affinity
    # Every term's label must be there, even for the first pod of a group.
    if not all(term.topology_key in node.labels for term in terms):
        return False
    if not view.affine and view.first:
        return True  # the first of a group that wants to be together may go anywhere
    return all(view.affine[domain] for domain in _domains(terms, node))


def _preferences(request: PodRequest) -> list[tuple[int, PodTerm]]:
    demands = request.constraints
    return [(wish.weight, wish.term) for wish in demands.preferred_affinity] + [
        # Anti-affinity weights push: the same sum with the opposite sign.
        (-wish.weight, wish.term)
        for wish in demands.preferred_anti_affinity
    ]


def _domains(terms: Iterable[PodTerm], node: Node) -> list[Domain]:
    return [(t.topology_key, node.labels[t.topology_key]) for t in terms if t.topology_key in node.labels]


def _picks(term: PodTerm, namespace: str, labels: Labels, namespaces: Namespaces) -> bool:
    # An empty namespace list and no selector has become the pod's own namespace when the term was read.
    inside = namespace in term.namespaces or selects(term.namespace_selector, namespaces.get(namespace, {}))
    return inside and selects(term.selector, labels)
