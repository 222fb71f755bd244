"""
The log of all allocations on simulated nodes, from which every double hold of CPUs, devices or memory is found.

The nodes append to it and check nothing; it is evaluated afterwards, independently of their own admission checks.

Theory. What has an id must have one holder. What has none is claimed from a set of NUMA nodes: all claims can be met at once
exactly when in every union of such sets there is as much as is claimed from within it (Hall's theorem, for amounts).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import PodKey
from koord_numa.sandbox.machines.agents.agent import Allocation, Claim, NumaCapacity

NOTHING = Allocation()


@dataclass(frozen=True, slots=True)
class Entry:
    """From this entry on the pod has exactly this on the node."""

    node: str
    pod: PodKey
    held: Allocation


@dataclass(frozen=True, slots=True)
class DoubleHold:
    """Pods held ``what`` at the same time. ``moment`` is the number of the entry that caused it."""

    moment: int
    node: str
    what: str
    pods: tuple[PodKey, ...]

    def __str__(self) -> str:
        return f"entry {self.moment}: {self.what} of {self.node} are held by {' and '.join(map(str, self.pods))}"


@dataclass(slots=True)
class History:
    """The log of a whole run, in the order in which things happened. ``stocks`` is what each machine has."""

    entries: list[Entry] = field(default_factory=list)
    stocks: dict[str, NumaCapacity] = field(default_factory=dict)

    def hold(self, node: str, pod: PodKey, held: Allocation) -> None:
        """A pod holds this from now on, instead of what it held on the node before."""
        self.entries.append(Entry(node, pod, held))

    def release(self, node: str, pod: PodKey) -> None:
        """A pod holds nothing any more."""
        self.entries.append(Entry(node, pod, NOTHING))

    def double_holds(self) -> list[DoubleHold]:
        """Every moment at which something came to be held twice."""
        return list(self._replay())

    def holders(self) -> dict[str, dict[PodKey, CpuSet]]:
        """The CPUs that pods hold at the end, by node."""
        return {
            node: cpus
            for node, pods in self.allocations().items()
            if (cpus := {pod: held.cpus for pod, held in pods.items() if held.cpus})
        }

    def allocations(self) -> dict[str, dict[PodKey, Allocation]]:
        """What pods hold at the end, by node."""
        found: dict[str, dict[PodKey, Allocation]] = {}
        for entry in self.entries:
            _enter(found.setdefault(entry.node, {}), entry)
        return {node: pods for node, pods in found.items() if pods}

    def _replay(self) -> Iterator[DoubleHold]:
        found: dict[str, dict[PodKey, Allocation]] = {}
        for moment, entry in enumerate(self.entries):
            pods = found.setdefault(entry.node, {})
            # The pod's own earlier hold ends with this entry, so that a change of its assignment is no conflict with itself.
            pods.pop(entry.pod, None)
            for other, held in pods.items():
                for what in _in_common(held, entry.held):
                    yield DoubleHold(moment, entry.node, what, (other, entry.pod))
            _enter(pods, entry)
            stock = self.stocks.get(entry.node, {})
            # Only resources of this entry: nothing else can have become too much by it.
            for resource in sorted({claim.resource for claim in entry.held.claims}):
                for what, holders in _overdrawn(resource, stock.get(resource, {}), pods):
                    yield DoubleHold(moment, entry.node, what, holders)


def _enter(pods: dict[PodKey, Allocation], entry: Entry) -> None:
    # Popped first, so that a pod that holds again goes to the end and violations name pods in the order of their coming.
    pods.pop(entry.pod, None)
    if entry.held != NOTHING:
        pods[entry.pod] = entry.held


def _in_common(one: Allocation, other: Allocation) -> Iterator[str]:
    if one.cpus & other.cpus:
        yield f"CPUs {one.cpus & other.cpus}"
    if one.devices & other.devices:
        yield f"devices {', '.join(sorted(one.devices & other.devices))}"


def _overdrawn(
    resource: str, there: Mapping[int, int], pods: Mapping[PodKey, Allocation]
) -> Iterator[tuple[str, tuple[PodKey, ...]]]:
    """Every set of NUMA nodes from within which more is claimed than it has, and the pods that claim it."""
    claims = [
        (pod, claim) for pod, held in pods.items() for claim in held.claims if claim.resource == resource and claim.mask
    ]
    whole = 0
    # Amounts bound to no NUMA node (mask 0) are there for the union of everything only.
    for mask in (*there, *(claim.mask for _, claim in claims)):
        whole |= mask
    # Unions of claimed sets are enough for Hall's condition: any other set claims no more than the largest union inside it.
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
        # Closed under union step by step: exponential in the worst case, and machines have a few NUMA nodes.
        unions |= {mask, *(mask | other for other in unions)}
    return sorted(unions)
