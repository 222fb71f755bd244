"""How a simulated node answers when a pod is bound to it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.pod_resources import amplify_all
from koord_numa.core.resources import CPU, ResourceList
from koord_numa.sandbox.machines.hardware.description import NodeDescription
from koord_numa.sandbox.machines.hardware.topologies import Json, zone_offer

NumaCapacity = Mapping[str, Mapping[int, int]]
"""
By resource and mask of NUMA nodes how much is there: bytes of memory without huge pages, bytes of huge pages, devices. The mask
is 0 for devices whose place is unknown: they serve only those that may be served from anywhere.
"""


@dataclass(frozen=True, slots=True)
class Claim:
    """So much of a resource, out of what the NUMA nodes of ``mask`` have together."""

    resource: str
    amount: int
    mask: int


@dataclass(frozen=True, slots=True)
class Allocation:
    """CPUs and devices by id where they were chosen by id; claims on everything else that must not be allocated twice."""

    cpus: CpuSet = EMPTY
    devices: frozenset[str] = frozenset()
    claims: tuple[Claim, ...] = ()


def capacity_of(node: NodeDescription) -> NumaCapacity:
    """Everything but CPUs, which have ids; amplified as the node is, for so are the amounts that pods are given."""
    stock: dict[str, dict[int, int]] = {}
    counts = node.hardware.device_counts()
    for numa in node.hardware.machine.numa_ids:
        for name, amount in amplify_all(zone_offer(node, numa), node.amplification).items():
            if name != CPU:
                stock.setdefault(name, {})[1 << numa] = amount
    for name, count in counts.items():
        placed = stock.setdefault(name, {})
        placed[0] = count - sum(placed.values())
    return stock


def with_rest(claims: Iterable[Claim], requests: ResourceList, stock: NumaCapacity, anywhere: int) -> tuple[Claim, ...]:
    """These claims, and one from anywhere on what a pod asked for beyond them."""
    found = [claim for claim in claims if claim.resource in stock and claim.amount]
    for name in sorted(stock):
        rest = requests.get(name, 0) - sum(claim.amount for claim in found if claim.resource == name)
        if rest > 0:
            found.append(Claim(name, rest, anywhere))
    return tuple(sorted(found, key=lambda claim: (claim.resource, claim.mask)))


WRONG_PLACEMENT = "WrongPlacement"
"""The reason of a pod that no kubelet would refuse, but whose placement violates a rule."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The pod runs and holds this exclusively (no CPUs: it runs in a shared pool)."""

    held: Allocation = field(default_factory=Allocation)


@dataclass(frozen=True, slots=True)
class Refused:
    """The pod is refused. ``reason`` and ``message`` go into its status."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class RejectedPod:
    """A pod that a node refused, and why."""

    node: str
    pod: PodKey
    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.node} refuses {self.pod}: {self.reason}: {self.message}"


class NodeAgent(Protocol):
    """The agent of one node: admits or refuses pods and publishes a topology."""

    def admit(self, pod: Pod) -> Admitted | Refused:
        """A pod was bound here, or its assignment changed. Only an admitted pod is counted."""
        ...

    def remove(self, uid: str) -> None:
        """A pod has ended; an unknown pod is ignored."""
        ...

    def topology(self) -> Json:
        """The NodeResourceTopology of this moment."""
        ...
