"""
Upper bounds on the scores of many nodes at once.

The scalar ``core.scheduling.filters.evaluate`` is the specification. The bound of a row is negative only if ``evaluate`` rejects the
node. Otherwise ``evaluate`` never returns a higher score. A property test checks this.

``NodeRanking`` uses the bounds for branch and bound: it evaluates the node with the largest bound, replaces the bound by the score, and
stops when the largest value is a score.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from koord_numa.core.allocation.demand import AllocationDemand, CpuUse
from koord_numa.core.devices import TYPE_OF, DeviceDemand, device_demand
from koord_numa.core.kubelet import pod_demand
from koord_numa.core.objects.node import DEFAULT_MAX_NUMA_NODES, Node
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.objects.vocabulary import KubeQos, NodeScoring, NumaAllocateStrategy, NumaPolicy, ScoringType
from koord_numa.core.pod_resources import kube_qos
from koord_numa.core.resources import CPU, MEMORY, MILLI, PODS, ResourceList
from koord_numa.core.scheduling.filters import fits_node_object
from koord_numa.core.scheduling.placement import refuse_by_kubelet_config
from koord_numa.core.scheduling.request import Profile, SchedulingRequest, without_resources
from koord_numa.core.scheduling.scorers import (
    SCORERS,
    UNKNOWN_NUMA_NODES,
    alignment_points,
    scored_by_claim,
    wants_own_cpus,
    weight_of,
)
from koord_numa.core.score.least_numa_nodes import normalized
from koord_numa.core.score.node_scores import ALWAYS_SCORED, MAX_SCORE, NUMA_STEP, is_device
from koord_numa.core.value_objects import ValueObject, replace
from koord_numa.engine.ranking.label_columns import NAME_FIELD, DeviceBounds, LabelColumns
from koord_numa.engine.ranking.node_numbers import (
    COMMON,
    DIVISORS,
    FREE,
    SPARES,
    UNLIMITED,
    Bools,
    Ints,
    NodeClass,
    compares_numbers,
)
from koord_numa.engine.ranking.node_table import MOST_HELD, MOST_LINES, AmountTable, NodeTable

NOTHING_LISTED: Final = 0
"""Number of required NUMA nodes where no NUMA node lists a requested resource."""


@dataclass(frozen=True, slots=True)
class RequestAlignment:
    """
    Alignment properties of a request that do not depend on a node.

    ``pinned`` is the maximum milli-CPU that a kubelet would pin for one container. ``counts`` are the CPUs of each container. ``amounts``
    are those of the whole pod.
    """

    amounts: ResourceList
    pinned: int
    counts: tuple[int, ...]
    qos: KubeQos
    use: CpuUse
    policy: NumaPolicy  # NUMA policy of the pod
    distributes: bool  # whether the pod requests spreading over NUMA nodes
    in_kubelet: bool  # whether a kubelet aligns any part of the pod
    by_default: bool  # aligned by the configured policy where neither pod nor node has a policy
    default: bool  # aligned by the configured policy where pods with whole CPUs get exclusive CPUs

    @classmethod
    def of(cls, ask: SchedulingRequest, rules: Profile) -> Self:
        """Return the alignment of a request under one profile."""
        pod = pod_demand(ask.request)
        # A pod with a rejected demand is rejected on every node, so that its bounds are irrelevant.
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
        """Return whether the pod may be aligned on a node of this class."""
        if kind.config is not None:
            return self.in_kubelet
        return self.must_be_on(kind) or (kind.zones and (self.by_default or (self.default and kind.pins)))

    def must_be_on(self, kind: NodeClass) -> bool:
        """Return whether a NUMA policy certainly applies on nodes of this class whose CPUs the scheduler allocates."""
        # Without published NUMA nodes no policy applies.
        if not kind.zones:
            return False
        if (self.policy, kind.policy) != (NumaPolicy.NONE, NumaPolicy.NONE) or self.use is CpuUse.POOL_OF_ONE_NUMA:
            return True
        return self.by_default and not self.distributes and kind.aligns_by_default

    def needs_one_on(self, kind: NodeClass) -> bool:
        """Return whether the pod has to be placed on a single NUMA node on this class."""
        return kind.wants_one or (self.policy is NumaPolicy.SINGLE_NUMA_NODE and kind.config is None and kind.zones)

    def splits_cores_of(self, kind: NodeClass) -> bool:
        """Return whether a container would split a core that must be kept whole."""
        return any(count % kind.threads for count in self.counts)

    def wanted_on(self, kind: NodeClass) -> ResourceList:
        """Return the amounts required on NUMA nodes. A kubelet requires only the CPUs that it pins, per container."""
        return self.amounts if kind.config is None else {CPU: self.pinned}


def numa_score_bound(method: NodeScoring, alignment: RequestAlignment, kind: NodeClass, fewest: int) -> int:
    """Return the maximum NUMA score, 0 to 100, on a node of this class if the request needs at least ``fewest`` NUMA nodes."""
    if method is NodeScoring.FEWEST_NUMA_NODES:
        # ``fewest`` 1 gives the maximum: 100 + 10 - 10.
        return max(0, MAX_SCORE + NUMA_STEP - NUMA_STEP * fewest) if alignment.may_be_on(kind) else 0
    # ``is not``: the value 0 is a marker here, not a number of NUMA nodes.
    if method is NodeScoring.LEAST_NUMA_NODES and kind.config is None and fewest is not NOTHING_LISTED:
        return _least_numa_nodes(alignment, kind, fewest)
    return MAX_SCORE


def alignment_bound(alignment: RequestAlignment, kind: NodeClass, fewest: int) -> int:
    """
    Return the maximum of ``score_alignment`` for a request for exclusive CPUs.

    Where a NUMA policy certainly applies, the placement uses one set of at least ``fewest`` NUMA nodes for all resources. Elsewhere only
    the NUMA nodes of the CPUs count, which may be a single one. There a pod with shared CPUs counts as on ``UNKNOWN_NUMA_NODES``.
    The same is possible for every pod on a node whose kubelet allocates CPUs.
    """
    if kind.config is not None:
        return alignment_points(min(fewest, UNKNOWN_NUMA_NODES) if fewest is not NOTHING_LISTED else 1)
    if alignment.use is not CpuUse.OWN:
        return alignment_points(1 if kind.pins else UNKNOWN_NUMA_NODES)
    return alignment_points(fewest if alignment.must_be_on(kind) and fewest is not NOTHING_LISTED else 1)


def _least_numa_nodes(alignment: RequestAlignment, kind: NodeClass, fewest: int) -> int:
    owns, is_guaranteed = alignment.use is CpuUse.OWN, alignment.qos is KubeQos.GUARANTEED
    # Fourth case: the pod is not bound to NUMA nodes, so that the score is 100.
    if not owns and not is_guaranteed and (alignment.needs_one_on(kind) or not alignment.must_be_on(kind)):
        return MAX_SCORE
    if not alignment.must_be_on(kind) and (owns or kind.pins):
        # Second case: only its CPUs count, which may be on one NUMA node.
        fewest = 1
    return normalized(fewest, optimal=True, highest=DEFAULT_MAX_NUMA_NODES)


Floats = NDArray[np.float64]

NEVER: Final = -(1 << 20)
"""Marks a rejection: the sum of all other parts of a score is smaller than its absolute value with the default weights."""

# Array operations on a few rows take half the time if the operands are arrays already.
ZERO: Final = np.array(0)
ONE: Final = np.array(1)
FULL: Final = np.array(MAX_SCORE)


Some = slice | list[int]
"""Indices of resources; adjacent indices as a slice, which needs no copy."""


class BoundsPlan(ValueObject):
    """Relevant lines of the table for one request. Valid until a resource is added."""

    # int64[lines, 1], so that it is added to int64[lines, rows] by broadcasting.
    wanted: Ints  # requested amount per resource line
    hundredfold: Ints  # int64[2, 1]: requested CPU and memory, times 100
    usual: bool  # whether only the CPU and memory usage and the sparing of nodes with devices are scored
    even: bool  # whether all scored resources have the same weight; the weights are 1 then
    requested: frozenset[int]
    scored: Some
    weights: Ints
    total: Ints  # sum of the weights
    common: slice
    percents: slice  # lines that are needed in percent
    devices: list[int]  # device lines, if the request includes devices
    spares: bool  # whether the request has no devices and nodes have devices
    by_claim: list[
        int
    ]  # lines of resources that are served by claim, or by a Device object, on a row that offers none of them
    by_device: list[int]  # lines of requested resources that a Device object may have


class Taken(ValueObject):
    """
    Amounts by resource and row: allocatable, used including the pod, and the usage in percent for the lines ``percents`` of the plan.

    ``common`` is the usage of CPU and memory in percent, at most 100.
    """

    offered: Ints
    used: Ints
    percent: Ints
    common: Ints


class ResourceBounds:
    """Resource scores of one request under one profile."""

    def __init__(self, ask: SchedulingRequest, rules: Profile, table: AmountTable, weights: Mapping[str, int]) -> None:
        self._amounts = ask.amounts
        self._extended = frozenset(name for name, _ in ask.claims.extended) if ask.claims is not None else frozenset()
        # Resources that a node may have without listing them: by claim, or by its Device object.
        self._unlisted = self._extended.union(name for name in ask.amounts if name in TYPE_OF)
        self._rules = rules
        self._table = table
        # Zero-dimensional arrays: NumPy would convert integers in every operation. The usual weight 1 needs no
        # operation.
        self._filling_weight = None if weights["resources"] == 1 else np.array(weights["resources"])
        self._sparing_weight = None if weights["devices"] == 1 else np.array(weights["devices"])
        self._plan: BoundsPlan  # from the last call of ``requested``

    def requested(self) -> dict[int, int]:
        """
        Return 100 times the required free amount by line, if the node does not serve the resource by claim. New resources get a line.

        To be called before the first and after every change of the lines.
        """
        self._plan = plan = self._make_plan()
        # Only requested resources can be insufficient (fitsRequest skips zero requests).
        return {line: MAX_SCORE * int(plan.wanted[line, 0]) for line in plan.requested.difference(plan.by_claim)}

    def points(self, rows: Ints, numbers: Ints) -> Ints:
        """
        Return the weighted scores of filling and sparing whole nodes, minus their maximum, for rows with these numbers.

        All resources of the table must have been in the table at the last call of ``requested``.
        """
        plan = self._plan
        if not plan.usual or self._table.bare:
            return self._of_any_plan(rows, numbers)
        # Same result as ``_of_any_plan`` with the fewest operations: each costs the same for one row and for a hundred.
        # Indexed by line and row.
        common = numbers[:, COMMON].T.copy()
        # Minus 100: (held + requested - offered) / offered = (requested - free) / offered.
        percent = plan.hundredfold - common[FREE:]
        percent //= common[DIVISORS]
        np.minimum(ZERO, percent, out=percent)
        cpu, memory = percent[0], percent[1]  # unpacking an array takes four times as long
        # ``dot`` takes half the time of ``@`` on a few rows: (resources,) by (resources, rows) is (rows,).
        filling = cpu + memory if plan.even else plan.weights.dot(percent)
        filling //= plan.total
        return self._weighted(filling, _ahead(cpu, memory, common[SPARES]) if plan.spares else None)

    def _weighted(self, filling: Ints, ahead: Ints | None) -> Ints:
        """Combine both scores in place. ``ahead`` is the deduction for sparing, ``None`` if it is 0 for all rows."""
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
        percent *= there > ZERO  # usage of a resource that is not offered is 0
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

    def lists_all(self, rows: Ints) -> NDArray[np.bool_]:
        """Return whether the Nodes of these rows list every requested resource that their Device objects may have instead."""
        found: NDArray[np.bool_] = np.logical_and.reduce(
            self._table.offered[self._plan.by_device].take(rows, axis=1) > ZERO
        )
        return found

    def _make_plan(self) -> BoundsPlan:
        table, weights = self._table, self._rules.weights
        for name in (*ALWAYS_SCORED, *weights, *self._amounts):
            # Pods can contain any resource name: above the limit a resource has no line, and only ``evaluate`` handles
            # it. Half of the lines is left for resources that nodes offer later.
            if len(table.resources) < MOST_LINES // 2:
                table.place(name)
        lines = table.resources
        wanted = {PODS: 1, **self._amounts}
        common = (lines[CPU], lines[MEMORY])  # adjacent: ``FIRST_RESOURCES``
        scored = {line: weights[name] for name, line in lines.items() if name in weights and self._counts(name)}
        devices = [line for name, line in lines.items() if is_device(name)]
        sparing = any(is_device(name) for name, amount in self._amounts.items() if amount > 0)
        whole = slice(common[0], common[1] + 1)
        everywhere = bool(scored) and set(scored) <= set(common)
        # Clipped like the amounts in the table, so that sums stay within 64 bits.
        amounts = np.array([[min(wanted.get(name, 0), MOST_HELD)] for name in lines], dtype=np.int64)
        requested = frozenset(line for name, line in lines.items() if wanted.get(name, 0) > 0)
        even = len(set(scored.values())) == 1 and 0 not in scored.values()
        if even:
            scored = dict.fromkeys(scored, 1)
        by_most = self._rules.scoring is ScoringType.MOST_ALLOCATED and set(scored) == set(common)
        return BoundsPlan(
            wanted=amounts,
            hundredfold=amounts[whole] * MAX_SCORE,
            usual=by_most and not sparing and not self._unlisted,
            even=even,
            requested=requested,
            scored=_some(list(scored)),
            weights=np.array(list(scored.values()), dtype=np.int64),
            total=np.array(sum(scored.values())),
            common=whole,
            percents=whole if everywhere and not sparing else slice(0, len(lines)),
            devices=devices if sparing else [],
            spares=bool(devices) and not sparing,
            by_claim=[line for name, line in lines.items() if name in self._unlisted],
            by_device=[line for name, line in lines.items() if name in self._amounts and name in TYPE_OF],
        )

    def _counts(self, name: str) -> bool:
        return name in ALWAYS_SCORED or self._amounts.get(name, 0) > 0

    def _with_claims(self, filling: Ints, taken: Taken) -> Ints:
        """Set the maximum score for rows that serve scored resources by claim: the devices are scored when they are allocated."""
        for name in scored_by_claim(self._extended, self._rules):
            line = self._table.resources.get(name)
            # Above the limit of lines the offered amount of every row is unknown.
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
        # Divided by the weights of the resources that the node has; the divisor is 1 if it has none.
        return np.asarray(
            points // np.maximum(plan.weights.dot(taken.offered[plan.scored] > ZERO), ONE), dtype=np.int64
        )

    def _least(self, taken: Taken) -> Ints:
        """Return the usage of the least used device in percent, including the requested devices."""
        first, *others = self._plan.devices
        # Rows without the device get 100: nothing is deducted from their score, as for values above 100.
        least: Ints = taken.percent[first]
        np.putmask(least, taken.offered[first] <= ZERO, FULL)
        for line in others:
            np.minimum(least, taken.percent[line], out=least, where=taken.offered[line] > ZERO)
        return least


def _ahead(cpu: Ints, memory: Ints, least: Ints) -> Ints:
    """Return the number of points by which the larger of CPU and memory usage exceeds the usage of the least used device."""
    ahead: Ints = np.maximum(cpu, memory)
    ahead -= least
    np.maximum(ZERO, ahead, out=ahead)
    return ahead


def _some(numbers: list[int]) -> Some:
    if not numbers:
        return slice(0, 0)
    whole = slice(numbers[0], numbers[-1] + 1)
    # A slice of adjacent lines is a view; a list of indices would copy.
    return whole if len(numbers) == whole.stop - whole.start else numbers


def _balance(offered: Ints, used: Ints) -> Ints:
    """Return the balanced allocation score, with the same operations in the same order as the scalar code, so that rounding is equal."""
    known = offered > 0
    shares = np.where(known, np.minimum(1.0, used / np.maximum(offered, 1)), 0.0)
    count = np.maximum(1, known.sum(axis=0))
    off = shares - _in_order(shares) / count
    squares = np.where(known, off * off, 0.0)
    score = ((1 - np.sqrt(_in_order(squares) / count)) * MAX_SCORE).astype(np.int64)
    return np.where(known.any(axis=0), score, 0)


def _in_order(values: Floats) -> Floats:
    """Return the sums over the resources, added in the order of the scalar code."""
    return reduce(np.add, values)


def names_nodes(request: PodRequest) -> bool:
    """Return whether the request has hard requirements on names or labels of nodes."""
    demands = request.constraints
    return bool(demands.node_name or demands.node_selector or demands.node_terms is not None)


def of_any_node(ask: SchedulingRequest) -> SchedulingRequest:
    """Return the request without requirements on names and labels of nodes."""
    free = replace(ask.request.constraints, node_name="", node_selector=(), node_terms=None)
    return replace(ask, request=replace(ask.request, constraints=free))


class SelectedRows:
    """Rows that ``fits_node_name`` and ``fits_node_affinity`` accept, as a mask ``bool[table rows]``."""

    def __init__(self, request: PodRequest, labels: LabelColumns) -> None:
        self._demands = request.constraints
        self._labels = labels
        self._known: tuple[tuple[int, int], Bools] | None = None  # with the version of the labels

    def mask(self) -> Bools:
        """Return the mask. It is recomputed when a relevant label or name has changed on some row."""
        if self._known is None or self._known[0] != self._labels.version:
            mask = self._mask()
            # The version is read after the mask is computed.
            self._known = (
                self._labels.version,
                mask,
            )  # the first computation creates columns, which changes the version
        return self._known[1]

    def _mask(self) -> Bools:
        demands, labels = self._demands, self._labels
        mask = labels.equal(demands.node_selector)
        if demands.node_terms is not None:
            mask &= labels.matching(demands.node_terms)
        if demands.node_name:
            mask &= labels.equal(((NAME_FIELD, demands.node_name),))
        return np.asarray(mask, dtype=np.bool_)


TIGHT: Final = frozenset(("resources", "devices", "numa", "alignment", "partitions"))
"""Scorers with a bound of their own. Every other scorer counts as ``MAX_SCORE``."""

NO: Final = -1
"""Bound of rows that are not evaluated. Bounds of other rejecting rows are smaller."""
EXPLORES: Final = NEVER // 2
"""Like ``NEVER``, for a pod that would explore: the score of such a placement is 0 (``score_parts``)."""
MAY_EXPLORE: Final = np.array((NEVER + EXPLORES) // 2)
"""Threshold: a negative sum above it contains ``EXPLORES`` and not ``NEVER``."""

NOTHING: Final = -(1 << 62)
"""Required amount of a line that every row satisfies."""
UNLISTED: Final = 1
"""Line without a required amount. Represents rows whose NUMA nodes do not list any of the requested resources."""


class ClassJudgement(ValueObject):
    """
    Requirements and scores of a request class by node class; ``NEVER`` where the node class is rejected.

    ``wanted[kind, line]`` is the required amount. ``points[starts[kind] + line]`` is the bound, with the maximum scores for filling and
    sparing, where ``line`` is the first line with too little. ``line`` is 0, which has no requirement, if no line has too little.
    """

    points: Ints  # one-dimensional, because NumPy takes several times as long to look up two indices
    starts: Ints
    wanted: Ints
    explores: bool  # whether the request would explore on any class
    one_numa_node: Bools  # by class: whether the scheduler places the request on a single NUMA node
    version: tuple[int, int]  # versions of the table's classes and of the lines


class ScoreBounds:
    """
    Upper bounds for one request under one profile.

    The weighted sum of ``SCORERS`` is bounded; preferences are added later (``PreferenceRows``). No term is less than the term of
    ``evaluate``:

    - Filters on the Node object are evaluated for each node class, filters on names and labels for all rows (``SelectedRows``).
    - Amounts of whole nodes and of NUMA nodes are compared in one operation (``NodeNumbers``). ``ResourceBounds`` scores whole nodes.
    - The alignment is relaxed: ``fewest`` is, for each resource separately, the number of emptiest NUMA nodes that hold the amount.
      A placement uses one set of NUMA nodes for all resources, so it uses at least ``fewest``, and the ``numa`` and ``alignment`` scores
      decrease with the number of NUMA nodes; see ``numa_score_bound`` and ``alignment_bound``. Scorers that are not ``TIGHT`` count as
      ``MAX_SCORE``.

    Shapes: ``rows`` are n row indices; bounds are ``int64[n]``. ``ClassJudgement`` holds ``wanted[kinds, lines]`` and points by class and
    line, with the lines of ``NodeNumbers``. Points by ``fewest`` have ``counts + 2`` columns: 1 to ``counts + 1``, then ``NOTHING_LISTED``.

    Example. A pod requests 6000 milli-CPU aligned. NUMA nodes with 4000, 3000 and 500 free have the sums 4000, 7000 and 7500. One sum is
    below 6000, so ``fewest`` is 2 and the ``numa`` score at most 100 + 10 - 10 * 2 = 90. With a ``resources`` score of 40 and weights of 1
    the bound is 130. If a bind policy cannot use all free CPUs of the first two NUMA nodes, ``evaluate`` uses three (80 + 40 = 120) or
    rejects the node.
    """

    def __init__(self, ask: SchedulingRequest, rules: Profile, columns: NodeTable) -> None:
        self._ask = ask
        self._rules = rules
        self._columns = columns
        self._by_count = rules.numa_method is NodeScoring.LEAST_NUMA_NODES
        self._by_numbers = compares_numbers(ask.request)
        self._selected = SelectedRows(ask.request, columns.labels) if names_nodes(ask.request) else None
        # Requirements on names and labels are evaluated by row; classes do not include them.
        self._anywhere = ask if self._selected is None else of_any_node(ask)
        self._weights = {row.name: weight_of(row, rules) for row in SCORERS}
        others = (row for row in SCORERS if row.name not in TIGHT and row.concerns(ask))
        self._most_of_others = sum(self._weights[row.name] * MAX_SCORE for row in others)
        extended = () if ask.claims is None else ask.claims.extended
        # For a node that serves all extended resources by claim, which requires the least of NUMA nodes. ``_ends`` adds
        # the opposite case.
        least = without_resources(ask, (name for name, _ in extended)) if extended else ask
        self._alignment = RequestAlignment.of(least, rules)
        self._ends = ((least, self._alignment), (ask, RequestAlignment.of(ask, rules))) if extended else ()
        self._ledger = ResourceBounds(ask, rules, columns.amounts, self._weights)
        has_devices = isinstance(device_demand(ask.request), DeviceDemand)
        self._devices = DeviceBounds(ask, columns.devices, self._weights["partitions"], NEVER) if has_devices else None
        self._judgement = self._judge()
        # By row, the evaluated node and its result. The result is valid for the same node object.
        self._of_node: dict[int, tuple[Node, int]] = {}

    def bounds(self, rows: Ints) -> Ints:
        """Return an upper bound of the score of each row, negative if the row is rejected. The columns must be up to date."""
        if self._selected is None:
            return self._bounds(rows)
        selected = self._selected.mask().take(rows)
        # Rows that are not selected keep ``NO`` and are not evaluated.
        bound: Ints = np.full(len(rows), NO, dtype=np.int64)
        if selected.any():
            bound[selected] = self._bounds(rows[selected])
        return bound

    def _bounds(self, rows: Ints) -> Ints:
        """Return the bounds of rows with matching names and labels."""
        judged, kinds = self._up_to_date(), self._columns.kinds[rows]
        numbers, wanted = self._columns.numbers.rows.take(rows, axis=0), judged.wanted.take(kinds, axis=0)
        # Comparing contiguous arrays of the same shape takes a fraction of the time of broadcasting.
        first = (numbers < wanted).argmax(axis=1)
        if self._by_count:
            # No NUMA node lists a requested resource: the number of NUMA nodes is undefined.
            first[(first == ZERO) & ~self._lists_any(numbers, wanted)] = UNLISTED
        first += judged.starts[kinds]
        bound: Ints = judged.points[first]
        if self._by_numbers:
            bound += np.fromiter((self._of_row(int(row)) for row in rows), dtype=np.int64, count=len(rows))
        bound += self._ledger.points(rows, numbers)
        if self._devices is not None:
            bound += self._devices.points(rows, self._ledger.lists_all(rows), judged.one_numa_node[kinds])
        if judged.explores:
            bound[(bound < ZERO) & (bound > MAY_EXPLORE)] = 0
        return bound

    def _lists_any(self, numbers: Ints, wanted: Ints) -> Bools:
        """Return whether NUMA nodes of these rows list any of the resources requested from NUMA nodes."""
        # Free amount of the emptiest NUMA node; unlimited for an unlisted resource.
        emptiest = slice(-len(self._columns.numbers.places), None)
        listed: Bools = (numbers[:, emptiest] < UNLIMITED) & (wanted[:, emptiest] > 0)
        found: Bools = np.logical_or.reduce(listed, axis=1)
        return found

    def _up_to_date(self) -> ClassJudgement:
        columns, judged = self._columns, self._judgement
        # Recomputed when a class number was reused or lines have moved.
        if judged.version != (columns.kinds_version, columns.numbers.version):
            judged = self._judgement = self._judge()
        return judged

    def _judge(self) -> ClassJudgement:
        columns, alignment, requested = self._columns, self._alignment, self._ledger.requested()
        kinds, numbers = columns.known_kinds, columns.numbers
        wanted = np.full((len(kinds), numbers.rows.shape[1]), NOTHING, dtype=np.int64)
        for line, amount in requested.items():
            wanted[:, FREE + line] = amount
        amounts = [alignment.wanted_on(kind) for kind in kinds]
        # As in the table, where ``UNLIMITED`` means "not published per NUMA node".
        aligned = [[min(each.get(name, 0), UNLIMITED) for name in numbers.places] for each in amounts]
        wanted[:, numbers.first_reach :] = np.tile(np.array(aligned, dtype=np.int64), numbers.counts)
        # Evaluated by row where the class is not sufficient.
        objects = np.array([0 if self._by_numbers else self._of(kind.example) for kind in kinds], dtype=np.int64)
        points = np.array([self._points(kind, numbers.counts + 2) for kind in kinds], dtype=np.int64) + objects[:, None]
        # With the maximum scores for filling and sparing.
        points += (self._weights["resources"] + self._weights["devices"]) * MAX_SCORE
        return ClassJudgement(
            points=self._by_line(points).ravel(),
            starts=np.arange(len(kinds)) * numbers.rows.shape[1],
            wanted=wanted,
            explores=any(kind.explores and alignment.splits_cores_of(kind) for kind in kinds),
            one_numa_node=np.array(
                [kind.config is None and alignment.needs_one_on(kind) for kind in kinds], dtype=np.bool_
            ),
            version=(columns.kinds_version, columns.numbers.version),
        )

    def _by_line(self, points: Ints) -> Ints:
        """Convert points by minimum number of NUMA nodes (last: nothing listed) to points by class and line."""
        numbers = self._columns.numbers
        found = np.full((len(points), numbers.rows.shape[1]), NEVER, dtype=np.int64)
        found[:, 0], found[:, UNLISTED] = points[:, 0], points[:, -1]
        # If the sum over all NUMA nodes is too small, ``fewest`` is one more than there are; with the next sum, all of
        # them, and so on.
        found[:, numbers.first_reach :] = np.repeat(points[:, numbers.counts : 0 : -1], len(numbers.places), axis=1)
        return found

    def _points(self, kind: NodeClass, counts: int) -> list[int]:
        """Return the maximum score on a class by minimum number of NUMA nodes, without filling, sparing and partitions."""
        if not self._ends:
            return self._points_of(self._ask, self._alignment, kind, counts)
        # Rows differ in which extended resources are amounts, so that the number of NUMA nodes cannot be used as a
        # bound.
        return [max(max(self._points_of(ask, alignment, kind, counts)) for ask, alignment in self._ends)] * counts

    def _points_of(
        self, ask: SchedulingRequest, alignment: RequestAlignment, kind: NodeClass, counts: int
    ) -> list[int]:
        # A kubelet whose configuration cannot satisfy the pod rejects it whatever is free.
        if kind.config is not None and refuse_by_kubelet_config(ask, kind.config) is not None:
            return [NEVER] * counts
        weight, one = self._weights["numa"], alignment.needs_one_on(kind)
        most = self._most_of_others
        if alignment.splits_cores_of(kind):
            most = EXPLORES if kind.explores else NEVER
        points, owns = [], wants_own_cpus(ask)
        for fewest in (*range(1, counts), NOTHING_LISTED):
            score = numa_score_bound(self._rules.numa_method, alignment, kind, fewest)
            # A single-NUMA-node policy rejects a pod whose amounts need two NUMA nodes.
            aligned = self._weights["alignment"] * alignment_bound(alignment, kind, fewest) if owns else 0
            points.append(NEVER if one and fewest > 1 else weight * score + aligned + most)
        return points

    def _of_row(self, row: int) -> int:
        record = self._columns.records[row]
        if record is None or record.node is None:
            return NEVER
        known = self._of_node.get(row)
        if known is None or known[0] is not record.node:
            known = self._of_node[row] = (record.node, self._of(record.node))
        return known[1]

    def _of(self, node: Node) -> int:
        return 0 if fits_node_object(self._anywhere, node) is None else NEVER
