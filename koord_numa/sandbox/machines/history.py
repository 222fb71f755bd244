"""The log of all allocations on simulated nodes, which detects double holds of CPUs, devices or memory.

The nodes append to the log without checks. It is evaluated afterwards, independently of their admission checks. A
resource with an id must have a single holder. Other amounts are claimed from a set of NUMA nodes. All claims can be
met if and only if every union of such sets has at least the amount that is claimed from within it (Hall's theorem for
amounts).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import PodKey
from koord_numa.sandbox.machines.agents import AgentAllocation, Claim, NumaCapacity

NOTHING = AgentAllocation()


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """The allocation of a pod on a node from this entry on."""

    node: str
    pod: PodKey
    held: AgentAllocation


@dataclass(frozen=True, slots=True)
class SimultaneousHold:
    """Pods that held ``what`` at the same time. ``moment`` is the number of the entry that caused it."""

    moment: int
    node: str
    what: str
    pods: tuple[PodKey, ...]

    def __str__(self) -> str:
        return f"entry {self.moment}: {self.what} of {self.node} are held by {' and '.join(map(str, self.pods))}"


@dataclass(slots=True)
class History:
    """The log of a run in chronological order. ``stocks`` is the capacity of the nodes."""

    entries: list[HistoryEntry] = field(default_factory=list)
    stocks: dict[str, NumaCapacity] = field(default_factory=dict)

    def hold(self, node: str, pod: PodKey, held: AgentAllocation) -> None:
        """Record the allocation of a pod. It replaces the previous allocation of the pod on the node."""
        self.entries.append(HistoryEntry(node, pod, held))

    def release(self, node: str, pod: PodKey) -> None:
        """Record that a pod holds nothing."""
        self.entries.append(HistoryEntry(node, pod, NOTHING))

    def double_holds(self) -> list[SimultaneousHold]:
        """Return all double holds in the order of their entries."""
        return list(self._replay())

    def holders(self) -> dict[str, dict[PodKey, CpuSet]]:
        """Return the CPUs that pods hold at the end, by node."""
        return {
            node: cpus
            for node, pods in self.allocations().items()
            if (cpus := {pod: held.cpus for pod, held in pods.items() if held.cpus})
        }

    def allocations(self) -> dict[str, dict[PodKey, AgentAllocation]]:
        """Return the allocations of pods at the end, by node."""
        found: dict[str, dict[PodKey, AgentAllocation]] = {}
        for entry in self.entries:
            _enter(found.setdefault(entry.node, {}), entry)
        return {node: pods for node, pods in found.items() if pods}

    def _replay(self) -> Iterator[SimultaneousHold]:
        found: dict[str, dict[PodKey, AgentAllocation]] = {}
        for moment, entry in enumerate(self.entries):
            pods = found.setdefault(entry.node, {})
            # The entry replaces the pod's own earlier allocation, which therefore is no conflict.
            pods.pop(entry.pod, None)
            for other, held in pods.items():
                for what in _in_common(held, entry.held):
                    yield SimultaneousHold(moment, entry.node, what, (other, entry.pod))
            _enter(pods, entry)
            stock = self.stocks.get(entry.node, {})
            # Only the resources of this entry: no other resource can become overcommitted by it.
            for resource in sorted({claim.resource for claim in entry.held.claims}):
                for what, holders in _overdrawn(resource, stock.get(resource, {}), pods):
                    yield SimultaneousHold(moment, entry.node, what, holders)


def _enter(pods: dict[PodKey, AgentAllocation], entry: HistoryEntry) -> None:
    # Popped first, so that the pod moves to the end and violations list pods in chronological order.
    pods.pop(entry.pod, None)
    if entry.held != NOTHING:
        pods[entry.pod] = entry.held


def _in_common(one: AgentAllocation, other: AgentAllocation) -> Iterator[str]:
    if one.cpus & other.cpus:
        yield f"CPUs {one.cpus & other.cpus}"
    if one.devices & other.devices:
        yield f"devices {', '.join(sorted(one.devices & other.devices))}"


def _overdrawn(
    resource: str, there: Mapping[int, int], pods: Mapping[PodKey, AgentAllocation]
) -> Iterator[tuple[str, tuple[PodKey, ...]]]:
    """Yield every set of NUMA nodes whose claims exceed its amount, with the claiming pods."""
    claims = [
        (pod, claim) for pod, held in pods.items() for claim in held.claims if claim.resource == resource and claim.mask
    ]
    whole = 0
    # Amounts without a NUMA node (mask 0) count only for the union of all NUMA nodes.
    for mask in (*there, *(claim.mask for _, claim in claims)):
        whole |= mask
    # Unions of claimed sets suffice for Hall's condition: any other set claims no more than the largest union within
    # it.
    for mask in _unions(claim for _, claim in claims):
        # subset test: no bit outside the union
        within = [(pod, claim.amount) for pod, claim in claims if not claim.mask & ~mask]
        claimed = sum(amount for _, amount in within)
        has = sum(amount for place, amount in there.items() if (place and not place & ~mask) or mask == whole)
        if claimed > has:
            yield f"{claimed} of {has} {resource} on NUMA nodes {CpuSet(mask)}", tuple(dict(within))


def _unions(claims: Iterator[Claim]) -> list[int]:
    unions: set[int] = set()
    for mask in {claim.mask for claim in claims}:
        # Exponential in the worst case, but machines have few NUMA nodes.
        unions |= {mask, *(mask | other for other in unions)}
    return sorted(unions)
