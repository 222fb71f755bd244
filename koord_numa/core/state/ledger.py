"""
The ledger of one node: which pod holds which CPUs, and which amounts on which NUMA node.

``hold`` and ``release`` are inverse; a ledger rebuilt from the same holdings is equal. Nothing here decides anything.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, Protocol

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.request import Assignment, Pod, PodKey, PodRequest
from koord_numa.core.objects.vocabulary import NOT_EXCLUSIVE, CpuExclusivePolicy
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import CPU, NOTHING, ResourceList
from koord_numa.core.value_objects import ValueObject, set_worked_out

_compared: Final = attrgetter("pod", "amounts", "cpus", "exclusive", "numa", "created")


class Holding(ValueObject, eq=False, gc=False):
    """
    What one pod holds on one node: ``amounts`` of the whole node (its effective request), CPUs of its own, amounts per NUMA node.

    A pod without NUMA amounts has an empty ``numa``: it is accounted for by the node-wide amounts. ``unplaced`` and ``mask`` follow from
    the others, whatever the constructor is given.
    """

    pod: PodKey
    amounts: ResourceList
    cpus: CpuSet = EMPTY
    exclusive: CpuExclusivePolicy = NOT_EXCLUSIVE
    numa: tuple[tuple[int, ResourceList], ...] = ()
    request: PodRequest | None = None  # only carried along, and not compared; binding fills in its policies
    created: float = 0.0
    unplaced: ResourceList = NOTHING  # what it holds without a known NUMA node
    mask: int = 0  # the NUMA nodes of its amounts

    def __post_init__(self) -> None:
        amounts, numa = self.amounts, self.numa
        if len(numa) == 1 and numa[0][1] == amounts:  # as of most pods that have NUMA amounts
            mask, unplaced = 1 << numa[0][0], NOTHING
        elif not numa and not self.cpus.bits and min(amounts.values(), default=0) > 0:  # as of most that have none
            mask, unplaced = 0, amounts
        else:
            mask, unplaced = self._split()
        set_worked_out(self, "mask", mask)
        set_worked_out(self, "unplaced", unplaced)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Holding) and _compared(self) == _compared(other)

    def __ne__(self, other: object) -> bool:
        # A struct brings its own, which knows nothing of ``__eq__``.
        return not self == other

    def __hash__(self) -> int:
        return hash(self.pod)

    def _split(self) -> tuple[int, ResourceList]:
        """``mask`` and ``unplaced`` of any pod."""
        mask, rest = 0, dict(self.amounts)
        if self.cpus.bits:
            rest.pop(CPU, None)  # CPUs of its own are known by their ids
        for numa, amounts in self.numa:
            mask |= 1 << numa
            for name, amount in amounts.items():
                if name in rest:
                    rest[name] -= amount
        # ``NOTHING`` is one shared empty mapping: most holdings have no such rest.
        return mask, {name: amount for name, amount in rest.items() if amount > 0} or NOTHING

    @property
    def is_unrecorded(self) -> bool:
        """Does it hold CPUs of its own that no NUMA amount speaks of?"""
        return bool(self.cpus) and not any(amounts.get(CPU) for _, amounts in self.numa)


def holding_of(pod: Pod, assignment: Assignment | None = None) -> Holding:
    """
    What a pod holds: its effective request, and what ``assignment`` (else its own annotation) says it was given.

    The same for a placement just decided and for one read back, so a rebuilt ledger equals the live one.
    """
    # The new placement first: the pod's own annotation is from before it.
    given = assignment or pod.assignment or Assignment()
    return Holding(
        pod=pod.key,
        amounts=effective_requests(pod.request),
        cpus=given.cpus,
        # Exclusivity means nothing for a pod without own CPUs.
        exclusive=pod.request.bind.exclusive if given.cpus.bits else NOT_EXCLUSIVE,
        numa=given.numa,
        request=pod.request,
        created=pod.created,
    )


class RunningSum(Protocol):
    """Something that is summed over the pods of one ledger."""

    def count(self, holding: Holding, sign: int) -> None:
        """A pod came (1) or went (-1)."""


@dataclass(slots=True)
class Ledger:
    """
    Holdings by pod uid with running totals. ``revision`` grows with every change, so results can be remembered by it.

    ``unplaced`` sums what is held without a known NUMA node; ``unrecorded`` has, by uid, the CPUs that no NUMA amount speaks of.
    Both let an allocation count every pod, also those that were placed without a NUMA policy.
    """

    holdings: dict[str, Holding] = field(default_factory=dict)
    amounts: dict[str, int] = field(default_factory=dict)
    numa: dict[int, dict[str, int]] = field(default_factory=dict)
    unplaced: dict[str, int] = field(default_factory=dict)
    unrecorded: dict[str, int] = field(default_factory=dict)
    bits: int = 0  # CPUs held by at least one pod
    more: list[int] = field(default_factory=list)  # CPUs held by at least two pods, by at least three, and so on
    revision: int = field(default=0, compare=False)
    numa_revision: int = field(default=0, compare=False)  # the same of ``numa`` alone
    derived: dict[str, Any] = field(
        default_factory=dict, repr=False, compare=False
    )  # what was computed from this revision
    sums: dict[str, RunningSum] = field(
        default_factory=dict, repr=False, compare=False
    )  # by name, what is brought up to date with each pod

    @classmethod
    def of(cls, holdings: Iterable[Holding]) -> "Ledger":
        """A ledger with these holdings."""
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
        """CPUs that some pod holds as its own."""
        return CpuSet(self.bits)

    @property
    def shared(self) -> CpuSet:
        """CPUs that more than one pod holds."""
        return CpuSet(self.more[0]) if self.more else EMPTY

    @property
    def references(self) -> dict[int, int]:
        """By how many pods each held CPU is held."""
        counts: dict[int, int] = {}
        for bits in (self.bits, *self.more):
            for cpu in CpuSet(bits):
                counts[cpu] = counts.get(cpu, 0) + 1
        return counts

    def hold(self, holding: Holding) -> None:
        """Count a pod in, replacing what the same pod held before."""
        uid = holding.pod.uid
        if uid in self.holdings:
            # Replacing is release and hold, so that sums are right whatever the same pod held before.
            self.release(uid)
        self.holdings[uid] = holding
        self._count_amounts(holding, _add)
        if holding.cpus.bits:
            self._count_cpus(holding.cpus.bits)
            if holding.is_unrecorded:
                self.unrecorded[uid] = holding.cpus.bits
        self._changed(holding, 1)

    def release(self, uid: str) -> None:
        """Give back everything a pod holds; a pod that holds nothing is no error."""
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
        # Level n keeps CPUs held by more than n pods; what was on a level already goes up by one.
        self.bits |= bits
        for place, held in enumerate(self.more):
            self.more[place] = held | again
            again &= held
        if again:
            self.more.append(again)

    def _discount_cpus(self, bits: int) -> None:
        # From the highest level down: a holder less takes the CPU off the last level that it is on.
        for place in reversed(range(len(self.more))):
            last = self.more[place] & bits
            self.more[place] ^= last
            bits ^= last
        while self.more and not self.more[-1]:
            self.more.pop()
        self.bits &= ~bits

    def _count_amounts(self, holding: Holding, change: Callable[[dict[str, int], ResourceList], None]) -> None:
        """Amounts of the node and of NUMA nodes; many pods have but the first of the three."""
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
        # What was derived from the former revision would be wrong from here on.
        self.derived.clear()


def _add(totals: dict[str, int], amounts: ResourceList) -> None:
    for name, amount in amounts.items():
        # Zeros are left out, and removed, so that a ledger that held and released equals one that never did.
        if amount:
            totals[name] = totals.get(name, 0) + amount


def _subtract(totals: dict[str, int], amounts: ResourceList) -> None:
    for name, amount in amounts.items():
        if left := totals.get(name, 0) - amount:
            totals[name] = left
        else:
            totals.pop(name, None)
