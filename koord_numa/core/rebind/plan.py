"""
The plan of a rebind: the new CPUs of pods, the order of the steps, and the figures of the node before and after.

Pods are reallocated in this order: LSE before LSR, required before preferred policies, larger before smaller, older
before younger. A plan without improvement is empty. A plan never makes a pod worse off (defined in ``layout.py``).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import PodKey
from koord_numa.core.rebind.layout import Arrangement, Figures, NodeLayout
from koord_numa.core.rebind.pinned_pods import PinnedPod, amounts_after
from koord_numa.core.rebind.search import SearchBudget, better_arrangements, improvements, other_arrangements, ranked
from koord_numa.core.rebind.sequence import Route, Step, joined, route
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.value_objects import replace

_EFFORT: Final = 3_000
"""Maximum evaluations of arrangements in the first search of a node."""

_EFFORT_LATER: Final = 500
"""Maximum evaluations of arrangements in the search from the end of each route."""

_LOOKS: Final = 6_000
"""
Maximum searches for a next step, over all routes: 0.25 s at 384 CPUs. Only the most crowded nodes reach the limit.
"""

_LOOKS_MORE: Final = 500
"""
Maximum searches for a next step on a direct route to the end of all stages, and for the pods that block a further
improvement.
"""

_STAGES: Final = 8
"""Maximum number of consecutive routes in a plan."""


@dataclass(frozen=True, slots=True)
class Move:
    """
    One step: the CPUs of a pod before and after.

    ``intermediate`` marks a step that only makes room: the pod moves again later.
    """

    pod: PodKey
    before: CpuSet
    after: CpuSet
    intermediate: bool = False


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """Figures of a node for users."""

    crossing_pods: int  # pods on more than one NUMA node
    crossings: int  # NUMA nodes beyond the first, summed over pods
    split_cores: int
    conflicts: int
    largest_block: Mapping[int, int]  # CPUs of whole free cores, by NUMA node


@dataclass(frozen=True, slots=True)
class RebindPlan:
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
        moves=_moves(layout, way.steps),
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
    looks = SearchBudget(_LOOKS)
    stages: list[Route] = []
    assigned = layout.now
    # The stages share one budget, which bounds the whole plan.
    while len(stages) < _STAGES and (way := _best_route(layout, assigned, known, looks)) is not None:
        stages.append(way)
        assigned = way.end
        # Other arrangements may be reachable from the new position. The known arrangements stay candidates.
        known = ranked(layout, [*known, *improvements(layout, assigned, _EFFORT_LATER)], assigned)
    # A direct route to the same end may need fewer steps than the stages.
    steps = joined(step for way in stages for step in way.steps)
    direct = (
        route(layout, layout.now, assigned, layout.figures(assigned), SearchBudget(_LOOKS_MORE))
        if len(stages) > 1
        else None
    )
    if direct is not None and direct.end == assigned and len(direct.steps) < len(steps):
        steps = direct.steps
    # Pods that block a further improvement for lack of free CPUs.
    further = route(layout, assigned, known[0], layout.figures_now, SearchBudget(_LOOKS_MORE)) if known else None
    return Route(steps, further.dropped if further else (), assigned)


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
    """Return the figures of an arrangement for users."""
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


def _moves(layout: NodeLayout, steps: Sequence[Step]) -> tuple[Move, ...]:
    last = {step.pinned: position for position, step in enumerate(steps)}
    return tuple(
        Move(
            pod=layout.pods[step.pinned].key,
            before=CpuSet(step.before),
            after=CpuSet(step.after),
            intermediate=last[step.pinned] != position,
        )
        for position, step in enumerate(steps)
    )


@dataclass(frozen=True, slots=True)
class Threshold:
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
