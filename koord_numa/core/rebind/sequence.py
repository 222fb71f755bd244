"""
The order of a rebind's steps: no CPU is ever assigned to two pods at the same time, and nobody is worse off in between.

Theory. A step gives one tenant CPUs that are free at that moment. Where tenants wait for each other in a circle, spare CPUs help:
a tenant takes what is free of its target in exchange for as many others (it comes closer), or leaves CPUs that others wait for
(it steps aside). Coming closer enlarges what tenants have of their targets; stepping aside never lessens that and leaves fewer
CPUs in others' way; so the sequence ends. A tenant for which every such step would be worse than today is dropped and reported.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.rebind.board import Arrangement, Board


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


def route(board: Board, target: Sequence[int]) -> Route:
    """How to get from today's arrangement to ``target``."""
    seats = list(board.now)
    waiting = {index: bits for index, bits in enumerate(target) if bits != seats[index]}
    steps: list[Step] = []
    dropped: list[int] = []
    while waiting:
        following = _next_step(board, seats, waiting)
        if following is None:
            hopeless = max(waiting, key=lambda i: (len(board.tenants[i].cpus), i))
            del waiting[hopeless]
            dropped.append(hopeless)
            continue
        index, bits = following
        steps.append(Step(index, seats[index], bits))
        seats[index] = bits
        if waiting[index] == bits:
            del waiting[index]
    return Route(_joined(steps), tuple(dropped), tuple(seats))


def _next_step(board: Board, seats: Sequence[int], waiting: Mapping[int, int]) -> tuple[int, int] | None:
    """Whoever can go all the way; else whoever can come closer, or step aside, without being worse off than today."""
    free = board.free(seats)
    for index, bits in waiting.items():
        if not bits & ~(free | seats[index]) and _may_step(board, seats, index, bits):
            return index, bits
    ascending = sorted(waiting, key=lambda i: (len(board.tenants[i].cpus), i))
    for index in ascending:
        for bits in _closer(board, seats[index], waiting[index], free):
            if board.tolerates(index, bits) and _may_step(board, seats, index, bits):
                return index, bits
    wanted = _union(waiting.values())
    for index in ascending:
        in_the_way = seats[index] & _union(bits for other, bits in waiting.items() if other != index) & ~waiting[index]
        for bits in _exchanges(board, seats[index], in_the_way, free & ~wanted):
            if board.tolerates(index, bits) and _may_step(board, seats, index, bits):
                return index, bits
    return None


def _may_step(board: Board, seats: Sequence[int], index: int, bits: int) -> bool:
    return board.may_pass([*seats[:index], bits, *seats[index + 1 :]])


def _closer(board: Board, seat: int, target: int, free: int) -> Iterator[int]:
    """The seat with free CPUs of its target in exchange for CPUs it will not keep: as many as possible, or fewer."""
    return _exchanges(board, seat, seat & ~target, free & target & ~seat)


def _exchanges(board: Board, seat: int, given: int, taken: int) -> Iterator[int]:
    """Seats after exchanging CPUs of ``given`` for CPUs of ``taken``: anywhere, then NUMA node by NUMA node, core by core."""
    if not given or not taken:
        return
    yield from _exchange(seat, given, taken)
    for numa in board.machine.numa_bits.values():
        yield from _exchange(seat, given & numa, taken & numa)
    whole = [other for numa in board.machine.numa_ids for other in board.cores_on[numa] if other & taken == other]
    for numa in board.machine.numa_ids if whole else ():
        for core in board.cores_on[numa]:
            if core & given == core:
                yield from (seat & ~core | other for other in whole if other.bit_count() == core.bit_count())


def _exchange(seat: int, given: int, taken: int) -> Iterator[int]:
    count = min(given.bit_count(), taken.bit_count())
    if count:
        yield seat & ~_lowest(given, count) | _lowest(taken, count)


def _joined(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Two steps of one tenant in a row are one, unless they lead back to where it was."""
    joined: list[Step] = []
    for step in steps:
        if joined and joined[-1].tenant == step.tenant:
            step = Step(step.tenant, joined.pop().before, step.after)
        if step.before != step.after:
            joined.append(step)
    return tuple(joined)


def _union(parts: Iterable[int]) -> int:
    bits = 0
    for part in parts:
        bits |= part
    return bits


def _lowest(bits: int, count: int) -> int:
    chosen = 0
    for cpu, _ in zip(CpuSet(bits), range(count), strict=False):
        chosen |= 1 << cpu
    return chosen
