"""Device pools of one node, with shared counters, consumable capacity and feature gates, and the budget for CEL selectors."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from koord_numa.core.cel import LIMITS, CelDevice, CelError, Program, compile_selector, detached, is_compiled
from koord_numa.core.claims.inventory import Capacity, CapacityPolicy, CapacityRange, Device, NumaByRoot, ResourceSlice
from koord_numa.core.objects.claims import (
    ALL_FEATURES,
    Amounts,
    DeviceId,
    DeviceRequirements,
    DeviceUsage,
    Features,
    PoolId,
)
from koord_numa.core.objects.constraints import Labels
from koord_numa.core.resources import format_nano
from koord_numa.core.value_objects import MutableObject, ValueObject, value_field


class SelectorLimits(ValueObject):
    """Limits of selectors. A unit takes 0.1 to 0.6 microseconds."""

    claim: int = LIMITS.cost
    """
    Maximum units for the claims of a pod before a pause: one expensive evaluation or 100,000 ordinary ones.

    At most 0.5 s of CPU time.
    """
    turn: int = 30_000
    """Maximum units before the decision yields to other work: at most 20 ms."""
    evaluation: int = 10
    """Units charged per evaluation, in addition to the units of its operations."""
    character: int = 20
    """Units charged per character of a compiled expression."""
    driver_answers: int = 4096
    """Maximum cached results of selectors that depend on the driver name only."""


SELECTOR_LIMITS: Final = SelectorLimits()


class ClaimError(Exception):
    """The claim cannot be decided on this node: an expression fails, a class is missing, or a limit is exceeded."""


class BudgetUsedError(ClaimError):
    """The selectors of a claim have used their budget. Their evaluation continues after a pause."""


class TurnOverError(Exception):
    """The decision has used its turn. It is retried later and then uses the cached selector results."""


class SelectorBudget(MutableObject):
    """The budget of the claims of a pod. ``name`` identifies the claims in messages."""

    name: str
    left: int = SELECTOR_LIMITS.claim

    @property
    def used(self) -> bool:
        """True if the budget is exhausted."""
        return self.left <= 0


class Selectors(MutableObject):
    """
    The selectors of one decision. Without a ``budget`` their total cost is not limited.

    ``clock`` returns the CPU time of the thread in seconds, for the deadline of an evaluation.
    """

    budget: SelectorBudget | None = None
    clock: Callable[[], float] | None = None
    _turn: int | None = None  # units left in this turn, None for no limit
    _answers: dict[tuple[Device, str], bool | CelError] = value_field(default_factory=dict)

    def begin_turn(self, units: int | None = SELECTOR_LIMITS.turn) -> None:
        """Start a turn. ``TurnOverError`` is raised after the given units, or never for None."""
        self._turn = units

    def forget_answers(self) -> None:
        """Clear the cached results at the end of a decision about a node."""
        self._answers.clear()

    def program(self, expression: str) -> Program:
        """Return the compiled selector. Raises ``CompileError``."""
        if not is_compiled(expression):
            self._check()
            self._charge(SELECTOR_LIMITS.character * len(expression))
        return compile_selector(expression)

    def answer(self, device: Device, expression: str) -> bool | CelError:
        """Return the result of a selector for a device, or the error of its compilation or evaluation."""
        answer = device.memory.get(expression)
        if answer is None:
            answer = self._answers.get((device, expression))
        if answer is None:
            answer = self._evaluate(expression, device.cel)
            device.remember(expression, answer)
            self._answers[device, expression] = answer
        return answer

    def driver_answer(self, expression: str, driver: str) -> bool | None:
        """
        Return the result of a selector that depends on the driver name only, or None for other and for broken
        selectors.
        """
        key = (expression, driver)
        if key not in _DRIVER_ANSWERS:
            try:
                by_driver = self.program(expression).reads.driver_only
            except CelError:
                by_driver = False
            answer = self._evaluate(expression, CelDevice(driver)) if by_driver else None
            if len(_DRIVER_ANSWERS) >= SELECTOR_LIMITS.driver_answers:
                _DRIVER_ANSWERS.clear()
            _DRIVER_ANSWERS[key] = None if isinstance(answer, CelError) else answer
        return _DRIVER_ANSWERS[key]

    def _evaluate(self, expression: str, device: CelDevice) -> bool | CelError:
        self._check()
        try:
            program = self.program(expression)
        except CelError as error:
            return detached(error)
        frame = program.frame_for(device, self.clock)
        try:
            return program.run(device, frame)[0]
        except CelError as error:
            return detached(error)
        finally:
            self._charge(SELECTOR_LIMITS.evaluation + frame.units)

    def _check(self) -> None:
        """
        Check the budget and the turn before a compilation or evaluation.

        Raises ``BudgetUsedError`` or ``TurnOverError``.
        """
        if self.budget is not None and self.budget.used:
            raise BudgetUsedError(
                f"claim {self.budget.name}: its CEL selectors have used their budget of {SELECTOR_LIMITS.claim} units; "
                "their evaluation continues after a pause that grows"
            )
        if self._turn is not None and self._turn <= 0:
            raise TurnOverError

    def _charge(self, units: int) -> None:
        if self.budget is not None:
            self.budget.left -= units
        if self._turn is not None:
            self._turn -= units


_DRIVER_ANSWERS: Final[dict[tuple[str, str], bool | None]] = {}


class Candidate(ValueObject, eq=False):
    """A device of a pool, and the slice that publishes it."""

    device: Device
    slice: ResourceSlice
    pool: "Pool"


class Pool(ValueObject, eq=False):
    """
    A pool from the perspective of one node.

    ``local`` are the slices with devices for this node, sorted by name. ``counters`` are the counter sets of the pool.
    ``consumers`` are all devices of the pool that consume counters, on any node.
    """

    id: PoolId
    local: tuple[ResourceSlice, ...]
    counters: Mapping[str, Amounts]
    consumers: tuple[Device, ...]
    incomplete: bool = False
    invalid: str = ""  # description of the contradiction
    foreign: bool = False  # every slice names another node, so no device can be used here

    def candidates(self) -> Iterator[Candidate]:
        """Yield every device for this node, in slice order."""
        for each in self.local:
            for device in each.devices:
                yield Candidate(device, each, self)

    @property
    def usable(self) -> bool:
        """True if the pool is complete and valid, so that its devices may be allocated."""
        return not self.incomplete and not self.invalid

    @property
    def binds_late(self) -> bool:
        """True if any device has binding conditions. Such pools are tried last."""
        return any(each.binds_late for each in self.local)


def gather_pools(
    slices: Iterable[ResourceSlice], node: str, labels: Labels, all_slices: "SlicesOfPools"
) -> tuple[Pool, ...]:
    """
    Return the pools among ``slices``.

    ``slices`` must contain every slice that reaches the node or has counters. ``all_slices`` are all slices of the
    cluster, by pool.
    """
    groups: dict[PoolId, list[ResourceSlice]] = {}
    for each in slices:
        if each.counters or each.reaches(node, labels):
            # Slices with counters are relevant for every node that uses the pool, whatever nodes they name.
            groups.setdefault(each.pool, []).append(each)
    pools = [
        pool for key, group in groups.items() if (pool := _pool(key, group, (node, labels), all_slices)) is not None
    ]
    # The order of upstream: pools with binding conditions last, then by name.
    return tuple(sorted(pools, key=lambda pool: (pool.binds_late, pool.id)))


SlicesOfPools = Mapping[PoolId, Sequence[ResourceSlice]]


def _pool(key: PoolId, group: list[ResourceSlice], node: tuple[str, Labels], all_slices: SlicesOfPools) -> Pool | None:
    if len(group) == 1 and len(all_slices.get(key, group)) == 1 and group[0].plain and group[0].slice_count == 1:
        # The common case: a single slice of one node, which cannot contradict another slice.
        return Pool(key, tuple(group) if group[0].devices else (), {}, (), foreign=group[0].nodes.name != node[0])
    generation = max(each.generation for each in group)
    newest = [each for each in group if each.generation == generation]
    incomplete = False
    everywhere = all_slices.get(key, newest)
    # Fewer slices than the pool has: the others may belong to other nodes, or may not be published yet.
    if len(newest) != newest[0].slice_count:
        if any(each.generation > generation for each in everywhere):
            return None  # obsolete: the driver has published a newer generation for other nodes
        incomplete = sum(each.generation == generation for each in everywhere) != newest[0].slice_count
    newest.sort(key=lambda each: each.name)
    local = tuple(each for each in newest if each.devices and each.reaches(*node))
    return Pool(
        key,
        local,
        {name: amounts for each in newest for name, amounts in each.counters},
        _consumers(newest, everywhere),
        incomplete,
        "" if incomplete else _contradiction(newest, local, everywhere),
        all(each.nodes.name not in ("", node[0]) for each in (*newest, *everywhere)),
    )


def _consumers(newest: Sequence[ResourceSlice], everywhere: Sequence[ResourceSlice]) -> tuple[Device, ...]:
    if not any(each.counters for each in newest):
        return ()
    generation = newest[0].generation
    return tuple(
        device for each in everywhere if each.generation == generation for device in each.devices if device.consumes
    )


def _contradiction(
    newest: Sequence[ResourceSlice], local: Sequence[ResourceSlice], everywhere: Sequence[ResourceSlice]
) -> str:
    broken = next((each.problem for each in newest if each.problem), "")
    if broken:
        return broken
    names = [device.id.device for each in local for device in each.devices]
    if len(set(names)) != len(names):
        return "a device name occurs twice"
    sets = [name for each in newest for name, _ in each.counters]
    if len(set(sets)) != len(sets):
        return "a counter set occurs twice"
    known = {name: amounts for each in newest for name, amounts in each.counters}
    for each in everywhere:
        if each.generation == newest[0].generation:
            for device in each.devices:
                if unknown := _unknown_counter(device, known):
                    return unknown
    return ""


def _unknown_counter(device: Device, known: Mapping[str, Amounts]) -> str:
    for name, amounts in device.consumes:
        if name not in known or not amounts.keys() <= known[name].keys():
            return f"device {device.id.device} consumes a counter of {name} that is not published"
    return ""


Account = dict[str, dict[str, int]]


class CounterAccounts:
    """
    Remaining counter amounts of every pool, in 10^-9 units.

    Upstream keeps the amounts by pool name, so that two drivers with equal pool names share them. Here the key is
    driver and name.
    """

    def __init__(self, usage: DeviceUsage) -> None:
        self._usage = usage
        self._left: dict[PoolId, Account] = {}

    def draw(self, candidate: Candidate) -> bool:
        """
        Subtract the counters that the device consumes.

        Returns False without a change if any counter of the pool would be negative.
        """
        account = self._account(candidate.pool)
        self._change(account, candidate, -1)
        # All counters of the pool are checked: upstream rejects a device while any counter is negative, whatever device
        # consumed it.
        if all(value >= 0 for amounts in account.values() for value in amounts.values()):
            return True
        self._change(account, candidate, 1)
        return False

    def give_back(self, candidate: Candidate) -> None:
        """Undo ``draw``."""
        self._change(self._account(candidate.pool), candidate, 1)

    def _account(self, pool: Pool) -> Account:
        account = self._left.get(pool.id)
        if account is None:
            account = {name: dict(amounts) for name, amounts in pool.counters.items()}
            # Devices in use on any node count, because partitions share counters.
            for device in pool.consumers:
                if self._usage.in_use(device.id) or self._usage.shared_by_some(device.id):
                    for name, amounts in device.consumes:
                        for counter, amount in amounts.items():
                            # A counter that is no longer published is a contradiction, which ``_contradiction``
                            # reports.
                            if counter in account.get(name, {}):
                                account[name][counter] -= amount
            self._left[pool.id] = account
        return account

    @staticmethod
    def _change(account: Account, candidate: Candidate, sign: int) -> None:
        for name, amounts in candidate.device.consumes:
            for counter, amount in amounts.items():
                account[name][counter] += sign * amount


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """
    The devices of one node. ``pools`` are in the order of the search. ``numa_by_root`` is the NUMA node by PCIe root.

    With a ``numa_mask``, a device is tried only if each of its ``places`` intersects the mask. A device without places
    is always tried.
    """

    name: str
    labels: Labels = field(default_factory=dict)
    pools: tuple[Pool, ...] = ()
    features: Features = ALL_FEATURES
    numa_mask: int = 0  # 0 for no restriction
    places: Mapping[DeviceId, tuple[int, ...]] = field(default_factory=dict)  # masks of NUMA nodes
    numa_by_root: NumaByRoot = field(default_factory=dict)
    selectors: Selectors = field(default_factory=Selectors, compare=False)


# Consumable capacity: the amounts that a request consumes of a device under its request policies.
#
# Follows structured/internal/incubating/allocator_incubating.go and the resourceslice helpers for consumable capacity.
# All amounts are in 10^-9 units.


def room_for(
    device: Device, demand: DeviceRequirements, usage: DeviceUsage, features: Features, held: Amounts
) -> dict[str, int] | None:
    """
    Return the amount that the request consumes of every capacity of the device, or None if the device does not fit.

    Allocations and the picks of this search (``held``) reduce the free capacity. The result is None when the device
    lacks a requested capacity, a request policy forbids the amount, or too little capacity is free. Capacity requests
    also apply to devices that cannot be shared: they then state the required size.
    """
    if not features.consumable_capacity:
        return {}
    requests = _requests(device, demand)
    # As in upstream's CmpRequestOverCapacity, a capacity that the device lacks is a mismatch.
    if not requests.keys() <= device.capacity.keys():
        return None
    allocated = usage.consumed_of(device.id)
    consumed: dict[str, int] = {}
    for name, capacity in device.capacity.items():
        amount = _consumed(capacity, requests.get(name))
        if not _permitted(capacity.policy, amount):
            return None
        if amount + allocated.get(name, 0) + held.get(name, 0) > capacity.value:
            return None
        consumed[name] = amount
    return consumed


class CapacityShortage(ValueObject):
    """
    The first capacity of a device that is too small for a request, in 10^-9 units.

    ``value`` is 0 for a missing capacity.
    """

    name: str
    wanted: int
    left: int
    value: int
    policy: CapacityPolicy | None = None  # the violated request policy of the device, if any

    @property
    def permitted(self) -> bool:
        """True if the request policy of the device permits the amount."""
        return self.policy is None

    def __str__(self) -> str:
        wanted = f"{format_nano(self.wanted)} of {self.name} wanted"
        if not self.value:
            return f"{wanted}, which no device has"
        beyond = f", the request policy permits {_policy_text(self.policy)}" if self.policy else ""
        return f"{wanted}{beyond}, at most {format_nano(self.left)} of {format_nano(self.value)} left on a device"


def capacity_shortage(
    device: Device, demand: DeviceRequirements, usage: DeviceUsage, features: Features
) -> CapacityShortage | None:
    """Return the capacity for which ``room_for`` rejects a device. The picks of a search do not count."""
    if not features.consumable_capacity:
        return None
    requests = _requests(device, demand)
    for name in requests.keys() - device.capacity.keys():
        return CapacityShortage(name, requests[name], 0, 0)
    allocated = usage.consumed_of(device.id)
    for name, capacity in device.capacity.items():
        amount = _consumed(capacity, requests.get(name))
        left = capacity.value - allocated.get(name, 0)
        if amount > left or not _permitted(capacity.policy, amount):
            policy = None if _permitted(capacity.policy, amount) else capacity.policy
            return CapacityShortage(name, amount, left, capacity.value, policy)
    return None


def _policy_text(policy: CapacityPolicy) -> str:
    """Return the policy as text: ``1 to 16 in steps of 1``, or a list of values."""
    limits = policy.valid_range
    if limits is None:
        return ", ".join(map(format_nano, policy.valid_values))
    most = "" if limits.maximum is None else f" to {format_nano(limits.maximum)}"
    steps = f" in steps of {format_nano(limits.step)}" if limits.step else ""
    return f"{format_nano(limits.minimum)}{most or ' or more'}{steps}"


def _requests(device: Device, demand: DeviceRequirements) -> dict[str, int]:
    """
    Return the requested amounts, keyed by the names of the device, which may omit the domain of its driver (Kubernetes
    1.37).
    """
    return {own_name(name, device.id.driver, device.capacity): amount for name, amount in demand.capacity or ()}


def own_name(name: str, driver: str, names: Container[str]) -> str:
    """
    Return the spelling of ``name`` that is in ``names``, with or without the driver's domain, otherwise ``name``
    unchanged.
    """
    if name in names:
        return name
    domain, slash, bare = name.partition("/")
    other = f"{driver}/{name}" if not slash else bare if domain == driver else name
    return other if other in names else name


def _consumed(capacity: Capacity, requested: int | None) -> int:
    policy = capacity.policy
    # The default without a request is the policy's default, or the whole capacity.
    if requested is None:
        return capacity.value if policy is None or policy.default is None else policy.default
    if policy is None:
        return requested
    if policy.valid_range is not None:
        return _in_range(policy.valid_range, requested)
    # The next larger permitted value. ``_permitted`` rejects a request above all permitted values.
    larger = [value for value in policy.valid_values if value >= requested]
    return min(larger) if larger else requested


def _in_range(limits: CapacityRange, requested: int) -> int:
    if requested <= limits.minimum:
        return limits.minimum
    if not limits.step:
        return requested
    return limits.minimum + -(-(requested - limits.minimum) // limits.step) * limits.step


def _permitted(policy: CapacityPolicy | None, amount: int) -> bool:
    """Return whether the policy permits the amount. The default value is always permitted, also outside the range."""
    if policy is None or amount == policy.default:
        return True
    limits = policy.valid_range
    if limits is not None:
        if limits.maximum is not None and amount > limits.maximum:
            return False
        return not limits.step or (amount - limits.minimum) % limits.step == 0
    return not policy.valid_values or amount in policy.valid_values
