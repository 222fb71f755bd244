"""
The decision: devices of one node for the claims of one pod.

The answer is that of kube-scheduler 1.36 (structured/internal/incubating): depth-first search over claims, requests and devices in
their order, and the first solution wins. Where upstream is wrong (``docs/deviations.md``) the answer is the right one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from koord_numa.core.claims.objects.claim import ClaimToAllocate, Classes
from koord_numa.core.claims.objects.demands import Prepared, Setting, prepare
from koord_numa.core.claims.objects.results import allocation_of, taken_alternatives
from koord_numa.core.claims.search.allocation import Allocation
from koord_numa.core.claims.search.budget import ClaimError
from koord_numa.core.claims.search.node_devices import NodeDevices
from koord_numa.core.claims.search.search import MAX_STEPS, Search
from koord_numa.core.claims.search.usage import DeviceUsage

ALTERNATIVES = 8
"""Alternatives of a prioritized list at most (resource/v1 FirstAvailableDeviceRequestMaxSize): the first scores 8, the last 1."""


@dataclass(frozen=True, slots=True)
class Allocated:
    """An allocation for each claim, in their order, and the raw score of the node: 8 - index for each alternative taken."""

    allocations: tuple[Allocation, ...]
    score: int = 0
    steps: int = 0


@dataclass(frozen=True, slots=True)
class NotAllocated:
    """
    The claims cannot be allocated on this node now.

    ``error`` is set where something is broken, not merely in use: an expression, a pool, a class, a limit.
    """

    message: str
    error: bool = False
    steps: int = 0


NO_SOLUTION = "cannot allocate all claims"
INVALID_POOLS = "invalid resource pools were encountered"


def allocate(
    claims: Sequence[ClaimToAllocate], classes: Classes, node: NodeDevices, usage: DeviceUsage, most: int = MAX_STEPS
) -> Allocated | NotAllocated:
    """
    Find devices for all claims on the node, beside what is in use, in at most so many steps. Deterministic: same input, same answer.
    """
    search: Search | None = None
    broken = False
    try:
        prepared = prepare(claims, Setting(classes, node, usage))
        search = Search(prepared, node, usage, most)
        # Depth first; an error in an expression ends the search, as upstream returns it.
        found = search.run()
        if not found:
            # A pool that contradicts itself is named only where it concerns the claims.
            broken = any(pool.invalid for pool in node.pools if prepared.concerned_by(pool))
    except ClaimError as error:
        return NotAllocated(str(error), error=True, steps=0 if search is None else search.steps)
    if not found:
        return NotAllocated(INVALID_POOLS if broken else NO_SOLUTION, error=broken, steps=search.steps)
    allocations = tuple(
        allocation_of(claim, taken_alternatives(prepared, at, search.chosen), search.picks_of(at), node.name)
        for at, claim in enumerate(prepared.claims)
    )
    return Allocated(allocations, _score(search.chosen, prepared), search.steps)


def _score(chosen: Mapping[tuple[int, int], int], prepared: Prepared) -> int:
    score = 0
    for (claim, number), index in chosen.items():
        if (claim, number) in prepared.prioritized:
            names = [alternative.result_name for alternative in prepared.alternatives[claim][number]]
            score += sum(ALTERNATIVES - at for at, name in enumerate(names) if name == names[index])
    return score
