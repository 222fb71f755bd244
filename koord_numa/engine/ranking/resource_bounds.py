"""Upper bounds on the scores of many nodes at once: amounts of whole nodes, and NUMA nodes."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from koord_numa.core.allocation.demand import AllocationDemand, CpuUse
from koord_numa.core.kubelet.demand import pod_demand
from koord_numa.core.objects.node import DEFAULT_MAX_NUMA_NODES
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.objects.vocabulary import KubeQos, NodeScoring, NumaAllocateStrategy, NumaPolicy, ScoringType
from koord_numa.core.pod_resources import kube_qos
from koord_numa.core.resources import CPU, MEMORY, MILLI, PODS, ResourceList
from koord_numa.core.scheduling.request import Profile, SchedulingRequest
from koord_numa.core.scheduling.scorers import UNKNOWN_NUMA_NODES, alignment_points, scored_by_claim
from koord_numa.core.score.least_numa_nodes import normalized
from koord_numa.core.score.node_scores import ALWAYS_SCORED, MAX_SCORE, is_device
from koord_numa.core.score.zones import NUMA_STEP
from koord_numa.core.value_objects import ValueObject
from koord_numa.engine.ranking.node_numbers import COMMON, DIVISORS, FREE, SPARES, Ints, NodeClass
from koord_numa.engine.ranking.node_table import MOST_HELD, MOST_LINES, AmountTable

NOTHING_LISTED: Final = 0
"""The number of NUMA nodes needed where none lists any resource that is requested."""


@dataclass(frozen=True, slots=True)
class RequestAlignment:
    """
    What a request says about its alignment, before any node is looked at. ``pinned`` is the most milli-CPU that a kubelet would pin for one
    container, ``counts`` are the CPUs of each; ``amounts`` are those of the whole pod.
    """

    amounts: ResourceList
    pinned: int
    counts: tuple[int, ...]
    qos: KubeQos
    use: CpuUse
    policy: NumaPolicy  # its own
    distributes: bool  # are its CPUs spread over NUMA nodes by its own word?
    in_kubelet: bool  # does a kubelet align any of it?
    by_default: bool  # where neither it nor the node names a policy?
    default: bool  # where pods with whole CPUs get their own?

    @classmethod
    def of(cls, ask: SchedulingRequest, rules: Profile) -> Self:
        """For one request under one set of rules."""
        pod = pod_demand(ask.request)
        # A pod whose own demand is refused is refused on every node; what bounds are worth for it does not matter.
        demand = AllocationDemand(ask.amounts) if isinstance(ask.demand, Rejection) else ask.demand
        default = rules.allocate.numa_policy is not NumaPolicy.NONE
        return cls(
            amounts=ask.amounts,
            pinned=MILLI * max(pod.counts, default=0),
            counts=pod.counts,
            qos=kube_qos(ask.request),
            use=demand.use,
            policy=demand.numa,
            distributes=demand.strategy is NumaAllocateStrategy.DISTRIBUTE_EVENLY,
            in_kubelet=any(part.cpus or part.memory or part.devices for _, part in pod.containers),
            by_default=default and demand.use is not CpuUse.SHARED,
            default=default,
        )

    def may_be_on(self, kind: NodeClass) -> bool:
        """May the pod be aligned on such a node?"""
        if kind.config is not None:
            return self.in_kubelet
        return self.must_be_on(kind) or (kind.zones and (self.by_default or (self.default and kind.pins)))

    def must_be_on(self, kind: NodeClass) -> bool:
        """Is a NUMA policy in force there for sure? On nodes whose CPUs the scheduler owns."""
        # Without published NUMA nodes no policy has anything to choose from.
        if not kind.zones:
            return False
        if (self.policy, kind.policy) != (NumaPolicy.NONE, NumaPolicy.NONE) or self.use is CpuUse.POOL_OF_ONE_NUMA:
            return True
        return self.by_default and not self.distributes and kind.aligns_by_default

    def needs_one_on(self, kind: NodeClass) -> bool:
        """Would it have to sit on one NUMA node there?"""
        return kind.wants_one or (self.policy is NumaPolicy.SINGLE_NUMA_NODE and kind.config is None and kind.zones)

    def splits_cores_of(self, kind: NodeClass) -> bool:
        """Would a container split a core that has to be kept whole?"""
        return any(count % kind.threads for count in self.counts)

    def wanted_on(self, kind: NodeClass) -> ResourceList:
        """What has to be found on NUMA nodes. A kubelet looks only for CPUs that it pins, of each container by itself."""
        return self.amounts if kind.config is None else {CPU: self.pinned}


def numa_score_bound(method: NodeScoring, alignment: RequestAlignment, kind: NodeClass, fewest: int) -> int:
    """The most points, 0 to 100, that a request earns on such a node when it needs at least ``fewest`` NUMA nodes."""
    if method is NodeScoring.FEWEST_NUMA_NODES:
        # ``fewest`` 1 is the full score: 100 + 10 - 10.
        return max(0, MAX_SCORE + NUMA_STEP - NUMA_STEP * fewest) if alignment.may_be_on(kind) else 0
    # ``is not``: the value 0 is a mark here, and no count of NUMA nodes.
    if method is NodeScoring.LEAST_NUMA_NODES and kind.config is None and fewest is not NOTHING_LISTED:
        return _least_numa_nodes(alignment, kind, fewest)
    return MAX_SCORE


def alignment_bound(alignment: RequestAlignment, kind: NodeClass, fewest: int) -> int:
    """
    The most points of ``score_alignment``, for a request that wants CPUs of its own.

    Where a NUMA policy is in force for sure, the placement is on one set of NUMA nodes for all resources: at least ``fewest``. Elsewhere
    only its CPUs are counted, which may lie on one NUMA node. A pod that shares CPUs there counts as on ``UNKNOWN_NUMA_NODES``, and so may
    any pod on a kubelet's node.
    """
    if kind.config is not None:
        return alignment_points(min(fewest, UNKNOWN_NUMA_NODES) if fewest is not NOTHING_LISTED else 1)
    if alignment.use is not CpuUse.OWN:
        return alignment_points(1 if kind.pins else UNKNOWN_NUMA_NODES)
    return alignment_points(fewest if alignment.must_be_on(kind) and fewest is not NOTHING_LISTED else 1)


def _least_numa_nodes(alignment: RequestAlignment, kind: NodeClass, fewest: int) -> int:
    owns, is_guaranteed = alignment.use is CpuUse.OWN, alignment.qos is KubeQos.GUARANTEED
    # The fourth way: tied to no NUMA node, so that the score is 100 whatever is free.
    if not owns and not is_guaranteed and (alignment.needs_one_on(kind) or not alignment.must_be_on(kind)):
        return MAX_SCORE
    if not alignment.must_be_on(kind) and (owns or kind.pins):
        # The second way: only its CPUs are counted, which may lie on one NUMA node.
        fewest = 1
    return normalized(fewest, optimal=True, highest=DEFAULT_MAX_NUMA_NODES)


Floats = NDArray[np.float64]

NEVER: Final = -(1 << 20)
"""Points that no other part of a score can make up for: there are five parts of 100 points at most, and weights are not above 100."""

# Array operations on a few rows are twice as fast with numbers that are arrays already.
ZERO: Final = np.array(0)
ONE: Final = np.array(1)
FULL: Final = np.array(MAX_SCORE)


Some = slice | list[int]
"""Some of the resources; neighbours as a slice, which costs nothing to take."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Which lines matter, and how. Valid while no resource is new."""

    # int64[lines, 1], so that it is added to int64[lines, rows] by broadcasting.
    wanted: Ints  # a line a resource, to be added to each row
    hundredfold: Ints  # int64[2, 1]: how much CPU and memory is wanted, times 100
    usual: bool  # is only asked how full CPU and memory are, and how much a node without the pod's devices is to be spared?
    even: bool  # do all that are scored weigh the same? Then their weights are 1
    requested: frozenset[int]
    scored: Some
    weights: Ints
    total: Ints  # the sum of the weights
    common: slice
    percents: slice  # the lines of which anything is asked in percent
    devices: list[int]  # where the request wants some
    spares: bool  # where it wants none: are there devices that nodes know the use of?
    by_claim: list[int]  # a row that has none of these serves them by claim


