"""Allocation of devices of one node to the claims of one pod: a depth-first search over claims, requests and devices."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

from koord_numa.core.cel import CelError
from koord_numa.core.claims.demands import Alternative, Prepared, Setting, concerns, offered, prepare
from koord_numa.core.claims.inventory import Device
from koord_numa.core.claims.pools import Candidate, ClaimError, CounterAccounts, NodeDevices, Selectors, room_for
from koord_numa.core.objects.claims import (
    MAX_RESULTS,
    NEW_SHARE,
    AllocatedConfig,
    Allocation,
    ClaimToAllocate,
    Classes,
    ConfigSource,
    DeviceConstraint,
    DeviceId,
    DeviceResult,
    DeviceUsage,
)
from koord_numa.core.objects.constraints import NodeTerm, Operator, Requirement
from koord_numa.core.value_objects import MutableObject, ValueObject, value_field

Values = frozenset[tuple[str, int | bool | str]]


class ConstraintState(MutableObject):
    """
    A constraint and the values of the devices picked so far (KEP-5491; structured/internal/experimental/constraint.go).

    A scalar is a set with one value. ``matchAttribute``: the intersection of all sets is not empty.
    ``distinctAttribute``: the sets are pairwise disjoint. A device without the attribute, or with a value of an unknown
    type, violates both.
    """

    constraint: DeviceConstraint
    values: list[Values] = value_field(default_factory=list)  # matchAttribute: the intersection after each pick

    def add(self, device: Device) -> bool:
        """Add the values of the device. Returns False if the constraint is violated."""
        attribute = device.attribute(self.constraint.attribute or "")
        added = attribute.set if attribute is not None else frozenset()
        if self.constraint.distinct:
            if not added or any(added & earlier for earlier in self.values):
                return False
        elif self.values:
            added &= self.values[-1]
        if not added:
            return False
        self.values.append(added)
        return True

    def remove(self) -> None:
        """Remove the values that were added last."""
        self.values.pop()


class DeviceLooks:
    """
    Equivalence keys of devices for the selectors and constraints of the claims.

    Attributes that no expression and no constraint reads, such as a serial number, do not affect the key. All
    attributes affect the key if the reads of any expression cannot be determined from its text.
    """

    def __init__(self, prepared: Prepared) -> None:
        self._known: dict[int, object] = {}  # by identity: the pools of the node keep the devices alive
        self._names: set[str] | None = set()
        for claim in prepared.claims:
            self._names.update(constraint.attribute or "" for constraint in claim.spec.constraints)
        for alternative in prepared.every_alternative():
            for expression in alternative.selectors.expressions():
                self._add(expression, alternative.selectors.run)

    def _add(self, expression: str, run: Selectors) -> None:
        # All attributes already count.
        if self._names is None:
            return
        try:
            reads = run.program(expression).reads
        except CelError:
            return  # the result is an error for every device
        # The reads cannot be determined from the text, such as a loop over all attributes.
        if reads.everything:
            self._names = None
        else:
            self._names.update(f"{domain}/{name}" for domain, name in reads.names)

    def of(self, device: Device) -> object:
        """Return a key that is equal for equivalent devices."""
        found = self._known.get(id(device))
        if found is None:
            found = self._known[id(device)] = self._look(device)
        return found

    def _look(self, device: Device) -> object:
        if self._names is None:
            attributes = tuple(sorted((name, str(value)) for name, value in device.attributes.items()))
        else:
            attributes = tuple((name, str(device.attribute(name))) for name in sorted(self._names))
        return (
            device.shared,
            attributes,
            tuple(sorted(device.capacity.items(), key=lambda item: item[0])),
            tuple((name, tuple(sorted(amounts.items()))) for name, amounts in device.consumes),
            device.taints,
        )


MAX_STEPS: Final = 20_000
"""
Maximum steps of one search: 20 to 80 ms, ten times the longest recorded search of kube-scheduler.

