"""
The plan of a rebind: its request, the new CPUs of pods, and an order of the steps in which no CPU is assigned to two pods.

Pods are reallocated in this order: LSE before LSR, required before preferred policies, larger before smaller, older
before younger. A plan without improvement is empty. A plan never makes a pod worse off (defined in ``layout.py``).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpuset import CpuSet, lowest
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.rebind.layout import Arrangement, Figures, NodeLayout, PinnedPod, amounts_after
from koord_numa.core.rebind.search import SearchBudget, better_arrangements, other_arrangements, ranked
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.value_objects import ValueObject, replace

# The order of the steps of a rebind: no CPU is assigned to two pods at the same time, and no pod is worse off in between.
#
# A step gives one pod CPUs that are free at that time. If pods wait for each other in a cycle, free CPUs help: a pod
# exchanges CPUs for free CPUs of its target (progress), or leaves CPUs that other pods wait for (stepping aside).
# Progress increases the CPUs that pods have of their targets. Stepping aside never decreases them and leaves fewer CPUs
# in the way, so the sequence terminates. A pod without a tolerable step is dropped and reported.


class Step(ValueObject):
    """One step of a pod, given by its index in the layout, with its CPU bits before and after."""

    pinned: int
    before: int
    after: int


class Route(ValueObject):
    """Steps in order, the dropped pods, and the final arrangement."""

    steps: tuple[Step, ...]
    dropped: tuple[int, ...]
    end: Arrangement


def route(
    layout: NodeLayout, start: Sequence[int], target: Sequence[int], bar: Figures, effort: SearchBudget
) -> Route | None:
    """
    Return a route from ``start`` to ``target``. After no step is a pod worse off than in the current layout of the node.

    The result is None if the dropped pods leave more crossings or split cores than ``bar`` has, or if ``effort`` is spent.
    One unit of effort is one search for a next step.
    """
    sequencer = _Sequencer(layout, start, target)
    steps: list[Step] = []
    dropped: list[int] = []
    # Figures of the end. Each dropped pod changes them to those of its current place.
    crossings, splits, *_ = layout.figures(target)
    while sequencer.waiting and (crossings, splits) <= bar[:2] and effort.spend():
        following = sequencer.next_step()
        if following is not None:
            steps.append(following)
            sequencer.take(following)
            continue
        index = sequencer.give_up()
        dropped.append(index)
        here, there = layout.shape_of(index, sequencer.assigned[index]), layout.shape_of(index, target[index])
        crossings += here.numa_nodes - there.numa_nodes
        splits += here.split_cores - there.split_cores
    return None if sequencer.waiting else Route(joined(steps), tuple(dropped), tuple(sequencer.assigned))


class _Sequencer:
    """The current place of every pod, and the targets of waiting pods. Targets of different pods are disjoint."""

    def __init__(self, layout: NodeLayout, start: Sequence[int], target: Sequence[int]) -> None:
        self.assigned = list(start)
        # In pod order, which is the order of reallocation: important pods move first.
        self.waiting = {index: bits for index, bits in enumerate(target) if bits != self.assigned[index]}
        self._layout = layout
        self._free = layout.free(self.assigned)
        self._smallest_first = sorted(self.waiting, key=lambda i: (len(layout.pods[i].cpus), i))

    def take(self, step: Step) -> None:
        """Apply a step."""
        index = step.pinned
        self._free = (self._free | step.before) & ~step.after
        self.assigned[index] = step.after
        if self.waiting[index] == step.after:
            self._forget(index)

    def give_up(self) -> int:
        """Drop the largest waiting pod."""
        largest = self._smallest_first[-1]
        self._forget(largest)
        # The largest pod blocks most other pods and is hardest to place with few free CPUs.
        return largest

    def next_step(self) -> Step | None:
        """
        Return the next step: preferably a pod reaches its target, otherwise it comes closer to it or makes room.

        No pod is worse off after the step than in the current layout of the node.
        """
        # Complete moves come first, because they need no second step.
        for index, bits in self.waiting.items():
            if not bits & ~(self._free | self.assigned[index]) and self._may_step(index, bits):
                return Step(index, self.assigned[index], bits)
        # Small pods first: their exchanges need the fewest free CPUs.
        for index in self._smallest_first:
            held, target = self.assigned[index], self.waiting[index]
            # Exchange as many CPUs outside the target as possible for free CPUs of the target.
            reachable = self._free & target
            if reachable and (step := self._exchange(index, held & ~target, reachable)) is not None:
                return step
        wanted = 0
        for bits in self.waiting.values():
            wanted |= bits
        # Only CPUs outside all targets may be used to step aside. Otherwise two pods could swap forever.
        spare = self._free & ~wanted
        for index in self._smallest_first if spare else ():
            in_the_way = self.assigned[index] & wanted & ~self.waiting[index]
            if in_the_way and (step := self._exchange(index, in_the_way, spare)) is not None:
                return step
        return None

    def _forget(self, index: int) -> None:
        del self.waiting[index]
        self._smallest_first.remove(index)

    def _exchange(self, index: int, given: int, taken: int) -> Step | None:
        held = self.assigned[index]
        for bits in _exchanges(self._layout, held, given, taken):
            if self._layout.tolerates(index, bits) and self._may_step(index, bits):
                return Step(index, held, bits)
        return None

    def _may_step(self, index: int, bits: int) -> bool:
        layout = self._layout
        if layout.overdrawn((self._free | self.assigned[index]) & ~bits):
            return False
        following = [*self.assigned[:index], bits, *self.assigned[index + 1 :]]
        if layout.overloaded(following):
            return False
        if index not in layout.constrained:
            return True
        return not layout.conflict_count([*self.assigned[:index], bits, *self.assigned[index + 1 :]]).regression


def _exchanges(layout: NodeLayout, held: int, given: int, taken: int) -> Iterator[int]:
    """Yield CPU sets after an exchange of ``given`` for ``taken``: anywhere, then per NUMA node."""
    yield _exchanged(held, given, taken)
    for numa in layout.machine.numa_bits.values():
        # A single NUMA node only if the whole exchange spans several.
        if given & numa and taken & numa and (given | taken) & ~numa:
            yield _exchanged(held, given & numa, taken & numa)


def _exchanged(held: int, given: int, taken: int) -> int:
    count = min(given.bit_count(), taken.bit_count())
    return held & ~lowest(given, count) | lowest(taken, count)


def joined(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Merge consecutive steps of the same pod. Steps that return to the start are removed."""
    kept: list[Step] = []
    for step in steps:
        if kept and kept[-1].pinned == step.pinned:
            step = Step(step.pinned, kept.pop().before, step.after)
        if step.before != step.after:
            kept.append(step)
    return tuple(kept)


