"""
Everything that ever went on with CPUs on simulated machines, and the proof that no CPU was held twice at any moment.

A log, not a guard: it is written by the nodes and checked afterwards, independently of what they themselves noticed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.request import PodKey


@dataclass(frozen=True, slots=True)
class Entry:
    """From this entry on the pod holds exactly these CPUs on the node; none means it let go of all."""

    node: str
    pod: PodKey
    cpus: CpuSet


@dataclass(frozen=True, slots=True)
class Clash:
    """Two pods held the same CPUs. ``moment`` is the number of the entry that brought it about."""

    moment: int
    node: str
    cpus: CpuSet
    pods: tuple[PodKey, PodKey]

    def __str__(self) -> str:
        first, second = self.pods
        return f"entry {self.moment}: CPUs {self.cpus} of {self.node} are held by {first} and {second}"


@dataclass(slots=True)
class History:
    """The log of a whole run, in the order in which things happened."""

    entries: list[Entry] = field(default_factory=list)

    def hold(self, node: str, pod: PodKey, cpus: CpuSet) -> None:
        """A pod has these CPUs from now on, instead of those it had on the node."""
        self.entries.append(Entry(node, pod, cpus))

    def release(self, node: str, pod: PodKey) -> None:
        """A pod has no CPUs any more."""
        self.entries.append(Entry(node, pod, EMPTY))

    def clashes(self) -> list[Clash]:
        """Every moment at which a CPU came to be held twice."""
        return list(self._replay())

    def holders(self) -> dict[str, dict[PodKey, CpuSet]]:
        """Who holds what at the end, by node."""
        held: dict[str, dict[PodKey, CpuSet]] = {}
        for entry in self.entries:
            pods = held.setdefault(entry.node, {})
            pods.pop(entry.pod, None)
            if entry.cpus:
                pods[entry.pod] = entry.cpus
        return {node: pods for node, pods in held.items() if pods}

    def _replay(self) -> Iterator[Clash]:
        held: dict[str, dict[PodKey, CpuSet]] = {}
        for moment, entry in enumerate(self.entries):
            pods = held.setdefault(entry.node, {})
            pods.pop(entry.pod, None)
            for other, cpus in pods.items():
                if cpus & entry.cpus:
                    yield Clash(moment, entry.node, cpus & entry.cpus, (other, entry.pod))
            if entry.cpus:
                pods[entry.pod] = entry.cpus
