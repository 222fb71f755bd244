"""Reference algorithm of the proposal: reallocate all pods in sorted order on the emptied node, even if a pod suffers."""

from collections.abc import Iterable

from koord_numa.core.cpus.cpu_request import CpuRequest
from koord_numa.core.cpus.take import take_cpus
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.vocabulary import NumaAllocateStrategy
from koord_numa.core.rebind.layout import Arrangement, NodeLayout


def in_sorted_order(node: NodeLayout) -> Arrangement | None:
    """
    Every pod again in the documented order, which is that of the layout's pods; ``None`` when a pod gets nothing.

    Where that fails because others took what a pod is tied to, the tied ones come first.
    """
    everyone = range(len(node.pods))
    tied_first = sorted(everyone, key=lambda index: node.pods[index].cpus_per_numa is None)
    return _reallocated(node, everyone) or _reallocated(node, tied_first)


def _reallocated(node: NodeLayout, order: Iterable[int]) -> Arrangement | None:
    free, assigned = node.usable, [0] * len(node.pods)
    for index in order:
        one = node.pods[index]
        places = [(free, len(one.cpus))]
        if one.cpus_per_numa is not None:
            places = [(free & node.machine.numa_bits[numa], count) for numa, count in one.cpus_per_numa.items()]
        for here, count in places:
            request = CpuRequest(count, one.bind, one.exclusive, NumaAllocateStrategy.MOST_ALLOCATED)
            taken = take_cpus(request, node.machine, CpuSet(here))
            if not isinstance(taken, CpuSet):
                return None
            assigned[index] |= taken.bits
        free &= ~assigned[index]
    return tuple(assigned)


def crossings(node: NodeLayout, arrangement: Arrangement) -> tuple[int, ...]:
    """Per pod the NUMA nodes beyond the first."""
    return tuple(sum(1 for here in node.machine.numa_bits.values() if here & bits) - 1 for bits in arrangement)


def broken_rules(node: NodeLayout, arrangement: Arrangement) -> list[str]:
    """Return the names of the rules that an arrangement breaks."""
    broken = [
        f"{pinned.key.name}: more {word}"
        for pinned, new, old in zip(node.pods, node.qualities(arrangement), node.qualities_now, strict=True)
        for word in new._fields
        if getattr(new, word) > getattr(old, word)
    ]
    today, then = (max(node.blocks(node.free(assigned)).values()) for assigned in (node.now, arrangement))
    fewer = node.figures(arrangement).crossings < node.figures_now.crossings
    return [*broken, f"largest block {today} -> {then}"] if then < today and not fewer else broken


def least_crossings(node: NodeLayout) -> int:
    """
    The fewest NUMA borders that pods can cross without being worse off, were each of them alone on the machine.

    A pod that spreads over cores needs as many as it has CPUs, less those that it has twice today. No arrangement can do better.
    """
    numa_bits = node.machine.numa_bits.values()
    cpus = [(node.usable & here).bit_count() for here in numa_bits]
    cores = [sum(1 for core in node.machine.cores if core.bits & here & node.usable) for here in numa_bits]
    cpus.sort(reverse=True)
    cores.sort(reverse=True)
    return sum(_least(node, index, cpus, cores) for index in range(len(node.pods)))


def _least(node: NodeLayout, index: int, cpus: list[int], cores: list[int]) -> int:
    """``cpus`` and ``cores`` are the usable ones by NUMA node, in descending order."""
    pinned, split = node.pods[index], node.qualities_now[index].split_cores
    if pinned.cpus_per_numa is not None:
        return sum(1 for count in pinned.cpus_per_numa.values() if count) - 1
    for number in range(1, len(cpus) + 1):
        roomiest = sum(cpus[:number])
        most_cores = sum(cores[:number]) + split if pinned.spreads else roomiest
        if min(roomiest, most_cores) >= len(pinned.cpus):
            return number - 1
    raise AssertionError("a pod is larger than its machine")