_EFFORT: Final = 3_000
"""Maximum evaluations of arrangements in a search."""

_LOOKS: Final = 6_000
"""
Maximum searches for a next step, over all routes: 0.25 s at 384 CPUs. Only the most crowded nodes reach the limit.
"""

_LOOKS_MORE: Final = 500
"""Maximum searches for a next step to find the pods that block a further improvement."""

_STAGES: Final = 8
"""Maximum number of consecutive routes in a plan."""


class Move(ValueObject):
    """One step: the CPUs of a pod before and after. A pod may move more than once."""

    pod: PodKey
    before: CpuSet
    after: CpuSet


class NodeFigures(ValueObject):
    """Figures of a node that a report shows."""

    crossing_pods: int  # pods on more than one NUMA node
    crossings: int  # NUMA nodes beyond the first, summed over pods
    split_cores: int
    conflicts: int
    largest_block: Mapping[int, int]  # CPUs of whole free cores, by NUMA node


class RebindPlan(ValueObject):
    """
    Steps in order, and the figures of the node before and after.

    ``dropped`` are pods that could not be moved for lack of free CPUs although the node would improve further.
    """

    moves: tuple[Move, ...]
    before: NodeFigures
    after: NodeFigures
    dropped: tuple[PodKey, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.moves)


def plan_rebind(layout: NodeLayout) -> RebindPlan:
    """Return the best plan that can be executed step by step. The plan is empty without an improvement."""
    way = _way(layout)
    return RebindPlan(
        moves=tuple(Move(layout.pods[step.pinned].key, CpuSet(step.before), CpuSet(step.after)) for step in way.steps),
        before=node_figures(layout, layout.now),
        after=node_figures(layout, way.end),
        dropped=tuple(layout.pods[index].key for index in way.dropped),
    )


