"""
The ledger of one node: which pod holds which CPUs, and which amounts on which NUMA node.

``hold`` and ``release`` are inverse; a ledger rebuilt from the same holdings is equal. Nothing here decides anything.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from koord_numa.core.amounts import Amounts
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.request import PodKey, PodRequest
from koord_numa.core.vocabulary import CpuExclusivePolicy


@dataclass(frozen=True, slots=True)
class Holding:
    """
    What one pod holds on one node: ``amounts`` of the whole node (its effective request), CPUs of its own, amounts per NUMA node.

    A pod without NUMA amounts has an empty ``numa``: it is accounted for by the node-wide amounts.
    """

    pod: PodKey
    amounts: Amounts
    cpus: CpuSet = EMPTY
    exclusive: CpuExclusivePolicy = CpuExclusivePolicy.NONE
    numa: tuple[tuple[int, Amounts], ...] = ()
    request: PodRequest | None = None
    created: float = 0.0


@dataclass(slots=True)
class Ledger:
    """Holdings by pod uid with running totals. ``revision`` grows with every change, so results can be remembered by it."""

    holdings: dict[str, Holding] = field(default_factory=dict)
    amounts: dict[str, int] = field(default_factory=dict)
    numa: dict[int, dict[str, int]] = field(default_factory=dict)
    references: dict[int, int] = field(default_factory=dict)  # CPU -> how many pods hold it
    bits: int = 0  # CPUs held by at least one pod
    revision: int = 0

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

    def hold(self, holding: Holding) -> None:
        """Count a pod in, replacing what the same pod held before."""
        self.release(holding.pod.uid)
        self.holdings[holding.pod.uid] = holding
        _count(self.amounts, holding.amounts, 1)
        for numa, amounts in holding.numa:
            _count(self.numa.setdefault(numa, {}), amounts, 1)
        for cpu in holding.cpus:
            self.references[cpu] = self.references.get(cpu, 0) + 1
        self.bits |= holding.cpus.bits
        self.revision += 1

    def release(self, uid: str) -> None:
        """Give back everything a pod holds; a pod that holds nothing is no error."""
        holding = self.holdings.pop(uid, None)
        if holding is None:
            return
        _count(self.amounts, holding.amounts, -1)
        for numa, amounts in holding.numa:
            _count(self.numa[numa], amounts, -1)
            if not self.numa[numa]:
                del self.numa[numa]
        for cpu in holding.cpus:
            self.references[cpu] -= 1
            if not self.references[cpu]:
                del self.references[cpu]
                self.bits &= ~(1 << cpu)
        self.revision += 1


def _count(totals: dict[str, int], amounts: Mapping[str, int], sign: int) -> None:
    for name, amount in amounts.items():
        value = totals.get(name, 0) + sign * amount
        if value:
            totals[name] = value
        else:
            totals.pop(name, None)
