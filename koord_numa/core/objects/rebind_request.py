"""What a RebindResource asks for, and what is answered: repack the CPUs of the pods of one node, within a deadline."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from koord_numa.core.objects.request import Pod
from koord_numa.core.rebind.plan import NodeFigures

DEFAULT_DEADLINE: Final = 600
"""Seconds, as the proposal's DefaultDeadlineInSeconds."""


class RebindAction(StrEnum):
    """What to do; the proposal knows one action."""

    REBIND_CPU = "RebindCPU"


class RebindPhase(StrEnum):
    """How far a rebind has come; ``NONE`` before any replica has looked at it."""

    NONE = ""
    PENDING = "Pending"
    SUCCEED = "Succeed"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class RebindRequest:
    """
    One RebindResource. Times are seconds since the epoch; ``deadline`` counts from ``started``, which is 0 before any replica began.

    ``plan`` is what the status says about it, for people: nothing is decided by it.

    ``ttl`` is how many seconds after its end (``updated``) it is to be deleted, ``None`` for never. ``problem`` as for pods.
    """

    name: str
    uid: str
    node: str
    action: RebindAction = RebindAction.REBIND_CPU
    deadline: int = DEFAULT_DEADLINE
    dry_run: bool = False
    move_memory: bool = False
    generation: int = 0
    created: float = 0.0
    phase: RebindPhase = RebindPhase.NONE
    observed_generation: int = 0
    started: float = 0.0
    updated: float = 0.0
    ttl: int | None = None
    deleting: bool = False
    resource_version: str = ""
    plan: tuple["RebindMove", ...] = ()
    problem: str = ""

    @property
    def settled(self) -> bool:
        """It has ended; only a new generation starts it again."""
        return self.phase in (RebindPhase.SUCCEED, RebindPhase.FAILED)

    @property
    def is_answered(self) -> bool:
        """It has ended in its present generation: there is nothing left to do."""
        return self.settled and self.observed_generation >= self.generation


@dataclass(frozen=True, slots=True)
class RebindMove:
    """What a plan does to one pod: CPUs before and after, as cpu lists."""

    namespace: str
    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class RebindAnswer:
    """
    What to say about a rebind. ``time`` and ``started`` are RFC 3339, the latter empty while the rebind waits for its turn.

    ``plan`` is what was or would be done and ``result`` what was done, pod by pod; ``steps`` counts the changes of the plan, which
    are more where a pod has to make room first. ``stuck`` are pods that could not be moved for want of spare CPUs.
    """

    phase: RebindPhase
    reason: str
    time: str
    generation: int
    plan: tuple[RebindMove, ...] = ()
    result: tuple[RebindMove, ...] = ()
    steps: int = 0
    stuck: tuple[str, ...] = ()
    before: NodeFigures | None = None
    after: NodeFigures | None = None
    started: str = ""


@dataclass(frozen=True, slots=True)
class PodRevision:
    """A pod as it was just read, with the text of its resource-status: what a change of its CPUs is conditional on."""

    pod: Pod
    status_text: str
