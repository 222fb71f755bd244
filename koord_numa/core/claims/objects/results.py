"""Picks to an allocation: results, node selector and configuration (allocator_incubating.go, end of ``Allocate``)."""

from collections.abc import Iterator, Sequence

from koord_numa.core.claims.objects.claim import ClaimToAllocate
from koord_numa.core.claims.objects.demands import Alternative, Prepared
from koord_numa.core.claims.search.allocation import NEW_SHARE, AllocatedConfig, Allocation, ConfigSource, DeviceResult
from koord_numa.core.claims.search.search import Pick
from koord_numa.core.objects.constraints import NodeTerm, Operator, Requirement


def allocation_of(claim: ClaimToAllocate, taken: Sequence[Alternative], picks: Sequence[Pick], node: str) -> Allocation:
    """The allocation of one claim; ``taken`` is the alternative of each of its requests."""
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
    """One local device ties the claim to the node; else every device's conditions must hold; none means every node."""
    labels: list[Requirement] = []
    fields: list[Requirement] = []
    for pick in picks:
        device = pick.candidate.device
        choice = device.nodes if pick.candidate.slice.per_device else pick.candidate.slice.nodes
        # A device of one node makes the claim usable there only, whatever the others allow.
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
        # Configuration of a class is written once for all requests of the class.
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
    """The alternative that the search took for each request of a claim."""
    return tuple(
        alternatives[chosen[claim, number]] for number, alternatives in enumerate(prepared.alternatives[claim])
    )
