"""
The topology manager's decision on one unit: from the wishes of all managers to one hint, or a refusal.

A common preferred mask wins over everything else, and restricted and single-numa-node accept nothing else; so most decisions
never look at a mask that is not preferred. Only best-effort falls back to intersecting whole lists of hints.
"""

from collections.abc import Iterator, Sequence

from koord_numa.core.kubelet.hint_generator import ResourceHints
from koord_numa.core.kubelet.kubelet_node import KubeletNode, bits_of
from koord_numa.core.kubelet.results import TOPOLOGY_AFFINITY, AdmitRejection, ContainerAffinity
from koord_numa.core.numa.hints import Hint
from koord_numa.core.numa.kubelet_merge import best_size
from koord_numa.core.numa.reachable import reachable_masks
from koord_numa.core.vocabulary import KubeletPolicy


def align(node: KubeletNode, wishes: Sequence[ResourceHints]) -> ContainerAffinity | AdmitRejection:
    """
    The merged hint of one alignment unit, under the node's policy.

    Masks that differ never merge into a preferred one, and without any wish the answer is every NUMA node, preferred
    (policy_*.go and mergePermutation in the kubelet's topologymanager).
    """
    everywhere = node.machine.numa_mask
    single = node.config.topology_policy is KubeletPolicy.SINGLE_NUMA_NODE
    if not wishes:
        return ContainerAffinity(None if single else everywhere, preferred=True)
    common = [mask for mask in common_preferred(wishes) if not single or mask.bit_count() == 1]
    if common:
        mask = min(common, key=lambda candidate: _rank(node, candidate))
        return ContainerAffinity(None if single and mask == everywhere else mask, preferred=True)
    if node.config.topology_policy is KubeletPolicy.BEST_EFFORT:
        return _compromise(node, wishes)
    wanted = ", ".join(wish.resource for wish in wishes)
    return AdmitRejection(TOPOLOGY_AFFINITY, f"no set of NUMA nodes is preferred for all of {wanted}")


def common_preferred(wishes: Sequence[ResourceHints]) -> Iterator[int]:
    """The masks that every wish prefers. There must be a wish."""
    first, others = wishes[0], [wish for wish in wishes[1:] if wish is not wishes[0]]
    for mask in first.preferred():
        if all(not mask & ~wish.nodes and wish.prefers(mask) and wish.fits(mask) for wish in others):
            yield mask


def _compromise(node: KubeletNode, wishes: Sequence[ResourceHints]) -> ContainerAffinity:
    """
    The best intersection of one hint per wish; a wish without hints does not narrow it.

    The narrowest hint of the wish that needs most NUMA nodes says how wide the intersection should be.
    """
    lists = [[Hint(mask, preferred) for mask, preferred in wish.hints()] for wish in wishes if wish.possible]
    wanted = max((min(hint.mask.bit_count() for hint in hints if hint.mask) for hints in lists), default=0)
    reached = reachable_masks(lists, node.machine.numa_mask)
    if not reached:
        return ContainerAffinity(node.machine.numa_mask, preferred=False)
    size = best_size({mask.bit_count() for mask in reached}, wanted)
    level = (mask for mask in reached if mask.bit_count() == size)
    return ContainerAffinity(min(level, key=lambda mask: _rank(node, mask)), preferred=False)


def _rank(node: KubeletNode, mask: int) -> tuple[int, int, int]:
    """Narrower first, then closer together where the option says so, then the smaller number."""
    distance = 0
    if node.prefers_closest and node.config.topology_policy is not KubeletPolicy.SINGLE_NUMA_NODE:
        members = bits_of(mask)
        distance = sum(node.machine.distance(start, end) for start in members for end in members)
    return mask.bit_count(), distance, mask
