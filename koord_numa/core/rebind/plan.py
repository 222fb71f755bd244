"""
The plan of a rebind: which pods get which CPUs, in which steps, and what the node looks like before and after.

Pods are reallocated in the order LSE before LSR before others, required before preferred policies, larger before smaller, older
before younger. A plan that improves nothing is empty; a plan never makes a pod worse (``layout.py`` says what worse means).
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
"""Evaluations of arrangements when a node is first looked at."""

_EFFORT_LATER: Final = 500
"""As many again from wherever a route has led."""

_LOOKS: Final = 6_000
"""Looks for a next step, over all routes: a quarter of a second at 384 CPUs; only the most crowded nodes take as many."""

_LOOKS_MORE: Final = 500
"""Looks for a way to the end of all stages that leaves their detours out, and for what stands in the way of more."""

_STAGES: Final = 8
"""So many routes one after the other make up a plan at most."""


@dataclass(frozen=True, slots=True)
class Move:
    """One step: a pod goes from these CPUs to those. ``intermediate``: only to make room; it moves once more later."""

    pod: PodKey
    before: CpuSet
    after: CpuSet
    intermediate: bool = False


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """A node in numbers that people can read."""

    crossing_pods: int  # pods on more than one NUMA node
    crossings: int  # NUMA nodes beyond the first, summed over pods
    split_cores: int
    conflicts: int
    largest_block: Mapping[int, int]  # per NUMA node: CPUs of whole free cores


@dataclass(frozen=True, slots=True)
class RebindPlan:
    """
    Steps in order, and the node before and after.

    ``dropped`` could not be moved for want of spare CPUs, or the node would become better still.
    """

    moves: tuple[Move, ...]
    before: NodeFigures
    after: NodeFigures
    dropped: tuple[PodKey, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.moves)


def plan_rebind(layout: NodeLayout) -> RebindPlan:
    """The best plan that can be carried out step by step; empty when nothing would improve."""
    way = _way(layout)
    return RebindPlan(
        moves=_moves(layout, way.steps),
        before=node_figures(layout, layout.now),
        after=node_figures(layout, way.end),
        dropped=tuple(layout.pods[index].key for index in way.dropped),
    )


def _way(layout: NodeLayout) -> Route:
    """
    The steps to the best arrangement that can be reached.

    What makes an arrangement hard to reach is which pods have to change places with too few CPUs free. So where one better than the
    end cannot be reached, others of equal worth, found from other repackings, are tried from the start.
    """
    way = _staged(layout, better_arrangements(layout, _EFFORT))
    # Nothing stood in the way: the first search's best end was reached.
    if not way.dropped:
        return way
    other = _staged(layout, other_arrangements(layout, _EFFORT))
    return min(way, other, key=lambda found: layout.figures(found.end))


def _staged(layout: NodeLayout, known: Sequence[Arrangement]) -> Route:
    """Stage by stage: what could not be reached for want of spare CPUs is tried again from where the node then stands."""
    looks = SearchBudget(_LOOKS)
    stages: list[Route] = []
    assigned = layout.now
    # Stages share the looks, which bounds the whole plan and not each stage.
    while len(stages) < _STAGES and (way := _best_route(layout, assigned, known, looks)) is not None:
        stages.append(way)
        assigned = way.end
        # From the new position other arrangements may be within reach; those known stay candidates.
        known = ranked(layout, [*known, *improvements(layout, assigned, _EFFORT_LATER)], assigned)
    # A straight way to the same end may need fewer moves than the stages together.
    steps = joined(step for way in stages for step in way.steps)
    direct = (
        route(layout, layout.now, assigned, layout.figures(assigned), SearchBudget(_LOOKS_MORE))
        if len(stages) > 1
        else None
    )
    if direct is not None and direct.end == assigned and len(direct.steps) < len(steps):
        steps = direct.steps
    # A pod that is in the way of something better still, for want of spare CPUs.
    further = route(layout, assigned, known[0], layout.figures_now, SearchBudget(_LOOKS_MORE)) if known else None
    return Route(steps, further.dropped if further else (), assigned)


def _best_route(
    layout: NodeLayout, start: Arrangement, known: Sequence[Arrangement], looks: SearchBudget
) -> Route | None:
    """The route that ends best: one without drops to the best arrangement, else the best end among the first ones."""
    best: Route | None = None
    bar = layout.figures(start)
    for arrangement in _sample(known):
        if bar < layout.figures(arrangement):
            return best  # those that follow are not as good even if they can be reached
        way = route(layout, start, arrangement, bar, looks)
        # [:-1] leaves the number of moves out: fewer moves alone are no improvement.
        if way is None or layout.figures(way.end)[:-1] >= bar[:-1] or not layout.allows(way.end):
            continue
        best, bar = way, layout.figures(way.end)
        if way.end == arrangement:
            break
    return best


def _sample(ranked: Sequence[Arrangement]) -> Iterator[Arrangement]:
    """The first few, then ever fewer: neighbours in the ranking are alike, and what hinders one hinders the next."""
    position = 0
    while position < len(ranked):
        yield ranked[position]
        # Positions 0, 1, 2, 3, 4, 6, 9, 13, …: half as far again each time.
        position = max(position + 1, position * 3 // 2)


def node_figures(layout: NodeLayout, arrangement: Iterable[int]) -> NodeFigures:
    """An arrangement in numbers for people."""
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
    """A layout with its pods in a fixed order, whatever order they came in."""
    # The uid as the last key: orders may be equal, and the same pods must give the same plan.
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
    """By how many NUMA crossings, or by how many CPUs of its largest free block, a node must improve."""

    crossings: int = 1
    block: int = 4


def improvement(plan: RebindPlan, least: Threshold) -> str:
    """What the plan improves, in one clause; empty when that is too little to move pods for."""
    fewer = plan.before.crossings - plan.after.crossings
    # Crossings before blocks, as in the figures by which plans are compared.
    if fewer >= least.crossings:
        return f"NUMA crossings {plan.before.crossings} → {plan.after.crossings}"
    before, after = (max(figures.largest_block.values(), default=0) for figures in (plan.before, plan.after))
    return f"largest free block {before} → {after} CPUs" if after - before >= least.block else ""


def ledger_after(ledger: Ledger, layout: NodeLayout, plan: RebindPlan) -> Ledger:
    """The ledger of the node as it would be at the end of the plan."""
    ends = {move.pod.uid: move.after for move in plan.moves}
    return Ledger.of(
        replace(
            holding, cpus=ends[holding.pod.uid], numa=amounts_after(holding.numa, layout.machine, ends[holding.pod.uid])
        )
        if holding.pod.uid in ends
        else holding
        for holding in ledger
    )
