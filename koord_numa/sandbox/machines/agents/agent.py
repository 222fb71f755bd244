"""The interface of node agents: admission or rejection of bound pods, and the topology."""

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
"""Amount by resource and NUMA node mask: bytes of memory without huge pages, bytes of huge pages, number of devices.

The mask is 0 for devices with unknown NUMA node. Only claims from any NUMA node can use them.
"""


@dataclass(frozen=True, slots=True)
class Claim:
    """An amount of a resource from the combined capacity of the NUMA nodes in ``mask``."""

    resource: str
    amount: int
    mask: int


@dataclass(frozen=True, slots=True)
class AgentAllocation:
    """Exclusive CPUs and devices by id, and claims on other resources that must not be allocated twice."""

    cpus: CpuSet = EMPTY
    devices: frozenset[str] = frozenset()
    claims: tuple[Claim, ...] = ()


def capacity_of(node: NodeDescription) -> NumaCapacity:
    """Return the capacity except CPUs, which have ids.

    It is amplified like the node, because allocations are amplified too.
    """
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
    """Return the claims, plus claims from ``anywhere`` for the remaining requests of the pod."""
    found = [claim for claim in claims if claim.resource in stock and claim.amount]
    for name in sorted(stock):
        rest = requests.get(name, 0) - sum(claim.amount for claim in found if claim.resource == name)
        if rest > 0:
            found.append(Claim(name, rest, anywhere))
    return tuple(sorted(found, key=lambda claim: (claim.resource, claim.mask)))


WRONG_PLACEMENT = "WrongPlacement"
"""Reason of a pod that the kubelet would admit but whose placement violates a rule."""


@dataclass(frozen=True, slots=True)
class AdmittedPod:
    """The pod runs and holds ``held`` exclusively. Without CPUs it runs in a shared pool."""

    held: AgentAllocation = field(default_factory=AgentAllocation)


@dataclass(frozen=True, slots=True)
class RefusedPod:
    """The pod is rejected. ``reason`` and ``message`` are written into its status."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class RejectedPod:
    """A pod that a node rejected, with the reason."""

    node: str
    pod: PodKey
    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.node} refuses {self.pod}: {self.reason}: {self.message}"


class NodeAgent(Protocol):
    """The agent of a node. It admits or rejects pods and publishes a topology."""

    def admit(self, pod: Pod) -> AdmittedPod | RefusedPod:
        """Admit or reject a pod that was bound or whose assignment changed. Only an admitted pod is accounted for."""
        ...

    def remove(self, uid: str) -> None:
        """Release a terminated pod. An unknown pod is ignored."""
        ...

    def topology(self) -> Json:
        """Return the current NodeResourceTopology."""
        ...
