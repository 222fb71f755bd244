"""
The order of a rebind's steps: no CPU is ever assigned to two pods at the same time, and nobody is worse off in between.

Theory. A step gives one tenant CPUs that are free at that moment. Where tenants wait for each other in a circle, spare CPUs help:
a tenant takes what is free of its target in exchange for as many others (it comes closer), or leaves CPUs that others wait for
(it steps aside). Coming closer enlarges what tenants have of their targets; stepping aside never lessens that and leaves fewer
CPUs in others' way; so the sequence ends. A tenant for which every such step would be worse than today is dropped and reported.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from koord_numa.core.rebind.cores import lowest
from koord_numa.core.rebind.layout import Arrangement, Figures, NodeLayout
from koord_numa.core.rebind.search import SearchBudget


@dataclass(frozen=True, slots=True)
class Step:
    """One tenant (by its index on the board) goes from these CPU bits to those."""

    tenant: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Route:
    """Steps in order, tenants whose step had to be dropped, and where everybody is in the end."""

    steps: tuple[Step, ...]
    dropped: tuple[int, ...]
    end: Arrangement


def route(
    board: NodeLayout, start: Sequence[int], target: Sequence[int], bar: Figures, effort: SearchBudget
) -> Route | None:
    """
    How to get from ``start`` to ``target``; nobody is worse off in between than on the board today.

    ``None`` as soon as so many tenants were dropped that the end cannot have fewer crossings and split cores than ``bar``, and
    when the effort, in looks for a next step, is spent.
    """
    journey = _Journey(board, start, target)
    steps: list[Step] = []
    dropped: list[int] = []
    crossings, splits, *_ = board.figures(target)
    while journey.waiting and (crossings, splits) <= bar[:2] and effort.spend():
        following = journey.next_step()
        if following is not None:
            steps.append(following)
            journey.take(following)
            continue
        index = journey.give_up()
        dropped.append(index)
        here, there = board.seat(index, journey.seats[index]), board.seat(index, target[index])
        crossings += here.numa_nodes - there.numa_nodes
        splits += here.split_cores - there.split_cores
    return None if journey.waiting else Route(joined(steps), tuple(dropped), tuple(journey.seats))


class _Journey:
    """Where everybody is now, and who still waits for what. Targets of different tenants have no CPU in common."""

    def __init__(self, board: NodeLayout, start: Sequence[int], target: Sequence[int]) -> None:
        self.seats = list(start)
        self.waiting = {index: bits for index, bits in enumerate(target) if bits != self.seats[index]}
        self._board = board
        self._tolerable: dict[tuple[int, int, int, int], list[int]] = {}  # most offers are looked at again and again
        self._free = board.free(self.seats)
        self._smallest_first = sorted(self.waiting, key=lambda i: (len(board.tenants[i].cpus), i))

    def take(self, step: Step) -> None:
        """The step was taken."""
        index = step.tenant
        self._free = (self._free | step.before) & ~step.after
        self.seats[index] = step.after
        if self.waiting[index] == step.after:
            self._forget(index)

    def give_up(self) -> int:
        """The largest tenant waits for nothing any more."""
        largest = self._smallest_first[-1]
        self._forget(largest)
        return largest

    def next_step(self) -> Step | None:
        """Whoever can go all the way; else whoever can come closer, or step aside, without being worse off than today."""
        for index, bits in self.waiting.items():
            if not bits & ~(self._free | self.seats[index]) and self._may_step(index, bits):
                return Step(index, self.seats[index], bits)
        for index in self._smallest_first:
            seat, target = self.seats[index], self.waiting[index]
            # Free CPUs of its target in exchange for CPUs that it will not keep: as many as possible, or fewer.
            reachable = self._free & target
            if reachable and (step := self._exchange(index, seat & ~target, reachable)) is not None:
                return step
        wanted = 0
        for bits in self.waiting.values():
            wanted |= bits
        spare = self._free & ~wanted
        for index in self._smallest_first if spare else ():
            in_the_way = self.seats[index] & wanted & ~self.waiting[index]
            if in_the_way and (step := self._exchange(index, in_the_way, spare)) is not None:
                return step
        return None

    def _forget(self, index: int) -> None:
        del self.waiting[index]
        self._smallest_first.remove(index)

    def _exchange(self, index: int, given: int, taken: int) -> Step | None:
        seat = self.seats[index]
        key = (index, seat, given, taken)
        tolerable = self._tolerable.get(key)
        if tolerable is None:
            offers = _exchanges(self._board, seat, given, taken)
            tolerable = self._tolerable[key] = [bits for bits in offers if self._board.tolerates(index, bits)]
        for bits in tolerable:
            if self._may_step(index, bits):
                return Step(index, seat, bits)
        return None

    def _may_step(self, index: int, bits: int) -> bool:
        board = self._board
        if board.overdrawn((self._free | self.seats[index]) & ~bits):
            return False
        if index not in board.concerned:
            return True
        return not board.friction([*self.seats[:index], bits, *self.seats[index + 1 :]]).harm


def _exchanges(board: NodeLayout, seat: int, given: int, taken: int) -> Iterator[int]:
    """Seats after exchanging CPUs of ``given`` for CPUs of ``taken``: anywhere, then NUMA node by NUMA node, core by core."""
    yield _exchanged(seat, given, taken)
    for numa in board.machine.numa_bits.values():
        if given & numa and taken & numa and (given | taken) & ~numa:
            yield _exchanged(seat, given & numa, taken & numa)
    others = list(_samples(board, taken))
    for core in _samples(board, given) if others else ():
        yield from (seat & ~core | other for other in others if other.bit_count() == core.bit_count())


def _exchanged(seat: int, given: int, taken: int) -> int:
    count = min(given.bit_count(), taken.bit_count())
    return seat & ~lowest(given, count) | lowest(taken, count)


def _samples(board: NodeLayout, bits: int) -> Iterator[int]:
    """The CPUs of one whole core for each NUMA node and shape: the others there are as good for anybody."""
    cores = board.cores
    whole = cores.whole(bits)
    for numa in board.machine.numa_bits.values() if whole else ():
        for firsts, _ in cores.shapes:
            if whole & numa & firsts:
                yield cores.cpus(lowest(whole & numa & firsts, 1))


def joined(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Two steps of one tenant in a row are one, unless they lead back to where it was."""
    kept: list[Step] = []
    for step in steps:
        if kept and kept[-1].tenant == step.tenant:
            step = Step(step.tenant, kept.pop().before, step.after)
        if step.before != step.after:
            kept.append(step)
    return tuple(kept)
