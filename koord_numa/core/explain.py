"""
Convert rejections to the message of kube-scheduler and a bounded number of lines with numbers.

Counts are numbers of nodes. Each node counts once, and the counts add up to all nodes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import groupby
from math import inf
from typing import Final

from koord_numa.core.objects.verdicts import NumaNumbers, Reason, Rejection
from koord_numa.core.resources import CPU, EPHEMERAL_STORAGE, MEMORY, MILLI, NOTHING, ResourceList, is_hugepages

LINES: Final = 3
"""Maximum nodes that are described individually."""

LENGTH: Final = 1000
"""Maximum characters of the text. The message of an Event may have 1,024 bytes."""

SHOWN_NUMA: Final = 4
"""Maximum NUMA nodes listed per node. The others have less free and are only counted."""

REASONS: Final = 6
"""Maximum reasons that are named. The rest is counted together."""

ELSEWHERE: Final = frozenset({Reason.NODE_NAME, Reason.NODE_AFFINITY, Reason.TAINT, Reason.UNSCHEDULABLE})
"""Reasons of nodes that are not intended for the pod: they are counted, and described only if there are no other nodes."""

_BINARY: Final = (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))


def explain(rejections: Mapping[str, Rejection], *, lines: int = LINES) -> str:
    """
    Return ``0/8 nodes are available: 3 Insufficient cpu, 5 node(s) ....``, then lines about the nodes that came closest.

    Reasons are sorted as in kube-scheduler: as texts that include their count.
    """
    text = f"0/{len(rejections)} nodes are available"
    if not rejections:
        return f"{text}."
    text = f"{text}: {', '.join(_counted(rejections))}."
    for node in closest_nodes(rejections, lines):
        told = describe(rejections[node])
        line = f"\n{node}: {told}"
        if not told or len(text) + len(line) > LENGTH:
            break
        text += line
    return text if len(text) <= LENGTH else f"{text[: LENGTH - 3]}..."


def closest_nodes(rejections: Mapping[str, Rejection], count: int) -> list[str]:
    """
    Return the names of at most ``count`` nodes, the closest to a fit first, ties by name.

    The closest node of each group (``group_of``) precedes further nodes of a group, so that the rejection of a small pool is not hidden by
    those of a large pool. Nodes that are not intended for the pod, or too small even when empty, are omitted if there are others.
    """
    # By identity: nodes without details share one object per message.
    known = {id(it): (distance(it), None if it.lack == DROPPED else group_of(it)) for it in rejections.values()}
    ranked = [(*known[id(rejection)], name) for name, rejection in rejections.items()]
    if any(far < ELSEWHERE_DISTANCE for far, _, _ in ranked):
        ranked = [entry for entry in ranked if entry[0] < ELSEWHERE_DISTANCE]
    first: dict[Group, tuple[float, str]] = {}
    for far, group, name in ranked:
        if group is not None and (group not in first or (far, name) < first[group]):
            first[group] = (far, name)
    chosen = nsmallest(count, first.values())
    if len(chosen) < count:
        taken = {name for _, name in chosen}
        # Not sorted: only a few of thousands of nodes are shown.
        more = ((far, name) for far, _, name in ranked if name not in taken)
        chosen = sorted([*chosen, *nsmallest(count - len(chosen), more)])
    return [name for _, name in chosen]


Group = tuple[Reason, str, tuple[tuple[int, str, int], ...]]


def group_of(rejection: Rejection) -> Group:
    """Return the group of a rejection: the reason, the message, and the size of the NUMA nodes."""
    sizes = tuple((it.numa, it.resource, _size(it.total)) for it in rejection.numbers)
    return rejection.reason, rejection.message, sizes


def _size(total: int) -> int:
    # Machines of one model differ in a few pages of memory, so that bytes are compared by their order of magnitude.
    return total if total < 1 << 20 else total.bit_length() << 20


DROPPED: Final = inf
"""``lack`` of a rejection without its details. Its distance is unknown, and larger than that of every node with details."""

ELSEWHERE_DISTANCE: Final = 4.0
"""Distance from which a node is not intended for the pod, or too small even when empty."""


def distance(rejection: Rejection) -> float:
    """
    Return how far a node is from a fit, for comparisons.

    Nodes with numbers per NUMA node come first, then resolvable rejections, then by the missing share of the scarcest
    resource on the NUMA node that has most of it.
    """
    too_small = rejection.reason is Reason.RESOURCES and not rejection.resolvable
    far = ELSEWHERE_DISTANCE if rejection.reason in ELSEWHERE or too_small else 0.0
    if rejection.lack == DROPPED:
        return far + 3.9995
    if not rejection.numbers:
        far += 2.0
    if not rejection.resolvable:
        far += 1.0
    return far + min(0.999, _lack(rejection))


def _lack(rejection: Rejection) -> float:
    if not rejection.numbers:
        return max(0.0, rejection.lack)
    by_numa: dict[int, float] = {}
    for it in rejection.numbers:
        if it.needed:
            by_numa[it.numa] = max(by_numa.get(it.numa, 0.0), 1 - it.free / it.needed)
    return max(0.0, min(by_numa.values(), default=1.0))


def describe(rejection: Rejection) -> str:
    """Return a rejection with its numbers: ``NUMA 0 has 4 of 8 CPUs free, NUMA 1 has 6 of 8; needs 8 in one``."""
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
    """Return available amounts as ``8 CPUs, 16Gi memory``, by resource name. Rounded down."""
    return ", ".join(f"{bare_amount(name, amount)} {_unit(name, amount)}" for name, amount in sorted(amounts.items()))


def needs_text(amounts: ResourceList) -> str:
    """Return needed amounts as ``amounts_text``. Rounded up, so that they never equal a smaller free amount."""
    return ", ".join(
        f"{bare_amount(name, amount, up=True)} {_unit(name, amount)}" for name, amount in sorted(amounts.items())
    )


def cpus_text(cpus: int) -> str:
    """Return a text such as ``1 CPU`` or ``2 CPUs``."""
    return amounts_text({CPU: cpus * MILLI})


def largest_that_fits(
    wanted: ResourceList, rooms: Iterable[ResourceList], units: ResourceList = NOTHING
) -> dict[str, int]:
    """
    Return the largest part of a request that a room holds, with some of each requested resource.

    ``units`` are the smallest shares of resources, such as a whole core, by default 1. The room with the highest
    coverage of its scarcest resource wins, then the first. Empty if no room has some of each, and if a room holds the
    whole request, which then has another reason of rejection.
    """
    best, covered = {}, 0.0
    unit = {name: max(1, units.get(name, 1)) for name in wanted}
    for room in rooms:
        size = {name: min(amount, room.get(name, 0) // unit[name] * unit[name]) for name, amount in wanted.items()}
        share = min([size[name] / amount for name, amount in wanted.items() if amount > 0], default=0.0)
        if share > covered:
            best, covered = size, share
    return best if covered < 1 else {}


def _unit(resource: str, amount: int) -> str:
    if resource == CPU:
        return "CPU" if amount == MILLI else "CPUs"
    return resource


def bare_amount(resource: str, amount: int, *, up: bool = False) -> str:
    """Return an amount for users: ``3.5`` CPUs, ``12.2Gi``, ``4``. Bytes are rounded to one decimal."""
    if resource == CPU:
        whole, rest = divmod(amount, MILLI)
        return f"{whole}.{rest:03}".rstrip("0") if rest else str(whole)
    if resource in (MEMORY, EPHEMERAL_STORAGE) or is_hugepages(resource) or resource.endswith("memory"):
        for suffix, size in _BINARY:
            if amount >= size:
                tenths = -(-amount * 10 // size) if up else amount * 10 // size
                return f"{tenths / 10:g}{suffix}"
    return str(amount)