def _way(layout: NodeLayout) -> Route:
    """
    Return the route to the best reachable arrangement.

    Pods that exchange places with too few free CPUs make an arrangement hard to reach. If a better arrangement is
    unreachable, arrangements of other repackings are tried from the start.
    """
    way = _staged(layout, better_arrangements(layout, _EFFORT))
    # No pod was dropped: the best result of the first search was reached.
    if not way.dropped:
        return way
    other = _staged(layout, other_arrangements(layout, _EFFORT))
    return min(way, other, key=lambda found: layout.figures(found.end))


def _staged(layout: NodeLayout, known: Sequence[Arrangement]) -> Route:
    """
    Return a route in stages. Arrangements that were unreachable for lack of free CPUs are tried again after each stage.
    """
    # The stages share one budget, which bounds the whole plan.
    looks = SearchBudget(_LOOKS)
    steps: list[Step] = []
    assigned = layout.now
    for _ in range(_STAGES):
        way = _best_route(layout, assigned, known, looks)
        if way is None:
            break
        steps.extend(way.steps)
        assigned = way.end
        known = ranked(layout, known, assigned)
    # Pods that block a further improvement for lack of free CPUs.
    further = route(layout, assigned, known[0], layout.figures_now, SearchBudget(_LOOKS_MORE)) if known else None
    return Route(joined(steps), further.dropped if further else (), assigned)


def _best_route(
    layout: NodeLayout, start: Arrangement, known: Sequence[Arrangement], looks: SearchBudget
) -> Route | None:
    """
    Return the best route: the first complete route to an arrangement in the ranking, otherwise the partial route with
    the best end.
    """
    best: Route | None = None
    bar = layout.figures(start)
    for arrangement in _sample(known):
        if bar < layout.figures(arrangement):
            return best  # later arrangements are not better even if they can be reached
        way = route(layout, start, arrangement, bar, looks)
        # [:-1] excludes the number of moves: fewer moves alone are no improvement.
        if way is None or layout.figures(way.end)[:-1] >= bar[:-1] or not layout.allows(way.end):
            continue
        best, bar = way, layout.figures(way.end)
        if way.end == arrangement:
            break
    return best


