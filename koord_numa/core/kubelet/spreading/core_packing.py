"""
What finished init containers hold where the kubelet packs CPUs into cores and its pods are known from the first one on.

Theory. Then it follows from how the cores are in use (``CoreUse``), by NUMA node or, where nothing is aligned, on the whole machine, but
for the number of threads that a core has, which is the same for all pods. So CPUs that are loose are not held or free pod by pod: on cores
of one thread all those are free that a later container takes again, on cores of two some of odd numbers stay held beside partly used cores.
What a pod that came later was given tells which of the two it is, and with that known nothing stays open for the pods after it. A pod that
leaves takes cores out of order: nothing is known of them then, and where it may have left before another one came both are followed.

Example: on each of two NUMA nodes ``init 2, app 1`` came beside a container with one CPU. With one thread a core the apps have a CPU of
their init container; with two they have the other thread of the used core, and a CPU more stays held. Where the next pod has room on one of
the NUMA nodes only if that CPU is free there, and comes to it, cores have one thread, and it is free on the other NUMA node, too.
"""

from collections.abc import Sequence
from typing import Final

from koord_numa.core.bit_sets import lowest
from koord_numa.core.kubelet.core_use import CoreUse
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis
from koord_numa.core.kubelet.inference.variants import freed
from koord_numa.core.kubelet.spreading.owners import has_shared
from koord_numa.core.kubelet.spreading.places import places_of
from koord_numa.core.kubelet.state import ContainerGrant, KubeletNode
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.core.value_objects import replace

MOST_SOCKETS: Final = 8
"""Of a machine."""

THREADS: Final = (1, 2)
"""So many may a core have where CPUs are packed into cores (``KubeletNode.packs``)."""


def packing_after(before: Hypothesis, containers: Sequence[ContainerGrant]) -> tuple[CoreUse, ...] | None:
    """How the cores of each place are in use after one more pod was given this; ``None`` where that is not known."""
    taking = [one for one in containers if one.cpus]
    known = _packing_before(before)
    if known is None or not taking:
        return known
    node = before.state.node
    inits = any(one.kind is ContainerKind.INIT for one in taking)
    if inits and max(len(one.cpus) for one in taking) > most_in_order(node):
        return None
    at = {_place_of(one, node) for one in taking}
    # Containers of one pod on several NUMA nodes have nothing to do with one another only where none hands CPUs on.
    if -1 in at or (inits and len(at) > 1):
        return None
    found = list(known)
    for place in at:
        takes = tuple(
            (one.kind is ContainerKind.INIT, len(one.cpus)) for one in taking if _place_of(one, node) == place
        )
        after = found[place].after(takes, in_order=node.aligns and len(known) > 1)
        if after is None:
            return None
        found[place] = after
    return tuple(found)


def _packing_before(before: Hypothesis) -> tuple[CoreUse, ...] | None:
    node = before.state.node
    if before.packing is not None or not node.packs or node.takes_whole_cores:
        return before.packing
    places = places_of(node)
    free = sum(places) & ~node.reserved
    held = any(one.cpus for pod in before.state.pods.values() for one in pod.grant.containers)
    if held or before.unplaced or before.unlocated or before.state.managers.cpus != free:
        return None
    # With sockets aligned, or an even share of each NUMA node, CPUs are not just packed.
    if node.static_options.align_by_socket or (node.distributes_across_numa and not node.aligns):
        return None
    even = not any(bits.bit_count() % 2 for bits in node.machine.numa_bits.values())
    return tuple(CoreUse.of_empty(bits.bit_count(), (bits & node.reserved).bit_count(), even=even) for bits in places)


def most_in_order(node: KubeletNode) -> int:
    """
    Containers with so many CPUs at most choose cores in one order, whatever their number: none takes a whole NUMA node or socket first.

    One NUMA node may have several sockets (up to eight).
    """
    sizes = [bits.bit_count() for bits in node.machine.numa_bits.values() if bits]
    if len(sizes) == 1:
        return sizes[0] // MOST_SOCKETS - 1
    return max(sizes) if node.aligns else min(sizes) - 1


def _place_of(container: ContainerGrant, node: KubeletNode) -> int:
    """Which place a container's CPUs come from; -1 where that may be several."""
    if not node.aligns:
        return 0
    mask = container.hint.mask if container.hint is not None else None
    numas = list(node.machine.numa_bits)
    if mask is None or mask.bit_count() != 1 or mask.bit_length() - 1 not in numas:
        return -1
    numa = mask.bit_length() - 1
    return -1 if container.cpus.bits & ~node.machine.numa_bits[numa] else numas.index(numa)


def without_excess(one: Hypothesis) -> Hypothesis:
    """The hypothesis with no more CPUs held by init containers than all of them together can have left behind."""
    if not one.loose or one.packing is None:
        return one
    loose = excess = 0
    for bits in one.loose.values():
        loose |= bits
    for here, use in zip(places_of(one.state.node), one.packing, strict=True):
        more = use.least_free - (one.state.managers.cpus & here).bit_count()
        if more > 0:
            excess |= lowest(loose & here, min(more, (loose & here).bit_count()))
    return freed(one, excess) if excess else one


def by_threads(one: Hypothesis) -> Sequence[Hypothesis]:
    """
    The hypothesis for each number of threads that cores may have, with what is loose held or free by it; one where none differs.

    Together they are all that it stands for: every history of it is one of a machine with one of these numbers.
    """
    if not one.loose or one.packing is None or has_shared(one):
        return (one,)
    ways = (tuple(use.with_cores_of(threads) for use in one.packing) for threads in THREADS)
    found = [told for way in ways if (told := _told(one, way)) is not None]
    # Without any the state is of another history, which what comes next has to tell.
    if not found:
        return (one,)
    first = found[0]
    if all((each.loose, each.state.managers.cpus) == (first.loose, first.state.managers.cpus) for each in found):
        return (replace(first, packing=one.packing) if len(found) > 1 else first,)
    return found


def narrowed(one: Hypothesis) -> Hypothesis:
    """The hypothesis with what is loose held or free where that is the same for all numbers of threads that cores may have."""
    (first, *others) = by_threads(one)
    return one if others else first


def _told(one: Hypothesis, packing: tuple[CoreUse, ...]) -> Hypothesis | None:
    """With as much held as in any of these ways of using the cores; ``None`` where it is as much in none."""
    loose = sum(one.loose.values())
    held = free = 0
    for here, use in zip(places_of(one.state.node), packing, strict=True):
        bounds = use.held
        if bounds is None:
            return None
        open_ = loose & here
        most = use.size - use.lasting - (one.state.managers.cpus & here).bit_count()
        least = most - open_.bit_count()
        if bounds[1] < least or bounds[0] > most:
            return None
        if bounds[0] >= most:
            held |= open_
        elif bounds[1] <= least:
            free |= open_
    known = {uid: bits & ~held for uid, bits in one.loose.items() if bits & ~held}
    told = replace(one, loose=known, packing=packing)
    return freed(told, free) if free else told