kube-scheduler stops after ten seconds. A limit in steps gives the same result on every machine.
"""


class _TooManyResultsError(Exception):
    """The picks exceed the device limit of a claim. Alternatives with fewer devices may still succeed."""


class Pick(ValueObject):
    """
    A picked device for a request. ``consumed`` are amounts of a shared device by capacity, None for other devices.
    """

    claim: int
    alternative: Alternative
    candidate: Candidate
    consumed: dict[str, int] | None


class Search:
    """The state of one search."""

    def __init__(self, prepared: Prepared, node: NodeDevices, usage: DeviceUsage, most: int) -> None:
        """Create a search with at most ``most`` steps."""
        self._prepared = prepared
        self._node = node
        self._usage = usage
        self._candidates: dict[int, list[Candidate]] = {}  # by identity of the alternative, which the claims keep alive
        self._constraints = [[ConstraintState(it) for it in claim.spec.constraints] for claim in prepared.claims]
        self._counters = CounterAccounts(usage)
        self._picks: list[Pick] = []
        self._holders: dict[DeviceId, list[int]] = {}  # claims whose picks hold the device
        self._held: dict[DeviceId, dict[str, int]] = {}  # capacity of shared devices that picks hold
        self.chosen: dict[tuple[int, int], int] = {}  # the chosen alternative, by claim and request
        self.steps = 0
        self._most = most

    @cached_property
    def _looks(self) -> DeviceLooks:
        """Equivalent devices: needed only where a first choice fails."""
        return DeviceLooks(self._prepared)

    def run(self) -> bool:
        """Return whether there is a solution. ``picks_of`` and ``chosen`` then hold the solution."""
        try:
            return self._request(0, 0)
        except _TooManyResultsError:
            return False

    def picks_of(self, claim: int) -> list[Pick]:
        """Return the picked devices of one claim."""
        return [pick for pick in self._picks if pick.claim == claim]

    def _step(self) -> None:
        self.steps += 1
        if self.steps > self._most:
            raise ClaimError(f"gave up after {self._most} steps of trying combinations of devices")

    def _request(self, claim: int, number: int) -> bool:
        self._step()
        # All claims have their devices: the picks are the solution.
        if claim == len(self._prepared.claims):
            return True
        requests = self._prepared.alternatives[claim]
        if number == len(requests):
            try:
                return self._request(claim + 1, 0)
            # The limit of the next claim is only a dead end for this claim.
            except _TooManyResultsError:
                return False
        alternatives = requests[number]
        # A plain request has one alternative, so its failure is the failure of the request.
        if (claim, number) not in self._prepared.prioritized:
            return self._alternative(claim, number, alternatives[0])
        too_many = 0
        for alternative in alternatives:
            try:
                if self._alternative(claim, number, alternative):
                    return True
            except _TooManyResultsError:
                too_many += 1
        if too_many == len(alternatives):
            raise _TooManyResultsError  # other devices for earlier requests do not change the count
        return False

    def _alternative(self, claim: int, number: int, alternative: Alternative) -> bool:
        self._step()
        # An ``All`` request without devices fails.
        if alternative.every is not None and not alternative.every:
            return False
        # The count is known, so the limit is checked before any device is picked.
        if len(self.picks_of(claim)) + alternative.count > MAX_RESULTS:
            raise _TooManyResultsError
        mark = len(self._picks)
        self.chosen[claim, number] = alternative.index
        try:
            if alternative.every is not None:
                done = self._all_devices(claim, number, alternative, 0)
            else:
                done = self._devices(claim, number, alternative, 0, 0)
        except _TooManyResultsError:
            # Picks of this alternative are undone before the prioritized list handles the error.
            self._release_to(mark)
            raise
        if not done:
            del self.chosen[claim, number]
        return done

    def _all_devices(self, claim: int, number: int, alternative: Alternative, have: int) -> bool:
        assert alternative.every is not None  # noqa: S101  (the caller looked)
        if have == alternative.count:
            return self._request(claim, number + 1)
        self._step()
        candidate = alternative.every[have]
        # An ``All`` request needs every device, so it fails at the first unavailable device.
        if not self._near(candidate.device) or not self._available(claim, alternative, candidate):
            return False
        if not self._take(claim, alternative, candidate, must=True):
            return False
        if self._all_devices(claim, number, alternative, have + 1):
            return True
        self._release_to(len(self._picks) - 1)
        return False

    def _devices(self, claim: int, number: int, alternative: Alternative, have: int, start: int) -> bool:
        if have == alternative.count:
            return self._request(claim, number + 1)
        self._step()
        candidates = self._candidates_for(alternative)
        failed: set[object] = set()
        for at in range(start, len(candidates)):
            candidate = candidates[at]
            # The cheap check comes first, because a CEL selector takes microseconds.
            if not self._available(claim, alternative, candidate):
                continue
            # Every evaluated device is a step, because a single call may evaluate thousands of devices.
            self._step()
            if not (alternative.selectors.select(candidate.device) and offered(candidate, self._node)):
                continue
            if failed and self._likeness(candidate) in failed:
                continue
            if not self._take(claim, alternative, candidate, must=False):
                continue
            # ``at + 1``, to try combinations instead of permutations.
            if self._devices(claim, number, alternative, have + 1, at + 1):
                return True
            self._release_to(len(self._picks) - 1)
            failed.add(self._likeness(candidate))
        return False

    def _candidates_for(self, alternative: Alternative) -> list[Candidate]:
        """Return the devices of usable pools whose driver the request does not exclude."""
        found = self._candidates.get(id(alternative))
        if found is None:
            pools = [it for it in self._node.pools if it.usable and concerns(it, alternative.selectors)]
            found = self._candidates[id(alternative)] = [
                candidate for pool in pools for candidate in pool.candidates() if self._near(candidate.device)
            ]
        return found

    def _near(self, device: Device) -> bool:
        mask = self._node.numa_mask
        return not mask or all(mask & place for place in self._node.places.get(device.id, ()))

    def _likeness(self, candidate: Candidate) -> object:
        """
        Return a key that is equal for interchangeable devices: if one device fails, an equivalent device also fails.

        This avoids trying all combinations of many equal devices. The first solution remains the same.
        """
        device = candidate.device
        state = (
            tuple(self._holders.get(device.id, ())),
            tuple(sorted(self._held.get(device.id, {}).items())),
            self._usage.shared_by_some(device.id),
            tuple(sorted(self._usage.consumed_of(device.id).items())),
        )
        return candidate.pool.id, candidate.slice.per_device and device.nodes, self._looks.of(device), state

    def _shared(self, device: Device) -> bool:
        return device.shared and self._node.features.consumable_capacity

    def _available(self, claim: int, alternative: Alternative, candidate: Candidate) -> bool:
        """
        Return whether the device is free.

        With admin access, only picks of the same claim block a device, and they do not block a shared device.
        """
        device = candidate.device
        holders = self._holders.get(device.id, ())
        if alternative.demand.admin_access:
            return self._shared(device) or claim not in holders
        if self._usage.in_use(device.id):
            return False
        return self._shared(device) or not (holders or self._usage.shared_by_some(device.id))

    def _take(self, claim: int, alternative: Alternative, candidate: Candidate, must: bool) -> bool:
        """Pick the device if capacity, counters, taints and constraints allow it."""
        device, demand = candidate.device, alternative.demand
        consumed = room_for(device, demand, self._usage, self._node.features, self._held.get(device.id, {}))
        if consumed is None or (
            device.taints and self._node.features.device_taints and demand.first_untolerated(device.taints) is not None
        ):
            return False
        # Counters are consumed once per device, however many shares are picked.
        draws = device.consumes and not self._counted(device.id)
        if draws and not (self._node.features.partitionable_devices and self._counters.draw(candidate)):
            return False
        # Constraints are checked last, because they change state: a failed pick then only has to restore counters.
        if not self._constrain(claim, alternative, candidate):
            if draws:
                self._counters.give_back(candidate)
            if must:
                where = f"claim {self._prepared.claims[claim]}, request {demand.name}"
                raise ClaimError(
                    f"{where}: cannot add device {device.id} because a claim constraint would not be satisfied"
                )
            return False
        self._holders.setdefault(device.id, []).append(claim)
        shared = self._shared(device)
        # Admin access counts until the claim is allocated (``allocatingCapacity``).
        if shared:
            held = self._held.setdefault(device.id, {})
            for name, amount in consumed.items():
                held[name] = held.get(name, 0) + amount
        self._picks.append(Pick(claim, alternative, candidate, consumed if shared else None))
        return True

    def _counted(self, device: DeviceId) -> bool:
        """Return whether another share of the device already consumes its counters."""
        return self._usage.shared_by_some(device) or device in self._holders

    def _constrain(self, claim: int, alternative: Alternative, candidate: Candidate) -> bool:
        taken: list[ConstraintState] = []
        for state in self._constraints[claim]:
            if not state.constraint.concerns(alternative.request.name, alternative.result_name):
                continue
            if not state.add(candidate.device):
                for earlier in taken:
                    earlier.remove()
                return False
            taken.append(state)
        return True

    def _release_to(self, mark: int) -> None:
        while len(self._picks) > mark:
            pick = self._picks.pop()
            device = pick.candidate.device
            # Reverse order of ``_take``.
            for state in self._constraints[pick.claim]:
                if state.constraint.concerns(pick.alternative.request.name, pick.alternative.result_name):
                    state.remove()
            holders = self._holders[device.id]
            holders.pop()
            if not holders:
                del self._holders[device.id]
            if pick.consumed is not None:
                for name, amount in pick.consumed.items():
                    self._held[device.id][name] -= amount
            if device.consumes and not self._counted(device.id):
                self._counters.give_back(pick.candidate)


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
