"""
What init containers hold at most if the kubelet packs CPUs into cores, where its options are not published.

Theory. Any option may be on, and with some an init container's CPUs stay held beside those of all later containers. The options that are
likely (none, ``full-pcpus-only``, ``distribute-cpus-across-cores``) leave no more behind than packing into cores does (``cpu_overlap``).
With ``distribute-cpus-across-numa`` that holds for containers that are aligned to one NUMA node: CPUs of one are packed. With
``prefer-align-cpus-by-uncorecache`` each container looks for a cache that holds all of it, and a smaller one may find another cache first:
nothing of its pod's init container's CPUs is taken over then. So what is held beyond packing depends on these options alone, and a pod for
which just that room is missing finds out about them (``exploration.py``).

Example: ``init 3, app 1`` on one NUMA node. The app gets a CPU that the init container had: 2 stay behind. With caches of 3 and of 1 free
CPUs the init container gets the first and the app the other: 3 stay behind.
"""

from koord_numa.core.bit_sets import lowest
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis, held_by_init
from koord_numa.core.kubelet.inference.variants import freed
from koord_numa.core.kubelet.options import BY_CACHE, OVER_NUMA
from koord_numa.core.kubelet.spreading.core_packing import most_in_order
from koord_numa.core.kubelet.spreading.most_left import most_left
from koord_numa.core.kubelet.state import AdmittedPod, KubeletNode
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.core.value_objects import replace


def as_packed(one: Hypothesis) -> tuple[Hypothesis, Hypothesis | None]:
    """
    The hypothesis with no more held than packing leaves, and as it is, by options that keep the kubelet from packing; ``None`` where there
    is no difference.
    """
    excess = beyond_packing(one)
    if not excess:
        return one, None
    # CPUs of one NUMA node are packed whether they are dealt out over NUMA nodes or not.
    options = (BY_CACHE,) if one.state.node.aligns else (BY_CACHE, OVER_NUMA)
    return freed(one, excess), replace(
        one, options=(*one.options, *(option for option in options if option not in one.options))
    )


def beyond_packing(one: Hypothesis) -> int:
    """The loose CPUs, as bits, that no init container holds if CPUs are packed."""
    node = one.state.node
    if not one.loose or not node.may_pack or node.static_options.align_by_socket:
        return 0
    # One that may be of several pods is none's in particular: each of them may hold it.
    seen = shared = 0
    for bits in one.loose.values():
        shared |= seen & bits
        seen |= bits
    excess = 0
    for uid, bits in one.loose.items():
        pod = one.state.pods.get(uid)
        if pod is not None and bits & ~shared and (bound := _bound(pod, node)) is not None:
            held = held_by_init(pod.grant) & ~shared
            own = bits & ~shared
            excess |= lowest(own, min(max(0, held.bit_count() - bound), own.bit_count()))
    return excess


def _bound(pod: AdmittedPod, node: KubeletNode) -> int | None:
    """The most that the pod's init containers hold if CPUs are packed; ``None`` where nothing is known."""
    if pod.demand is None:
        return None
    pairs = zip(pod.demand.containers, pod.grant.containers, strict=True)
    taking = [
        (container.kind is ContainerKind.INIT, part.cpus, grant) for (container, part), grant in pairs if part.cpus
    ]
    masks = {None if grant.hint is None else grant.hint.mask for _, _, grant in taking}
    # Containers with different hints have nothing to do with one another.
    if len(masks) != 1:
        return None
    (mask,) = masks
    takes, most = tuple((init, count) for init, count, _ in taking), max(count for _, count, _ in taking)
    if most > most_in_order(node):
        return None
    sizes = [bits.bit_count() for bits in node.machine.numa_bits.values() if bits]
    if not node.aligns:
        # None may be so large that a NUMA node is taken as a whole.
        return most_left(takes, in_order=False) if most < min(sizes) else None
    here = node.machine.numa_bits.get(mask.bit_length() - 1, 0) if mask and mask.bit_count() == 1 else 0
    if any(grant.cpus.bits & ~here for _, _, grant in taking):
        return None
    return most_left(takes, in_order=len(sizes) > 1)
