"""
The order of a rebind's steps: no CPU is ever assigned to two pods at the same time, and no pod is worse off in between.

Theory. A step gives one pod CPUs that are free at that moment. Where pods wait for each other in a circle, spare CPUs help:
a pod takes what is free of its target in exchange for as many others (it comes closer), or leaves CPUs that others wait for
(it steps aside). Coming closer enlarges what pods have of their targets; stepping aside never lessens that and leaves fewer
CPUs in others' way; so the sequence ends. A pod for which every such step would be worse than today is dropped and reported.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from koord_numa.core.bit_sets import lowest
from koord_numa.core.rebind.layout import Arrangement, Figures, NodeLayout
from koord_numa.core.rebind.search import SearchBudget


@dataclass(frozen=True, slots=True)
class Step:
    """One pod (by its index on the layout) goes from these CPU bits to those."""

    pinned: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Route:
    """Steps in order, pods whose step had to be dropped, and where every pod is in the end."""

    steps: tuple[Step, ...]
    dropped: tuple[int, ...]
    end: Arrangement


def route(
    layout: NodeLayout, start: Sequence[int], target: Sequence[int], bar: Figures, effort: SearchBudget
) -> Route | None:
    """
    How to get from ``start`` to ``target``; no pod is worse off in between than on the layout today.

    ``None`` as soon as so many pods were dropped that the end cannot have fewer crossings and split cores than ``bar``, and
    when the effort, in looks for a next step, is spent.
    """
    sequencer = _Sequencer(layout, start, target)
    steps: list[Step] = []
    dropped: list[int] = []
    # What the end will have; each dropped pod moves it towards what the pod has today.
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
    """Where every pod is now, and who still waits for what. Targets of different pods have no CPU in common."""

    def __init__(self, layout: NodeLayout, start: Sequence[int], target: Sequence[int]) -> None:
        self.assigned = list(start)
        # In the order of pods, which is that of reallocation: important pods move first.
        self.waiting = {index: bits for index, bits in enumerate(target) if bits != self.assigned[index]}
        self._layout = layout
        self._tolerable: dict[tuple[int, int, int, int], list[int]] = {}  # most offers are looked at again and again
        self._free = layout.free(self.assigned)
        self._smallest_first = sorted(self.waiting, key=lambda i: (len(layout.pods[i].cpus), i))

    def take(self, step: Step) -> None:
        """The step was taken."""
        index = step.pinned
        self._free = (self._free | step.before) & ~step.after
        self.assigned[index] = step.after
        if self.waiting[index] == step.after:
            self._forget(index)

    def give_up(self) -> int:
        """The largest pod waits for nothing any more."""
        largest = self._smallest_first[-1]
        self._forget(largest)
        # The largest blocks most others and is hardest to place with few spare CPUs.
        return largest

    def next_step(self) -> Step | None:
        """A pod that can go all the way; else a pod that can come closer, or step aside, without being worse off than today."""
        # All the way before closer: such a pod needs no second step.
        for index, bits in self.waiting.items():
            if not bits & ~(self._free | self.assigned[index]) and self._may_step(index, bits):
                return Step(index, self.assigned[index], bits)
        # Small pods first: their exchanges need the fewest free CPUs.
        for index in self._smallest_first:
            held, target = self.assigned[index], self.waiting[index]
            # Free CPUs of its target in exchange for CPUs that it will not keep: as many as possible, or fewer.
            reachable = self._free & target
            if reachable and (step := self._exchange(index, held & ~target, reachable)) is not None:
                return step
        wanted = 0
        for bits in self.waiting.values():
            wanted |= bits
        # CPUs that no target wants: only these may be used to step aside, else two pods could swap for ever.
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
    """CPU sets after exchanging CPUs of ``given`` for CPUs of ``taken``: anywhere, then NUMA node by NUMA node, core by core."""
    yield _exchanged(held, given, taken)
    for numa in layout.machine.numa_bits.values():
        # One NUMA node alone only where the exchange as a whole spans several.
        if given & numa and taken & numa and (given | taken) & ~numa:
            yield _exchanged(held, given & numa, taken & numa)
    others = list(_samples(layout, taken))
    for core in _samples(layout, given) if others else ():
        yield from (held & ~core | other for other in others if other.bit_count() == core.bit_count())


def _exchanged(held: int, given: int, taken: int) -> int:
    count = min(given.bit_count(), taken.bit_count())
    return held & ~lowest(given, count) | lowest(taken, count)


def _samples(layout: NodeLayout, bits: int) -> Iterator[int]:
    """The CPUs of one whole core for each NUMA node and shape: the others there are as good for any pod."""
    cores = layout.cores
    whole = cores.whole(bits)
    for numa in layout.machine.numa_bits.values() if whole else ():
        for firsts, _ in cores.shapes:
            if whole & numa & firsts:
                yield cores.cpus(lowest(whole & numa & firsts, 1))


def joined(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Two steps of one pod in a row are one, unless they lead back to where it was."""
    kept: list[Step] = []
    for step in steps:
        if kept and kept[-1].pinned == step.pinned:
            step = Step(step.pinned, kept.pop().before, step.after)
        if step.before != step.after:
            kept.append(step)
    return tuple(kept)