class Taken(ValueObject):
    """
    By resource and row: what there is, what is used with the pod, and how much that is in percent, of the lines ``percents`` of the plan.
    ``common`` are the percents of CPU and memory, 100 at most.
    """

    offered: Ints
    used: Ints
    percent: Ints
    common: Ints


class ResourceBounds:
    """The amounts of one request under one set of rules."""

    def __init__(self, ask: SchedulingRequest, rules: Profile, table: AmountTable, weights: Mapping[str, int]) -> None:
        self._amounts = ask.amounts
        self._extended = frozenset(name for name, _ in ask.claims.extended) if ask.claims is not None else frozenset()
        self._rules = rules
        self._table = table
        # Arrays of no dimension: NumPy would convert integers in every operation. A weight of 1, which is usual, costs no operation.
        self._filling_weight = None if weights["resources"] == 1 else np.array(weights["resources"])
        self._sparing_weight = None if weights["devices"] == 1 else np.array(weights["devices"])
        self._plan = self._make_plan()

    def requested(self) -> dict[int, int]:
        """By line, a hundredfold, what a node has to have free that cannot serve it by claim. Resources that are new get their lines."""
        self._plan = plan = self._make_plan()
        # Only what is requested can be short (fitsRequest skips zero requests).
        return {line: MAX_SCORE * int(plan.wanted[line, 0]) for line in plan.requested.difference(plan.by_claim)}

    def points(self, rows: Ints, numbers: Ints) -> Ints:
        """
        What filling and sparing of whole nodes earn, weighted, less the most that they can, for every row, whose numbers are given. No
        resource may be new.
        """
        plan = self._plan
        if not plan.usual or self._table.bare:
            return self._of_any_plan(rows, numbers)
        # As of any plan, in the fewest operations: each costs the same for one row and for a hundred. By line and row from here on.
        common = numbers[:, COMMON].T.copy()
        # Less 100: what is held and wanted, less what is offered, is what is wanted less what is free.
        percent = plan.hundredfold - common[FREE:]
        percent //= common[DIVISORS]
        np.minimum(ZERO, percent, out=percent)
        cpu, memory = percent[0], percent[1]  # unpacking an array takes four times as long
        # ``dot`` costs half of ``@`` on a few rows: (resources,) by (resources, rows) is (rows,).
        filling = cpu + memory if plan.even else plan.weights.dot(percent)
        filling //= plan.total
        return self._weighted(filling, _ahead(cpu, memory, common[SPARES]) if plan.spares else None)

    def _weighted(self, filling: Ints, ahead: Ints | None) -> Ints:
        """Both are changed. ``ahead`` is what sparing takes off, ``None`` where it takes nothing off any row."""
        if self._filling_weight is not None:
            filling *= self._filling_weight
        if ahead is not None:
            if self._sparing_weight is not None:
                ahead *= self._sparing_weight
            filling -= ahead
        return filling

    def _of_any_plan(self, rows: Ints, numbers: Ints) -> Ints:
        plan, offered = self._plan, self._table.offered.take(rows, axis=1)
        free = numbers[:, FREE : FREE + len(offered)].T // FULL
        used = offered - free
        used += plan.wanted
        there = offered[plan.percents]
        percent = used[plan.percents] * FULL
        # Where nothing is offered the divisor is 1.
        percent //= np.maximum(there, ONE)
        percent *= there > ZERO  # of nothing no part is used
        common = percent if plan.percents == plan.common else percent[plan.common]
        taken = Taken(offered, used, percent, np.minimum(FULL, common))
        least = FULL + numbers[:, SPARES] if plan.spares else self._least(taken) if plan.devices else None
        filling = self._with_claims(self._filling(taken), taken) - FULL
        ahead = None if least is None else _ahead(taken.common[0], taken.common[1], least)
        points = self._weighted(filling, ahead)
        if plan.by_claim:
            claimed = sorted(plan.requested.intersection(plan.by_claim))
            lacks = (free[claimed] < plan.wanted[claimed]) & (offered[claimed] > ZERO)
            points[np.logical_or.reduce(lacks)] = NEVER
        return points

    def _make_plan(self) -> Plan:
        table, weights = self._table, self._rules.weights
        for name in (*ALWAYS_SCORED, *weights, *self._amounts):
            # Names in a pod are any user's: beyond the limit a resource has no line and only ``evaluate`` judges it.
            # They leave room for what nodes offer later.
            if len(table.resources) < MOST_LINES // 2:
                table.place(name)
        lines = table.resources
        wanted = {PODS: 1, **self._amounts}
        common = (lines[CPU], lines[MEMORY])  # neighbours: ``FIRST_RESOURCES``
        scored = {line: weights[name] for name, line in lines.items() if name in weights and self._counts(name)}
        devices = [line for name, line in lines.items() if is_device(name)]
        sparing = any(is_device(name) for name, amount in self._amounts.items() if amount > 0)
        whole = slice(common[0], common[1] + 1)
        everywhere = bool(scored) and set(scored) <= set(common)
        # Cut as amounts in the table are, so that sums stay within 64 bits.
        amounts = np.array([[min(wanted.get(name, 0), MOST_HELD)] for name in lines], dtype=np.int64)
        requested = frozenset(line for name, line in lines.items() if wanted.get(name, 0) > 0)
        even = len(set(scored.values())) == 1 and 0 not in scored.values()
        if even:
            scored = dict.fromkeys(scored, 1)
        by_most = self._rules.scoring is ScoringType.MOST_ALLOCATED and set(scored) == set(common)
        return Plan(
            wanted=amounts,
            hundredfold=amounts[whole] * MAX_SCORE,
            usual=by_most and not sparing and not self._extended,
            even=even,
            requested=requested,
            scored=_some(list(scored)),
            weights=np.array(list(scored.values()), dtype=np.int64),
            total=np.array(sum(scored.values())),
            common=whole,
            percents=whole if everywhere and not sparing else slice(0, len(lines)),
            devices=devices if sparing else [],
            spares=bool(devices) and not sparing,
            by_claim=[line for name, line in lines.items() if name in self._extended],
        )

    def _counts(self, name: str) -> bool:
        return name in ALWAYS_SCORED or self._amounts.get(name, 0) > 0

    def _with_claims(self, filling: Ints, taken: Taken) -> Ints:
        """Rows that serve scored resources by claim count as the best that they can be: their devices are counted when they are chosen."""
        for name in scored_by_claim(self._extended, self._rules):
            line = self._table.resources.get(name)
            # Beyond the table's limit nothing is known of any row.
            filling = (
                np.full_like(filling, MAX_SCORE)
                if line is None
                else np.where(taken.offered[line] > ZERO, filling, FULL)
            )
        return filling

    def _filling(self, taken: Taken) -> Ints:
        plan, strategy = self._plan, self._rules.scoring
        if strategy is ScoringType.LEAST_NUMA_NODES or not len(plan.weights):
            return np.zeros(taken.offered.shape[1], dtype=np.int64)
        if strategy is ScoringType.BALANCED_ALLOCATION:
            return _balance(taken.offered[plan.scored], taken.used[plan.scored])
        if strategy is ScoringType.MOST_ALLOCATED:
            terms = taken.common if plan.scored == plan.common else np.minimum(FULL, taken.percent[plan.scored])
        else:
            offered = taken.offered[plan.scored]
            terms = np.maximum(ZERO, offered - taken.used[plan.scored]) * FULL // np.maximum(offered, ONE)
        points: Ints = plan.weights.dot(terms)
        # Weights of resources that the node has; without any the divisor is 1.
        return np.asarray(
            points // np.maximum(plan.weights.dot(taken.offered[plan.scored] > ZERO), ONE), dtype=np.int64
        )

    def _least(self, taken: Taken) -> Ints:
        """The percent of the least used device, with those that the pod wants."""
        first, *others = self._plan.devices
        # Rows without the device are at 100, as those are never at risk; above it nothing is ahead either.
        least: Ints = taken.percent[first]
        np.putmask(least, taken.offered[first] <= ZERO, FULL)
        for line in others:
            np.minimum(least, taken.percent[line], out=least, where=taken.offered[line] > ZERO)
        return least


