"""How a simulated node answers when a pod is bound to it."""

from dataclasses import dataclass, field
from typing import Protocol

from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.sandbox.machines.agents.allocation import Allocation
from koord_numa.sandbox.machines.hardware.node_objects import Json

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
