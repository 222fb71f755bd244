"""
The ledger of a node: the CPUs and the amounts by NUMA node that each pod holds.

``hold`` and ``release`` are inverse. A ledger rebuilt from the same holdings is equal. The ledger makes no decisions.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, Protocol

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.devices import DeviceGrants
from koord_numa.core.objects.request import Assignment, Pod, PodKey, PodRequest
from koord_numa.core.objects.vocabulary import NOT_EXCLUSIVE, CpuExclusivePolicy
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import CPU, NOTHING, ResourceList
from koord_numa.core.value_objects import ValueObject, set_worked_out

_compared: Final = attrgetter("pod", "amounts", "cpus", "exclusive", "numa", "created", "devices")


class Holding(ValueObject, eq=False, gc=False):
    """
    The resources of a pod on a node: ``amounts`` of the whole node (its effective request), exclusive CPUs, amounts by NUMA node.

    A pod without NUMA amounts has an empty ``numa``: it counts with the node-wide amounts. ``unplaced`` and ``mask``
    are derived, arguments for them are ignored.
    """

    pod: PodKey
    amounts: ResourceList
    cpus: CpuSet = EMPTY
    exclusive: CpuExclusivePolicy = NOT_EXCLUSIVE
    numa: tuple[tuple[int, ResourceList], ...] = ()
    request: PodRequest | None = None  # not compared, since binding fills in its policies
    created: float = 0.0
    devices: DeviceGrants = ()
    unplaced: ResourceList = NOTHING  # amounts without a known NUMA node
    mask: int = 0  # the NUMA nodes of its amounts

    def __post_init__(self) -> None:
        amounts, numa = self.amounts, self.numa
        if len(numa) == 1 and numa[0][1] == amounts:  # common case with NUMA amounts
            mask, unplaced = 1 << numa[0][0], NOTHING
        elif (
            not numa and not self.cpus.bits and min(amounts.values(), default=0) > 0
        ):  # common case without NUMA amounts
            mask, unplaced = 0, amounts
        else:
            mask, unplaced = self._split()
        set_worked_out(self, "mask", mask)
        set_worked_out(self, "unplaced", unplaced)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Holding) and _compared(self) == _compared(other)

    def __ne__(self, other: object) -> bool:
        # msgspec structs define their own, which ignores ``__eq__``.
        return not self == other

    def __hash__(self) -> int:
        return hash(self.pod)

    def _split(self) -> tuple[int, ResourceList]:
        """Return ``mask`` and ``unplaced`` in the general case."""
        mask, rest = 0, dict(self.amounts)
        if self.cpus.bits:
            rest.pop(CPU, None)  # exclusive CPUs are known by id
        for numa, amounts in self.numa:
            mask |= 1 << numa
            for name, amount in amounts.items():
                if name in rest:
                    rest[name] -= amount
        # ``NOTHING`` is a shared empty mapping: most holdings have no such rest.
        return mask, {name: amount for name, amount in rest.items() if amount > 0} or NOTHING

    @property
    def is_unrecorded(self) -> bool:
        """Return whether the pod holds exclusive CPUs that no NUMA amount includes."""
        return bool(self.cpus) and not any(amounts.get(CPU) for _, amounts in self.numa)


def holding_of(pod: Pod, assignment: Assignment | None = None, devices: DeviceGrants | None = None) -> Holding:
    """
    Return the holding of a pod: its effective request, and ``assignment`` and ``devices``, by default those of its annotations.

    A new placement and one that was read back give equal results, so a rebuilt ledger equals the live one.
    """
    # The new placement first: the pod's own annotation is older.
    given = assignment or pod.assignment or Assignment()
    return Holding(
        pod=pod.key,
        amounts=effective_requests(pod.request),
        cpus=given.cpus,
        # Exclusivity has no meaning for a pod without exclusive CPUs.
        exclusive=pod.request.bind.exclusive if given.cpus.bits else NOT_EXCLUSIVE,
        numa=given.numa,
        request=pod.request,
        created=pod.created,
        devices=pod.devices if devices is None else devices,
    )


class RunningSum(Protocol):
    """A sum over the pods of a ledger."""

    def count(self, holding: Holding, sign: int) -> None:
        """Add (1) or remove (-1) a pod."""


@dataclass(slots=True)
class Ledger:
    """
    Holdings by pod UID with running totals. ``revision`` grows with every change, as key for cached results.

    ``unplaced`` sums the amounts without a known NUMA node. ``unrecorded`` has, by UID, the CPUs that no NUMA amount
    includes. Both let an allocation count every pod, including those that were placed without a NUMA policy.
    """

    holdings: dict[str, Holding] = field(default_factory=dict)
    amounts: dict[str, int] = field(default_factory=dict)
    numa: dict[int, dict[str, int]] = field(default_factory=dict)
    unplaced: dict[str, int] = field(default_factory=dict)
    unrecorded: dict[str, int] = field(default_factory=dict)
    bits: int = 0  # CPUs held by at least one pod
    more: list[int] = field(default_factory=list)  # CPUs held by at least two pods, by at least three, and so on
    revision: int = field(default=0, compare=False)
    numa_revision: int = field(default=0, compare=False)  # revision of ``numa`` alone
    derived: dict[str, Any] = field(
        default_factory=dict, repr=False, compare=False
    )  # results derived from this revision
    sums: dict[str, RunningSum] = field(
        default_factory=dict, repr=False, compare=False
    )  # sums updated with each pod, by name

    @classmethod
    def of(cls, holdings: Iterable[Holding]) -> "Ledger":
        """Return a ledger with these holdings."""
        ledger = cls()
        for holding in holdings:
            ledger.hold(holding)
        return ledger

    def __contains__(self, uid: object) -> bool:
        return uid in self.holdings

    def __iter__(self) -> Iterator[Holding]:
        return iter(self.holdings.values())

    def __len__(self) -> int:
        return len(self.holdings)

    @property
    def cpus(self) -> CpuSet:
        """Return the CPUs that pods hold exclusively."""
        return CpuSet(self.bits)

    @property
    def shared(self) -> CpuSet:
        """Return the CPUs that more than one pod holds."""
        return CpuSet(self.more[0]) if self.more else EMPTY

    @property
    def references(self) -> dict[int, int]:
        """Return the number of holders of each held CPU."""
        counts: dict[int, int] = {}
        for bits in (self.bits, *self.more):
            for cpu in CpuSet(bits):
                counts[cpu] = counts.get(cpu, 0) + 1
        return counts

    def hold(self, holding: Holding) -> None:
        """Add a pod, replacing its previous holding."""
        uid = holding.pod.uid
        if uid in self.holdings:
            # Release first, so that sums are correct.
            self.release(uid)
        self.holdings[uid] = holding
        self._count_amounts(holding, _add)
        if holding.cpus.bits:
            self._count_cpus(holding.cpus.bits)
            if holding.is_unrecorded:
                self.unrecorded[uid] = holding.cpus.bits
        self._changed(holding, 1)

    def release(self, uid: str) -> None:
        """Remove a pod. A pod without a holding is not an error."""
        holding = self.holdings.pop(uid, None)
        if holding is None:
            return
        self._count_amounts(holding, _subtract)
        if holding.cpus.bits:
            self._discount_cpus(holding.cpus.bits)
            self.unrecorded.pop(uid, None)
        self._changed(holding, -1)

    def _count_cpus(self, bits: int) -> None:
        again = self.bits & bits
        # Level n has the CPUs held by more than n pods. CPUs already on a level move up by one.
        self.bits |= bits
        for place, held in enumerate(self.more):
            self.more[place] = held | again
            again &= held
        if again:
            self.more.append(again)

    def _discount_cpus(self, bits: int) -> None:
        # From the highest level down: the CPU is removed from the highest level that it is on.
        for place in reversed(range(len(self.more))):
            last = self.more[place] & bits
            self.more[place] ^= last
            bits ^= last
        while self.more and not self.more[-1]:
            self.more.pop()
        self.bits &= ~bits

    def _count_amounts(self, holding: Holding, change: Callable[[dict[str, int], ResourceList], None]) -> None:
        """Update the amounts of the node and of NUMA nodes. Many pods only have the first of the three."""
        change(self.amounts, holding.amounts)
        if holding.unplaced:
            change(self.unplaced, holding.unplaced)
        if holding.numa:
            self.numa_revision += 1
            for numa, amounts in holding.numa:
                totals = self.numa.get(numa)
                if totals is None:
                    totals = self.numa[numa] = {}
                change(totals, amounts)
                if not totals:
                    del self.numa[numa]

    def _changed(self, holding: Holding, sign: int) -> None:
        self.revision += 1
        for running in self.sums.values():
            running.count(holding, sign)
        # Results derived from the previous revision are no longer valid.
        self.derived.clear()


def _add(totals: dict[str, int], amounts: ResourceList) -> None:
    for name, amount in amounts.items():
        # Zeros are omitted and removed, so that a ledger after hold and release equals the original one.
        if amount:
            totals[name] = totals.get(name, 0) + amount


def _subtract(totals: dict[str, int], amounts: ResourceList) -> None:
    for name, amount in amounts.items():
        if left := totals.get(name, 0) - amount:
            totals[name] = left
        else:
            totals.pop(name, None)