def _ahead(cpu: Ints, memory: Ints, least: Ints) -> Ints:
    """By how many points the fullest of CPU and memory is ahead of the least used device."""
    ahead: Ints = np.maximum(cpu, memory)
    ahead -= least
    np.maximum(ZERO, ahead, out=ahead)
    return ahead


def _some(numbers: list[int]) -> Some:
    if not numbers:
        return slice(0, 0)
    whole = slice(numbers[0], numbers[-1] + 1)
    # Neighbouring lines as a slice are a view; a list of numbers would copy.
    return whole if len(numbers) == whole.stop - whole.start else numbers


def _balance(offered: Ints, used: Ints) -> Ints:
    """As the balanced score: the same operations in the same order, so that not even the last digit differs."""
    known = offered > 0
    shares = np.where(known, np.minimum(1.0, used / np.maximum(offered, 1)), 0.0)
    count = np.maximum(1, known.sum(axis=0))
    off = shares - _in_order(shares) / count
    squares = np.where(known, off * off, 0.0)
    score = ((1 - np.sqrt(_in_order(squares) / count)) * MAX_SCORE).astype(np.int64)
    return np.where(known.any(axis=0), score, 0)


def _in_order(values: Floats) -> Floats:
    """Sums over the resources, added one after the other as Python adds."""
    return reduce(np.add, values)