def _sample(ranked: Sequence[Arrangement]) -> Iterator[Arrangement]:
    """
    Yield the first arrangements, then increasingly fewer: similar arrangements are neighbors in the ranking and fail
    for similar reasons.
    """
    position = 0
    while position < len(ranked):
        yield ranked[position]
        # Positions 0, 1, 2, 3, 4, 6, 9, 13, …: factor 1.5.
        position = max(position + 1, position * 3 // 2)


def node_figures(layout: NodeLayout, arrangement: Iterable[int]) -> NodeFigures:
    """Return the figures of an arrangement that a report shows: crossings, split cores, conflicts and free blocks."""
    assigned = tuple(arrangement)
    figures: Figures = layout.figures(assigned)
    return NodeFigures(
        crossing_pods=sum(quality.numa_nodes > 1 for quality in layout.qualities(assigned)),
        crossings=figures.crossings,
        split_cores=figures.split_cores,
        conflicts=figures.conflicts,
        largest_block=layout.blocks(layout.free(assigned)),
    )


def layout_of_pods(
    machine: CpuTopology, pods: Iterable[PinnedPod], fixed: CpuSet, cpu_limit: Mapping[int, int] | None = None
) -> NodeLayout:
    """Return a layout with its pods in a fixed order, independent of the input order."""
    # The uid is the last key, because orders may be equal and the same pods must give the same plan.
    ordered = tuple(sorted(pods, key=lambda pinned: (pinned.order, pinned.key.uid)))
    return NodeLayout(machine, ordered, fixed, cpu_limit or {})


class Threshold(ValueObject):
    """The required improvement in NUMA crossings, or in CPUs of the largest free block."""

    crossings: int = 1
    block: int = 4


def improvement(plan: RebindPlan, least: Threshold) -> str:
    """Return the improvement of a plan as a clause, or an empty string if it is below the threshold."""
    fewer = plan.before.crossings - plan.after.crossings
    # As in the comparison of plans, crossings come before blocks.
    if fewer >= least.crossings:
        return f"NUMA crossings {plan.before.crossings} → {plan.after.crossings}"
    before, after = (max(figures.largest_block.values(), default=0) for figures in (plan.before, plan.after))
    return f"largest free block {before} → {after} CPUs" if after - before >= least.block else ""


def ledger_after(ledger: Ledger, layout: NodeLayout, plan: RebindPlan) -> Ledger:
    """Return the ledger of the node at the end of the plan."""
    ends = {move.pod.uid: move.after for move in plan.moves}
    return Ledger.of(
        replace(
            holding, cpus=ends[holding.pod.uid], numa=amounts_after(holding.numa, layout.machine, ends[holding.pod.uid])
        )
        if holding.pod.uid in ends
        else holding
        for holding in ledger
    )


DEFAULT_DEADLINE: Final = 600
"""Seconds, as DefaultDeadlineInSeconds of the proposal."""


class RebindAction(StrEnum):
    """Actions of a rebind; the proposal defines one."""

    REBIND_CPU = "RebindCPU"


class RebindPhase(StrEnum):
    """Phases of a rebind; ``NONE`` before any replica has processed it."""

    NONE = ""
    PENDING = "Pending"
    SUCCEED = "Succeed"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


class RebindRequest(ValueObject):
    """
    RebindResource. Times are seconds since the epoch; ``deadline`` counts from ``started``, which is 0 before the start.

    ``plan`` is the plan in the status, for users; no decision uses it. ``ttl`` is the number of seconds after its end (``updated``) until
    it is deleted, ``None`` for never. ``problem`` as for pods.
    """

    name: str
    uid: str
    node: str
    action: RebindAction = RebindAction.REBIND_CPU
    deadline: int = DEFAULT_DEADLINE
    dry_run: bool = False
    move_memory: bool = False
    generation: int = 0
    created: float = 0.0
    phase: RebindPhase = RebindPhase.NONE
    observed_generation: int = 0
    started: float = 0.0
    updated: float = 0.0
    ttl: int | None = None
    deleting: bool = False
    resource_version: str = ""
    plan: tuple["RebindMove", ...] = ()
    problem: str = ""

    @property
    def settled(self) -> bool:
        """True if the rebind has ended. Only a new generation restarts it."""
        return self.phase in (RebindPhase.SUCCEED, RebindPhase.FAILED)

    @property
    def is_answered(self) -> bool:
        """True if the rebind has ended in its current generation."""
        return self.settled and self.observed_generation >= self.generation


class RebindMove(ValueObject):
    """Change of a pod's CPUs: CPU lists before and after."""

    namespace: str
    name: str
    before: str
    after: str


class RebindAnswer(ValueObject):
    """
    Status of a rebind. ``time`` and ``started`` are RFC 3339; ``started`` is empty while the rebind waits for its turn.

    ``plan`` is what was or would be done and ``result`` what was done, by pod. ``steps`` is the number of changes in the plan, which is
    larger if a pod has to make room first. ``stuck`` are pods that could not be moved for lack of spare CPUs.
    """

    phase: RebindPhase
    reason: str
    time: str
    generation: int
    plan: tuple[RebindMove, ...] = ()
    result: tuple[RebindMove, ...] = ()
    steps: int = 0
    stuck: tuple[str, ...] = ()
    before: NodeFigures | None = None
    after: NodeFigures | None = None
    started: str = ""


class PodRevision(ValueObject):
    """Pod as it was just read, with the text of its resource-status, which is the condition for changing its CPUs."""

    pod: Pod
    status_text: str
