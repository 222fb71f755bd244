"""
Choice of a node for a pod: cached rankings for classes that depend on the node only, full evaluation for the others.

Reads the cluster state and never changes it.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
from cachetools import LRUCache

from koord_numa.core.allocation.allocate import AllocateOptions, NumaScoring, WithoutTopology
from koord_numa.core.claims import name_classes
from koord_numa.core.fit.pod_placement import pod_affinity_counts, spread_counts
from koord_numa.core.fit.volumes import uses_volumes
from koord_numa.core.kubelet import STEP_COUNT, KubeletView
from koord_numa.core.objects.claims import PodClaims
from koord_numa.core.objects.node import NodeResourceTopology
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement, Rejection, Unschedulable
from koord_numa.core.objects.vocabulary import NumaAllocateStrategy, ScoringType
from koord_numa.core.objects.volumes import Storage
from koord_numa.core.scheduling.filters import ScoredPlacement, answers, evaluate, refuse_everywhere, score_parts
from koord_numa.core.scheduling.request import (
    Profile,
    SchedulingRequest,
    depends_on_other_pods,
    may_be_refused_for_others,
    scheduling_request,
    with_claims,
)
from koord_numa.core.scheduling.scorers import PREFERENCES, SCORERS
from koord_numa.core.state.inventory import NodeSnapshot
from koord_numa.core.value_objects import ValueObject, replace
from koord_numa.engine.cache.cache import Cache
from koord_numa.engine.cache.listers import VolumeLister
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.claims.late_check import ClaimBudgets, ClaimCheck, ExtendedAsk
from koord_numa.engine.claims.lister import ClaimLister
from koord_numa.engine.containment import NodeBackoff
from koord_numa.engine.queue import RequestClass
from koord_numa.engine.ranking.cluster_filters import ClusterFilters
from koord_numa.engine.ranking.node_numbers import Bools
from koord_numa.engine.ranking.node_ranking import KUBELET_STEPS, NodeRanking, Undecided
from koord_numa.engine.ranking.node_table import NodeTable
from koord_numa.ports import Clock
from koord_numa.settings import NodesWithoutTopology, ProfileSettings, ScoringStrategy

COMPARED_STEPS: Final = 100
"""Steps in the states of kubelets after which a comparison of nodes ends: 2 to 6 ms."""


def profile_of(profile: ProfileSettings) -> Profile:
    """Convert the settings of a profile to the type of the core."""
    weights = profile.score_weights
    return Profile(
        allocate=AllocateOptions(
            bind=profile.default_cpu_bind_policy,
            numa_policy=profile.default_numa_policy,
            exclusive=profile.single_numa_node_exclusive,
            strategy=_default_strategy(profile.numa_scoring_strategy),
            scoring=NumaScoring(profile.numa_scoring_strategy.type, _weights(profile.numa_scoring_strategy)),
            restricted=profile.restricted_policy,
            without_topology=_WITHOUT_TOPOLOGY[profile.nodes_without_topology],
        ),
        node_scoring=profile.node_scoring,
        scoring=profile.scoring_strategy.type,
        weights=_weights(profile.scoring_strategy),
        kubelet_options=profile.unknown_kubelet_options,
        score_weights={row.name: getattr(weights, row.name, row.weight) for row in (*SCORERS, *PREFERENCES)},
    )


def _default_strategy(strategy: ScoringStrategy) -> NumaAllocateStrategy:
    """Return the strategy of nodes that set none. As in Koordinator, it follows the NUMA scoring."""
    if strategy.type is ScoringType.MOST_ALLOCATED:
        return NumaAllocateStrategy.MOST_ALLOCATED
    return NumaAllocateStrategy.LEAST_ALLOCATED


def _weights(strategy: ScoringStrategy) -> dict[str, int]:
    return {resource.name: resource.weight for resource in strategy.resources}


_WITHOUT_TOPOLOGY: Mapping[NodesWithoutTopology, WithoutTopology] = {
    NodesWithoutTopology.REFUSE: WithoutTopology.REFUSE,
    NodesWithoutTopology.PERMISSIVE: WithoutTopology.PERMIT,
}


class Limits(ValueObject):
    """Clock of the node back-off, and the maximum number of classes with a cached ranking."""

    clock: Clock
    remembered_classes: int


class ClassRequest(ValueObject):
    """Request of a class under its profile, and the rejection that applies to every node, volumes aside. Immutable."""

    request: SchedulingRequest
    refusal: Rejection | None


class Listers(ValueObject):
    """Listers of objects other than nodes and pods."""

    volumes: VolumeLister
    claims: ClaimLister


class NodeSelection:
    """Node selection of one engine."""

    def __init__(
        self, state: Cache, columns: NodeTable, backoff: NodeBackoff, listers: Listers, limits: Limits
    ) -> None:
        self._state = state
        self._columns = columns
        self._backoff = backoff
        self._clock = limits.clock
        self._rankings: LRUCache[RequestClass, NodeRanking] = LRUCache(maxsize=limits.remembered_classes)
        self._asked: LRUCache[RequestClass, ClassRequest] = LRUCache(maxsize=limits.remembered_classes)
        self._rules: dict[str, Profile] = {}
        self.storage = listers.volumes
        self.claims = listers.claims
        self.budgets = ClaimBudgets(limits.clock)
        self._last_rows: tuple[frozenset[str], Bools] | None = None  # node names and mask of the last call
        state.index.feed(columns.pods, state.nodes.values())

    def decide(self, request_class: RequestClass, images: tuple[str, ...] = ()) -> Placement | Unschedulable:
        """Return the best placement for a pod of this class with these images, or every node's rejection."""
        return self.choose(request_class, images) or self.explain(request_class)

    def choose(
        self, request_class: RequestClass, images: tuple[str, ...] = (), nodes: frozenset[str] | None = None
    ) -> Placement | None:
        """
        Return the best placement for a pod of this class with these images; ``None`` when no node fits.

        If ``nodes`` is given, only these nodes are candidates.
        """
        if (ranking := self._unless_refused(request_class)) is None:
            return None
        return ranking.choose(images, None if nodes is None else self._rows(nodes))

    @property
    def steps(self) -> int:
        """Evaluations of nodes so far, weighted by their duration."""
        return self._columns.steps

    def node_changed(self, record: NodeInfo) -> None:
        """Mark the node as changed although no event reports a change."""
        self._columns.changed(record)

    def _rows(self, nodes: frozenset[str]) -> Bools:
        """Return a mask of the rows of these nodes."""
        columns = self._columns
        if self._last_rows is None or self._last_rows[0] is not nodes or len(self._last_rows[1]) != len(columns.kinds):
            mask = np.zeros(len(columns.kinds), dtype=np.bool_)
            mask[[row for name in nodes if (row := columns.row_of.get(name)) is not None]] = True
            self._last_rows = (nodes, mask)
        return self._last_rows[1]

    def choose_some(
        self, request_class: RequestClass, limit: int, images: tuple[str, ...] = ()
    ) -> Placement | Undecided | None:
        """Choose like ``choose``, with at most ``limit`` nodes evaluated individually; ``UNDECIDED`` when more are needed."""
        return None if (ranking := self._unless_refused(request_class)) is None else ranking.choose_some(limit, images)

    def explain(self, request_class: RequestClass) -> Unschedulable:
        """Return every node's rejection of a pod of this class. Call it after ``choose`` returned ``None``, in the same state."""
        if refusal := self._refusal(request_class):
            return Unschedulable(dict.fromkeys(sorted(self._columns.row_of), refusal))
        return name_classes(self._ranking(request_class).explain(), self.claims.unserved_classes)

    def explain_some(self, request_class: RequestClass, limit: int) -> bool:
        """Prepare ``explain`` by evaluating at most ``limit`` nodes. Return whether all nodes have been evaluated."""
        return self._refusal(request_class) is not None or self._ranking(request_class).explain_some(limit)

    def answers(self, request_class: RequestClass, pod: Pod) -> dict[str, ScoredPlacement | Rejection]:
        """Evaluate every node for one pod, with complete scores. Nothing is cached; the cost is that of evaluating every node."""
        found = sorted(self._state.nodes.items())
        seen = [it for _, record in found if (it := record.candidate_for(pod)) is not None]
        bars = self.bars_of(request_class)
        barred = [replace(it, barred=bar) if (bar := bars(it.node.name)) else it for it in seen]
        found_answers = answers(self._with_images(request_class, pod), barred, self.profile_of(request_class))
        if request_class.claims is None:
            return found_answers
        nodes = {it.node.name: it for it in barred}
        return {
            name: self._with_devices(request_class, nodes[name], answer, pod) for name, answer in found_answers.items()
        }

    def _with_images(self, request_class: RequestClass, pod: Pod) -> SchedulingRequest:
        self._columns.refresh()
        return replace(self.request_now(request_class), images=self._columns.images.seen_by(pod.images))

    def _with_devices(
        self, request_class: RequestClass, seen: NodeSnapshot, answer: ScoredPlacement | Rejection, pod: Pod
    ) -> ScoredPlacement | Rejection:
        if isinstance(answer, Rejection):
            return answer
        placed = self.devices_at(request_class, seen, answer.placement, pod)
        if isinstance(placed, Rejection):
            return placed
        parts = {
            **(answer.parts or {}),
            **score_parts(self._ask(request_class), seen, placed, self.profile_of(request_class)),
        }
        return ScoredPlacement(sum(parts.values()), placed, parts)

    def compare(
        self, request_class: RequestClass, pod: Pod, node: str, others: int
    ) -> dict[str, ScoredPlacement | Rejection]:
        """
        Evaluate the chosen node and the nodes ranked next for the pod, with scores normalized among them.

        Empty for classes that depend on other pods: counting these pods again costs more than the decision did. Nodes
        are left out after ``COMPARED_STEPS`` in the states of kubelets.
        """
        if _looks_around(request_class):
            return {}
        ranking = self._rankings.get(request_class)
        leaders = [] if ranking is None else sorted(ranking.leaders(others + 1))
        names = [node, *(name for name in leaders if name != node)]
        return answers(
            self._with_images(request_class, pod), self._while_few_steps(names, pod), self.profile_of(request_class)
        )

    def _while_few_steps(self, names: Sequence[str], pod: Pod) -> Iterator[NodeSnapshot]:
        end = STEP_COUNT.total + COMPARED_STEPS
        for name in names:
            record = self._state.nodes.get(name)
            seen = None if record is None else record.candidate_for(pod)
            if seen is not None:
                yield seen
            if STEP_COUNT.total > end:
                return

    def paused_until(self, request_class: RequestClass) -> float:
        """Return when a decision that has used its budget for claim selectors may continue; 0 when it may continue now."""
        claims = request_class.claims
        return 0.0 if claims is None else self.budgets.of(request_class.request.namespace, claims).until

    def changed_since(self, position: int | None) -> tuple[list[str] | None, int]:
        """Return the names of nodes changed since a journal position (``None``: unknown, too old) and the current position."""
        columns = self._columns
        rows = None if position is None else columns.rows_since(position)
        if rows is None:
            return None, columns.position
        return [record.name for row in rows if (record := columns.records[row]) is not None], columns.position

    def _refusal(self, request_class: RequestClass) -> Rejection | None:
        """Return the rejection of the class that applies to every node."""
        asked = self._asked_by(request_class)
        if request_class.request.constraints.claims:
            return refuse_everywhere(replace(asked.request, storage=self._storage_now()))
        return asked.refusal

    def _unless_refused(self, request_class: RequestClass) -> NodeRanking | None:
        # A class that is rejected everywhere has no ranking. Only volumes can cause such a rejection later.
        if not request_class.request.constraints.claims and (known := self._rankings.get(request_class)) is not None:
            return known
        return self._ranking(request_class) if self._refusal(request_class) is None else None

    def _ranking(self, request_class: RequestClass) -> NodeRanking:
        ranking = self._rankings.get(request_class)
        if ranking is None:
            cluster = None
            if _looks_around(request_class):
                cluster = ClusterFilters(request_class.request, request_class.pickers, self._columns, self._storage_now)
                if request_class.claims is not None:
                    check = self._claim_check(request_class, request_class.claims)
                    cluster.devices = partial(check.check, self._ask(request_class))
                    cluster.refuse_early, cluster.spent = check.refuse_early, check.spent
                    cluster.begin_turn = check.begin_turn
            ask, bars = self._ask(request_class), self.bars_of(request_class)
            ranking = NodeRanking(ask, self.profile_of(request_class), self._columns, bars, cluster)
            self._rankings[request_class] = ranking
        return ranking

    def devices_at(
        self, request_class: RequestClass, seen: NodeSnapshot, placement: Placement, pod: Pod | None = None
    ) -> Placement | Rejection:
        """
        Return the placement with devices for the claims of the class, or the rejection. Without claims it is unchanged.

        If ``pod`` is given, the placement may use devices that are reserved for this pod or for nominated pods after it.
        """
        if request_class.claims is None:
            return placement
        record = self._state.nodes.get(seen.node.name)
        after = [] if pod is None or record is None else record.nominees_after(pod)
        with self.claims.set_aside(allocation for uid in after for allocation in self.claims.kept_for(uid)):
            check = self._claim_check(request_class, request_class.claims)
            return check.check(self._ask(request_class), seen, placement)

    def claims_for(self, request_class: RequestClass) -> ClaimCheck | None:
        """Return the claim check of the class for assumed states; ``None`` without claims."""
        return None if request_class.claims is None else self._claim_check(request_class, request_class.claims)

    def _claim_check(self, request_class: RequestClass, claims: PodClaims) -> ClaimCheck:
        extended = ExtendedAsk.of(request_class.request, claims, self.profile_of(request_class))
        return ClaimCheck(self.claims, claims, self._topology_of, extended, self.budgets)

    def _topology_of(self, node: str) -> NodeResourceTopology | None:
        info = self._state.nodes.get(node)
        return None if info is None or info.topology is None or info.topology.problem else info.topology

    def _storage_now(self) -> Storage:
        return self.storage.storage()

    def try_node(self, request_class: RequestClass, node: str, pod: Pod | None = None) -> Placement | Rejection | None:
        """
        Evaluate one node; ``None`` when it is unknown. Nothing is cached.

        If ``pod`` is given, the placement may use what is reserved on the node for this pod or for pods of lower priority.
        """
        record = self._state.nodes.get(node)
        if record is None:
            return None
        seen = record.candidate() if pod is None else record.candidate_for(pod)
        if seen is None:
            return None
        ask = self.requirements_now(request_class)
        self._columns.steps += KUBELET_STEPS if isinstance(seen.offer, KubeletView) else 1
        answer = (
            refuse_everywhere(ask)
            or self.bars_of(request_class)(node)
            or evaluate(ask, seen, self.profile_of(request_class))
        )
        return answer if isinstance(answer, Rejection) else self.devices_at(request_class, seen, answer.placement, pod)

    def requirements_now(self, request_class: RequestClass) -> SchedulingRequest:
        """Return the same as ``request_now`` if only rejections matter: pods for preferences are not counted."""
        required = (
            request_class.pickers
            or request_class.claims is not None
            or may_be_refused_for_others(request_class.request)
        )
        return self.request_now(request_class) if required else self._ask(request_class)

    def request_now(self, request_class: RequestClass) -> SchedulingRequest:
        """Return the request of the class in the current state. Pod counts by topology domain change with every placement."""
        if not _looks_around(request_class):
            return self._ask(request_class)
        request, index = request_class.request, self._state.index
        placed = index.near(request.constraints, request.namespace, self._state.nodes.values())
        nodes = [record.node for record in self._state.nodes.values() if record.node is not None]
        return replace(
            self._ask(request_class),
            neighbours=pod_affinity_counts(request, placed, index.namespaces),
            spread=spread_counts(request, nodes, placed) if request.constraints.spread else None,
            storage=self._storage_now() if uses_volumes(request) else None,
        )

    def bars_of(self, request_class: RequestClass) -> "Bars":
        """Return the node bars of this class."""
        return Bars(self._backoff, self._clock, request_class)

    def _ask(self, request_class: RequestClass) -> SchedulingRequest:
        return self._asked_by(request_class).request

    def _asked_by(self, request_class: RequestClass) -> ClassRequest:
        known = self._asked.get(request_class)
        if known is None:
            ask = scheduling_request(request_class.request, self.profile_of(request_class))
            if request_class.claims is not None:
                ask = with_claims(ask, request_class.claims)
            known = self._asked[request_class] = ClassRequest(ask, refuse_everywhere(ask))
        return known

    def profile_of(self, request_class: RequestClass) -> Profile:
        """Return the profile of the scheduler name of the class."""
        name = request_class.profile.scheduler_name
        if name not in self._rules:
            self._rules[name] = profile_of(request_class.profile)
        return self._rules[name]


def _looks_around(request_class: RequestClass) -> bool:
    """Return whether the result for a node depends on more than the node. Such results are not cached."""
    return (
        bool(request_class.pickers) or request_class.claims is not None or depends_on_other_pods(request_class.request)
    )


class Bars:
    """Node bars of one class, from the node back-off."""

    def __init__(self, backoff: NodeBackoff, clock: Clock, request_class: RequestClass) -> None:
        self._backoff = backoff
        self._clock = clock
        self._klass = request_class

    def __call__(self, node: str) -> Rejection | None:
        """Return the rejection of this class on the node, ``None`` if the node is not barred."""
        return self._backoff.refusal(node, self._klass, self._clock()) if len(self._backoff) else None
