"""
Pending pods and request classes: pods that every node treats alike share one class and its cached results.

All data about a pod while it is pending is in its record, so that it is dropped with the record.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

from koord_numa.core.fit.pod_placement import constraints_for
from koord_numa.core.objects.claims import PodClaims
from koord_numa.core.objects.constraints import LabelSelector, PodTerm, SpreadConstraint, selects
from koord_numa.core.objects.request import Pod, PodRequest
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import CPU, ResourceList
from koord_numa.core.value_objects import MutableObject, replace, value_field
from koord_numa.engine.cache.listers import AnchorIndex, PodIndex, anchors_of_pod, anchors_of_term
from koord_numa.settings import ProfileSettings, Settings


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class RequestClass:
    """
    Request and profile of a class of pods. Interned while referenced: two pods have the same class exactly if the objects are identical.

    ``amounts`` is the minimum that a node needs free, in units of the core: the effective request without resources that may be served by
    claim.
    """

    number: int  # increases with every new class, for a stable order
    key: Hashable
    profile: ProfileSettings
    request: PodRequest
    amounts: ResourceList
    pickers: frozenset[PodTerm] = frozenset()  # terms of placed pods that select pods of this class
    claims: PodClaims | None = None  # demands of the resource claims of its pods
    handicap: int = 0  # number of places that a pod of the class is moved back among pods of its priority

    @property
    def priority(self) -> int:
        """Priority; higher goes first."""
        return self.request.priority

    @property
    def cpu(self) -> int:
        """Minimum free milli-CPU that a node needs."""
        return self.amounts.get(CPU, 0)

    @property
    def is_large(self) -> bool:
        """True if pods of the class are moved back in the queue because of their size."""
        return self.handicap > 0

    @property
    def slice(self) -> int:
        """Nodes that a decision evaluates per turn: fewer for a large pod, because each takes longer."""
        return max(1, SLICE * ORDINARY_SIZE // (ORDINARY_SIZE + self.handicap // PLACES_PER_PART))


class RequestClasses(MutableObject):
    """Request classes by pod. Labels of a pod count only by the terms of placed pods that select it."""

    settings: Settings
    placed: PodIndex
    claims_of: Callable[[Pod], PodClaims | None] = lambda _: None
    selector_for: Callable[[Pod], LabelSelector | None] = lambda _: None  # selector of the pod's workload
    _known: WeakValueDictionary[Hashable, RequestClass] = value_field(default_factory=WeakValueDictionary)
    _count: int = 0
    _defaults: dict[str, tuple[SpreadConstraint, ...]] = value_field(default_factory=dict)  # by scheduler name

    def of(self, pod: Pod) -> RequestClass | None:
        """Return the class of a pod; ``None`` for an unknown scheduler name."""
        profile = self.settings.profile(pod.scheduler)
        if profile is None:
            return None
        pickers = self.placed.pickers(pod)
        claims = self.claims_of(pod)
        spread = self._default_spread(pod, profile)
        # Labels are part of the key only if a term selects them; otherwise replicas with different labels would be
        # separate classes.
        key = (pod.scheduler, pod.request.class_key, pickers, claims, spread and _spread_key(pod, spread))
        known = self._known.get(key)
        if known is None:
            self._count += 1
            # Labels are kept only if they matter: classes without such terms share a request whatever their labels.
            request = replace(pod.request, labels=pod.labels) if pickers else pod.request
            if spread:
                request = replace(request, constraints=replace(request.constraints, spread=spread))
            known = RequestClass(
                self._count, key, profile, request, _least(request, claims), pickers, claims, handicap(request)
            )
            # A weak dictionary: the class exists as long as a pod or a ranking refers to it.
            self._known[key] = known
        return known

    def of_group(self, request_class: RequestClass, group: Hashable, *, first: bool = False) -> RequestClass:
        """
        Return the class for queueing the members of a group that otherwise belong to this class.

        With ``first`` they go before all other pods of their priority.
        """
        key = (request_class, group, first)
        known = self._known.get(key)
        if known is None:
            self._count += 1
            known = self._known[key] = replace(
                request_class, number=self._count, key=key, handicap=FIRST if first else request_class.handicap
            )
        return known

    def _default_spread(self, pod: Pod, profile: ProfileSettings) -> tuple[SpreadConstraint, ...]:
        """Return the default constraints of a pod without own constraints, with the selector of its workload."""
        if pod.request.constraints.spread:
            return ()
        selector = self.selector_for(pod)
        if selector is None:
            return ()
        defaults = self._defaults.get(profile.scheduler_name)
        if defaults is None:
            defaults = self._defaults[profile.scheduler_name] = profile.pod_topology_spread.constraints
        return constraints_for(defaults, selector)


SLICE: Final = 64
"""Nodes that are evaluated per turn for an ordinary pod: a few milliseconds."""
FIRST: Final = -(1 << 40)
"""Handicap of pods that go before all others of their priority: less than any number of queued pods."""

ORDINARY_SIZE: Final = 32
"""Number of terms, constraints, containers, resources and claims of a pod without a handicap."""
PLACES_PER_PART: Final = 4
"""
Places per additional part. A part takes about as long to evaluate as one ordinary pod; 4 ensures that ordinary pods go first in a burst.
"""


def handicap(request: PodRequest) -> int:
    """
    Return the number of places that a pod is moved back because of its size.

    Pods that are queued later by at most this number of places are tried first. A burst of large pods therefore delays ordinary pods by one
    decision, and a steady stream of ordinary pods delays a large pod by a bounded number of decisions.
    """
    demands = request.constraints
    parts = sum(
        map(
            len,
            (
                request.containers, demands.node_selector, demands.node_terms or (), demands.preferred_nodes, demands.tolerations,
                demands.affinity, demands.anti_affinity, demands.preferred_affinity, demands.preferred_anti_affinity, demands.spread,
                demands.host_ports, demands.claims,
            ),
        )
    )  # fmt: skip
    parts += sum(len(container.requests) for container in request.containers)
    return PLACES_PER_PART * max(0, parts - ORDINARY_SIZE)


def _least(request: PodRequest, claims: PodClaims | None) -> ResourceList:
    amounts = effective_requests(request)
    by_claim = dict(claims.extended) if claims is not None else {}
    return {name: amount for name, amount in amounts.items() if name not in by_claim} if by_claim else amounts


def _spread_key(pod: Pod, spread: tuple[SpreadConstraint, ...]) -> Hashable:
    """Return the pod properties that its default constraints depend on: namespace, and whether they count the pod itself."""
    return pod.key.namespace, spread, selects(spread[0].selector, dict(pod.labels))


class PendingPod(MutableObject, eq=False):
    """
    Pod without a node, as last observed. Times are monotonic seconds.

    ``since`` is when it was first observed and ``attempts`` the number of attempts. ``binding`` is true from a decision until the outcome
    of the bind is known, ``failed_binds`` counts consecutive failures. ``order`` increases whenever the pod is queued: among equal
    priorities the smaller goes first. ``queued_in`` is the class that holds it in the queue, ``None`` while it is not queued, and
    ``backoff_until`` is set while it backs off separately. ``message`` is the last reported reason why it waits; ``reason`` is the same
    without the ``remark`` about preemption. ``provisional`` means that there was no decision at that time.
    """

    pod: Pod
    request_class: RequestClass
    since: float
    attempts: int = 0
    failed_binds: int = 0
    deciding: bool = False  # between two slices of a decision
    binding: bool = False
    order: int = 0
    queued_in: RequestClass | None = None
    backoff_until: float | None = None
    message: str = ""
    reason: str = ""
    remark: str = ""
    provisional: bool = False
    preemption_failures: int = 0  # consecutive failures
    preemption_from: float = 0.0  # no preemption for this pod before this time
    group_class: RequestClass | None = None  # class in the queue of a group member

    @property
    def uid(self) -> str:
        """UID of the pod."""
        return self.pod.key.uid

    @property
    def queue_class(self) -> RequestClass:
        """Class in which the pod is queued: group members have separate classes."""
        return self.group_class or self.request_class

    @property
    def untold(self) -> bool:
        """True if no final decision has been reported to the pod."""
        return self.provisional or not self.message


class PendingPods:
    """All pending pods by UID."""

    def __init__(self) -> None:
        self._by_uid: dict[str, PendingPod] = {}
        self._by_anchor: AnchorIndex[str] = AnchorIndex()  # UIDs

    def __len__(self) -> int:
        return len(self._by_uid)

    def __iter__(self) -> Iterator[PendingPod]:
        """Iterate over a copy of the records, so that the loop body may remove records."""
        return iter(list(self._by_uid.values()))

    def __contains__(self, uid: object) -> bool:
        return uid in self._by_uid

    def get(self, uid: str) -> PendingPod | None:
        """Return the record of a pod, ``None`` when it is not pending."""
        return self._by_uid.get(uid)

    def observe(self, pod: Pod, request_class: RequestClass, now: float) -> PendingPod:
        """Update the record of a pod, or create it."""
        known = self._by_uid.get(pod.key.uid)
        if known is None:
            known = self._by_uid[pod.key.uid] = PendingPod(pod, request_class, now)
            self._file(pod)
        # Indexed by labels, so that the index is updated when they change.
        elif known.pod.labels != pod.labels:
            self._take_out(known.pod)
            self._file(pod)
        known.pod, known.request_class = pod, request_class
        return known

    def pop(self, uid: str) -> PendingPod | None:
        """Remove a pod and return its record."""
        known = self._by_uid.pop(uid, None)
        if known is not None:
            self._take_out(known.pod)
        return known

    def selected_by(self, terms: Iterable[PodTerm]) -> list[PendingPod]:
        """Return the pods that one of these terms may select, including all that any of them selects."""
        found = self._by_anchor.find(anchor for term in terms for anchor in anchors_of_term(term))
        return [self._by_uid[uid] for uid in found]

    def _file(self, pod: Pod) -> None:
        self._by_anchor.add(pod.key.uid, anchors_of_pod(pod.key.namespace, pod.labels))

    def _take_out(self, pod: Pod) -> None:
        self._by_anchor.remove(pod.key.uid, anchors_of_pod(pod.key.namespace, pod.labels))
