"""Allocation of devices of one node to the claims of one pod."""

from collections.abc import Iterator, Mapping, Sequence

from koord_numa.core.claims.allocation import (
    NEW_SHARE,
    AllocatedConfig,
    Allocation,
    ConfigSource,
    DeviceResult,
    DeviceUsage,
)
from koord_numa.core.claims.budget import ClaimError
from koord_numa.core.claims.claim import ClaimToAllocate, Classes
from koord_numa.core.claims.demands import Alternative, Prepared, Setting, prepare
from koord_numa.core.claims.pools import NodeDevices
from koord_numa.core.claims.search import MAX_STEPS, Pick, Search
from koord_numa.core.objects.constraints import NodeTerm, Operator, Requirement
from koord_numa.core.value_objects import ValueObject


def allocation_of(claim: ClaimToAllocate, taken: Sequence[Alternative], picks: Sequence[Pick], node: str) -> Allocation:
    """Return the allocation of one claim. ``taken`` holds the chosen alternative of each request."""
    return Allocation(tuple(map(_result, picks)), tuple(_configs(claim, taken)), _nodes(picks, node))


def _result(pick: Pick) -> DeviceResult:
    device, demand = pick.candidate.device, pick.alternative.demand
    return DeviceResult(
        pick.alternative.result_name,
        device.id,
        demand.admin_access,
        demand.tolerations,
        "" if pick.consumed is None else NEW_SHARE,
        tuple(sorted((pick.consumed or {}).items())),
        device.binding_conditions,
        device.binding_failure_conditions,
    )


def _nodes(picks: Sequence[Pick], node: str) -> tuple[NodeTerm, ...] | None:
    """
    Return the node terms of an allocation.

    A node-local device ties the claim to the node. Otherwise the conditions of all devices must hold. None means every
    node.
    """
    labels: list[Requirement] = []
    fields: list[Requirement] = []
    for pick in picks:
        device = pick.candidate.device
        choice = device.nodes if pick.candidate.slice.per_device else pick.candidate.slice.nodes
        # A device of one node makes the claim usable on that node only, whatever nodes the other devices allow.
        if choice.name or device.binds_to_node:
            return (NodeTerm(fields=(Requirement("metadata.name", Operator.IN, (node,)),)),)
        if choice.term is not None:
            labels.extend(it for it in choice.term.labels if it not in labels)
            fields.extend(it for it in choice.term.fields if it not in fields)
    return (NodeTerm(tuple(labels), tuple(fields)),) if labels or fields else None


def _configs(claim: ClaimToAllocate, taken: Sequence[Alternative]) -> Iterator[AllocatedConfig]:
    done: set[str] = set()
    for alternative in taken:
        device_class = alternative.device_class
        # The configuration of a class is written once for all requests of the class.
        if device_class.name not in done:
            done.add(device_class.name)
            names = tuple(it.result_name for it in taken if it.device_class.name == device_class.name)
            for opaque in device_class.configs:
                yield AllocatedConfig(ConfigSource.CLASS, names, opaque)
    for config in claim.spec.configs:
        if not config.requests:
            yield AllocatedConfig(ConfigSource.CLAIM, (), config.opaque)
        for alternative in taken:
            if alternative.request.name in config.requests or alternative.result_name in config.requests:
                yield AllocatedConfig(ConfigSource.CLAIM, config.requests, config.opaque)


def taken_alternatives(prepared: Prepared, claim: int, chosen: dict[tuple[int, int], int]) -> tuple[Alternative, ...]:
    """Return the alternative that the search chose for each request of a claim."""
    return tuple(
        alternatives[chosen[claim, number]] for number, alternatives in enumerate(prepared.alternatives[claim])
    )


ALTERNATIVES = 8
"""
Maximum number of alternatives in a prioritized list (resource/v1 FirstAvailableDeviceRequestMaxSize).

The first scores 8, the last 1.
"""


class Allocated(ValueObject):
    """
    One allocation per claim, in the order of the claims, and the raw score of the node: 8 - index for each chosen
    alternative.
    """

    allocations: tuple[Allocation, ...]
    score: int = 0
    steps: int = 0


class NotAllocated(ValueObject):
    """
    A rejection: the claims cannot be allocated on this node now.

    ``error`` marks a broken object instead of a lack of free devices: an expression, a pool, a class, or an exceeded
    limit.
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
    Find devices of the node for all claims, excluding devices in use, in at most ``most`` steps.

    The result is deterministic: the same input gives the same result.
    """
    search: Search | None = None
    broken = False
    try:
        prepared = prepare(claims, Setting(classes, node, usage))
        search = Search(prepared, node, usage, most)
        # Depth-first search. As upstream, an error in an expression ends the search.
        found = search.run()
        if not found:
            # An invalid pool is reported only if it may hold devices for the claims.
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
