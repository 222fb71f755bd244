"""How a simulated node answers to a pod that was bound to it."""

from dataclasses import dataclass, field
from typing import Protocol

from koord_numa.core.request import Pod, PodKey
from koord_numa.sandbox.machines.allocation import Allocation
from koord_numa.sandbox.machines.node_objects import Json

WRONG_PLACEMENT = "WrongPlacement"
"""The reason of a pod that no kubelet would have refused, but whose placement breaks a promise of the scheduler."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The pod runs, with this of its own (no CPUs: in a shared pool)."""

    held: Allocation = field(default_factory=Allocation)


@dataclass(frozen=True, slots=True)
class Refused:
    """The pod is refused. ``reason`` and ``message`` go into its status."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Complaint:
    """A refusal as it is kept: which pod, on which node, and why."""

    node: str
    pod: PodKey
    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.node} refuses {self.pod}: {self.reason}: {self.message}"


class NodeAgent(Protocol):
    """The books of one node: takes pods or turns them away, and says what it would publish."""

    def take(self, pod: Pod) -> Taken | Refused:
        """A pod was bound here, or what it was given has changed. Only a pod that is taken is counted."""
        ...

    def drop(self, uid: str) -> None:
        """A pod has ended; one that never was here is no error."""
        ...

    def topology(self) -> Json:
        """The NodeResourceTopology of this moment."""
        ...
