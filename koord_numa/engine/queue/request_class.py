"""
Request classes: pods that every node treats alike share one object, so that what was found for one holds for all.

Interned while anything refers to them; two pods are of one class exactly when their class objects are identical.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakValueDictionary

from koord_numa.core.claims.resource_claim import PodClaims
from koord_numa.core.fit.spread import constraints_for
from koord_numa.core.objects.constraints import LabelSelector, PodTerm, SpreadConstraint
from koord_numa.core.objects.request import Pod, PodRequest
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import CPU, ResourceList
from koord_numa.core.selectors import selects
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.pod_index import PodIndex
from koord_numa.settings import ProfileSettings, Settings


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class RequestClass:
    """
    What is asked for, under which profile. Equal only to itself.

    ``amounts`` is what a node has to have at the very least, in our units: the effective request without resources that may be served
    by claim.
    """

    number: int  # grows with every new class: a stable order
    key: Hashable
    profile: ProfileSettings
    request: PodRequest
    amounts: ResourceList
    pickers: frozenset[PodTerm] = frozenset()  # terms of placed pods that pick pods of this class
    claims: PodClaims | None = None  # what resource claims of its pods ask for
    handicap: int = 0  # places that a pod of the class stands further back among pods of its priority

    @property
    def priority(self) -> int:
        """Higher goes first."""
        return self.request.priority

    @property
    def cpu(self) -> int:
        """Milli-CPU that a node must have free at the very least."""
        return self.amounts.get(CPU, 0)

    @property
    def is_large(self) -> bool:
        """Its pods pay for their size."""
        return self.handicap > 0

    @property
    def slice(self) -> int:
        """Nodes that one decision evaluates before others have their turn: fewer for a large pod, as each takes longer."""
        return max(1, SLICE * ORDINARY_SIZE // (ORDINARY_SIZE + self.handicap // PLACES_PER_PART))


@dataclass(slots=True)
class RequestClasses:
    """Finds the class of a pod. Of its labels counts which terms of placed pods pick them: hardly ever any."""

    settings: Settings
    placed: PodIndex
    claims_of: Callable[[Pod], PodClaims | None] = lambda _: None
    selector_for: Callable[[Pod], LabelSelector | None] = lambda _: None  # what its workload selects by
    _known: WeakValueDictionary[Hashable, RequestClass] = field(default_factory=WeakValueDictionary)
    _count: int = 0
    _defaults: dict[str, tuple[SpreadConstraint, ...]] = field(default_factory=dict)  # by scheduler name

    def of(self, pod: Pod) -> RequestClass | None:
        """The class of a pod; ``None`` when its scheduler is not us."""
        profile = self.settings.profile(pod.scheduler)
        if profile is None:
            return None
        pickers = self.placed.pickers(pod)
        claims = self.claims_of(pod)
        spread = self._default_spread(pod, profile)
        # Labels are part of the key only where some term picks them, else every replica with another label were a class.
        key = (pod.scheduler, pod.request.class_key, pickers, claims, spread and _spread_key(pod, spread))
        known = self._known.get(key)
        if known is None:
            self._count += 1
            # Labels are carried only where they decide: classes without pickers share one request whatever their labels.
            request = replace(pod.request, labels=pod.labels) if pickers else pod.request
            if spread:
                request = replace(request, constraints=replace(request.constraints, spread=spread))
            known = RequestClass(
                self._count, key, profile, request, _least(request, claims), pickers, claims, handicap(request)
            )
            # A weak dictionary: the class lives as long as a pod or a ranking refers to it.
            self._known[key] = known
        return known

    def of_group(self, request_class: RequestClass, group: Hashable, *, first: bool = False) -> RequestClass:
        """
        Return the class in which members of a group are queued that are of this class otherwise.

        ``first``: they go before all other pods of their priority.
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
        """The default constraints of a pod that has none of its own, by what its workload selects."""
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
"""Nodes that are evaluated for an ordinary pod in one turn: some milliseconds."""
FIRST: Final = -(1 << 40)
"""The handicap of pods that go before all others of their priority: less than any number of queued pods."""

ORDINARY_SIZE: Final = 32
"""Terms, constraints, containers, resources and claims of a pod that cost it nothing."""
PLACES_PER_PART: Final = 4
"""Each further part takes as long to evaluate as about one ordinary pod. Four make sure that ordinary pods come first in a burst."""


def handicap(request: PodRequest) -> int:
    """
    How many places a pod pays for its size.

    Pods that are queued later by so many places are tried first, so a burst of large pods delays ordinary ones by one decision, and a
    steady stream of ordinary pods delays a large one by a bounded number of decisions.
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
    """What of a pod its default constraints depend on: its namespace, and whether it is one of those that they count."""
    return pod.key.namespace, spread, selects(spread[0].selector, dict(pod.labels))
