"""
Turns refusals into the sentence that kube-scheduler's readers know, and into a bounded number of lines with numbers.

Every count is of nodes, each node counts once, and the counts add up to all nodes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from heapq import nsmallest
from itertools import groupby
from typing import Final

from koord_numa.core.objects.verdicts import NumaNumbers, Reason, Rejection
from koord_numa.core.resources import CPU, EPHEMERAL_STORAGE, MEMORY, MILLI, NOTHING, ResourceList, is_hugepages

LINES: Final = 3
"""So many nodes are described one by one."""

LENGTH: Final = 1000
"""The longest text, in characters: an Event's message may have 1,024 bytes."""

SHOWN_NUMA: Final = 4
"""So many NUMA nodes of one node are listed; the others have less free and are counted."""

REASONS: Final = 6
"""So many different reasons are named; the rest are counted together."""

ELSEWHERE: Final = frozenset({Reason.NODE_NAME, Reason.NODE_AFFINITY, Reason.TAINT, Reason.UNSCHEDULABLE})
"""The pod does not mean such a node, or the node no such pods: it is counted, and described only when no other is there."""

_BINARY: Final = (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))


def explain(rejections: Mapping[str, Rejection], *, lines: int = LINES, length: int = LENGTH) -> str:
    """
    ``0/8 nodes are available: 3 Insufficient cpu, 5 node(s) ....`` and then lines about the nodes that came closest.

    Reasons are sorted as kube-scheduler sorts them: as texts, their count included.
    """
    text = f"0/{len(rejections)} nodes are available"
    if not rejections:
        return f"{text}."
    text = f"{text}: {', '.join(_counted(rejections))}."
    for node in closest_nodes(rejections, lines):
        told = describe(rejections[node])
        line = f"\n{node}: {told}"
        if not told or len(text) + len(line) > length:
            break
        text += line
    return text if len(text) <= length else f"{text[: length - 3]}..."


def closest_nodes(rejections: Mapping[str, Rejection], count: int) -> list[str]:
    """
    Names of at most so many nodes, those that came closest to taking the pod first; ties by name.

    Nodes that the pod does not mean, or that are too small even when empty, are left out as long as there are others.
    """
    meant = [name for name, rejection in rejections.items() if _is_meant(rejection)] or list(rejections)
    # Not sorted: of thousands of nodes a few are shown.
    return nsmallest(count, meant, key=lambda name: (*_distance(rejections[name]), name))


def describe(rejection: Rejection) -> str:
    """One node's refusal with its numbers: ``NUMA 0 has 4 of 8 CPUs free, NUMA 1 has 6 of 8; needs 8 in one``."""
    parts = [_numbers(resource, list(group)) for resource, group in groupby(rejection.numbers, lambda n: n.resource)]
    if rejection.detail:
        parts.append(rejection.detail)
    if rejection.largest:
        parts.append(f"the largest that fits is {amounts_text(rejection.largest)}")
    return "; ".join(parts)


def _counted(rejections: Mapping[str, Rejection]) -> Iterator[str]:
    counts = Counter(rejection.message for rejection in rejections.values())
    named = sorted(counts, key=lambda message: (-counts[message], message))[:REASONS]
    yield from sorted(f"{counts[message]} {message}" for message in named)
    if rest := sum(counts.values()) - sum(counts[message] for message in named):
        yield f"{rest} for other reasons"


def _is_meant(rejection: Rejection) -> bool:
    """A node that is too small even when it is empty has nothing to tell either, as one without any GPU."""
    too_small = rejection.reason is Reason.RESOURCES and not rejection.resolvable
    return rejection.reason not in ELSEWHERE and not too_small


def _distance(rejection: Rejection) -> tuple[bool, bool, float]:
    """Nodes with numbers first, those that others could make room on first, and then those that lack least."""
    if not rejection.numbers:
        return (True, not rejection.resolvable, 1.0)
    lack = max((1 - n.free / n.needed for n in rejection.numbers if n.needed), default=1.0)
    return (False, not rejection.resolvable, lack)


def _numbers(resource: str, numbers: Sequence[NumaNumbers]) -> str:
    ranked = sorted(numbers, key=lambda n: (-n.free, n.numa))
    shown = sorted(ranked[:SHOWN_NUMA], key=lambda n: n.numa)
    texts = [
        f"NUMA {n.numa} has {bare_amount(resource, n.free)} of {bare_amount(resource, n.total)}"
        + (f" {_unit(resource, n.total)} free{f' {n.shape}' if n.shape else ''}" if index == 0 else "")
        for index, n in enumerate(shown)
    ]
    if len(ranked) > SHOWN_NUMA:
        texts.append(f"{len(ranked) - SHOWN_NUMA} others less")
    return ", ".join(texts)


def amounts_text(amounts: ResourceList) -> str:
    """What there is, as ``8 CPUs, 16Gi memory``, by resource name. Rounded down."""
    return ", ".join(f"{bare_amount(name, amount)} {_unit(name, amount)}" for name, amount in sorted(amounts.items()))


def needs_text(amounts: ResourceList) -> str:
    """What is needed, as ``amounts_text``. Rounded up, so that it never reads as an amount that is free."""
    return ", ".join(
        f"{bare_amount(name, amount, up=True)} {_unit(name, amount)}" for name, amount in sorted(amounts.items())
    )


def cpus_text(cpus: int) -> str:
    """``1 CPU``, ``2 CPUs``."""
    return amounts_text({CPU: cpus * MILLI})


def largest_that_fits(
    wanted: ResourceList, rooms: Iterable[ResourceList], units: ResourceList = NOTHING
) -> dict[str, int]:
    """
    The largest size of a request that one of the rooms holds, in the shape of the request: with some of each resource that it wants.

    ``units`` are the smallest shares of resources, such as a whole core; 1 otherwise. Of several rooms the one wins whose scarcest resource
    covers most of what is wanted, and of equal ones the first. Empty where no room has some of each, and where one holds the whole
    request, which is then rejected for another reason than its size.
    """
    best, covered = {}, Fraction(0)
    for room in rooms:
        unit = {name: max(1, units.get(name, 1)) for name in wanted}
        size = {name: min(amount, room.get(name, 0) // unit[name] * unit[name]) for name, amount in wanted.items()}
        share = min(
            (Fraction(size[name], amount) for name, amount in wanted.items() if amount > 0), default=Fraction(0)
        )
        if share > covered:
            best, covered = size, share
    return best if covered < 1 else {}


def _unit(resource: str, amount: int) -> str:
    if resource == CPU:
        return "CPU" if amount == MILLI else "CPUs"
    return resource


def bare_amount(resource: str, amount: int, *, up: bool = False) -> str:
    """``3.5`` CPUs, ``12.2Gi``, ``4``: for people, bytes rounded to one decimal."""
    if resource == CPU:
        whole, rest = divmod(amount, MILLI)
        return f"{whole}.{rest:03}".rstrip("0") if rest else str(whole)
    if resource in (MEMORY, EPHEMERAL_STORAGE) or is_hugepages(resource) or resource.endswith("memory"):
        for suffix, size in _BINARY:
            if amount >= size:
                tenths = -(-amount * 10 // size) if up else amount * 10 // size
                return f"{tenths / 10:g}{suffix}"
    return str(amount)
