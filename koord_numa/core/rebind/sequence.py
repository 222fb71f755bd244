"""
The order of the steps of a rebind: no CPU is assigned to two pods at the same time, and no pod is worse off in between.

A step gives one pod CPUs that are free at that time. If pods wait for each other in a cycle, free CPUs help: a pod
exchanges CPUs for free CPUs of its target (progress), or leaves CPUs that other pods wait for (stepping aside).
Progress increases the CPUs that pods have of their targets. Stepping aside never decreases them and leaves fewer CPUs
in the way, so the sequence terminates. A pod without a tolerable step is dropped and reported.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from koord_numa.core.bit_sets import lowest
from koord_numa.core.rebind.layout import Arrangement, Figures, NodeLayout
from koord_numa.core.rebind.search import SearchBudget


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a pod, given by its index in the layout, with its CPU bits before and after."""

    pinned: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Route:
    """Steps in order, the dropped pods, and the final arrangement."""

    steps: tuple[Step, ...]
    dropped: tuple[int, ...]
    end: Arrangement


def route(
    layout: NodeLayout, start: Sequence[int], target: Sequence[int], bar: Figures, effort: SearchBudget
) -> Route | None:
    """
    Return a route from ``start`` to ``target``. No pod is worse off in between than in the layout today.

    The result is None when too many pods are dropped to have at most the crossings and split cores of ``bar``, and when
    the effort, in searches for a next step, is spent.
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
        self._tolerable: dict[tuple[int, int, int, int], list[int]] = {}  # the same exchanges are evaluated many times
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
        Return the next step: a pod that reaches its target, else a pod that makes progress or steps aside without being
        worse off than today.
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
        key = (index, held, given, taken)
        tolerable = self._tolerable.get(key)
        if tolerable is None:
            offers = _exchanges(self._layout, held, given, taken)
            tolerable = self._tolerable[key] = [bits for bits in offers if self._layout.tolerates(index, bits)]
        for bits in tolerable:
            if self._may_step(index, bits):
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
    """Yield CPU sets after an exchange of ``given`` for ``taken``: anywhere, then per NUMA node, then per core."""
    yield _exchanged(held, given, taken)
    for numa in layout.machine.numa_bits.values():
        # A single NUMA node only if the whole exchange spans several.
        if given & numa and taken & numa and (given | taken) & ~numa:
            yield _exchanged(held, given & numa, taken & numa)
    others = list(_samples(layout, taken))
    for core in _samples(layout, given) if others else ():
        yield from (held & ~core | other for other in others if other.bit_count() == core.bit_count())


def _exchanged(held: int, given: int, taken: int) -> int:
    count = min(given.bit_count(), taken.bit_count())
    return held & ~lowest(given, count) | lowest(taken, count)


def _samples(layout: NodeLayout, bits: int) -> Iterator[int]:
    """Yield the CPUs of one whole core per NUMA node and shape. Other such cores are equivalent for any pod."""
    cores = layout.cores
    whole = cores.whole(bits)
    for numa in layout.machine.numa_bits.values() if whole else ():
        for firsts, _ in cores.shapes:
            if whole & numa & firsts:
                yield cores.cpus(lowest(whole & numa & firsts, 1))


def joined(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Merge consecutive steps of the same pod. Steps that return to the start are removed."""
    kept: list[Step] = []
    for step in steps:
        if kept and kept[-1].pinned == step.pinned:
            step = Step(step.pinned, kept.pop().before, step.after)
        if step.before != step.after:
            kept.append(step)
    return tuple(kept)
