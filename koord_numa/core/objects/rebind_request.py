"""Spec and status of a RebindResource: repacking the CPUs of the pods of a node within a deadline."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from koord_numa.core.objects.request import Pod
from koord_numa.core.rebind.plan import NodeFigures

DEFAULT_DEADLINE: Final = 600
"""Seconds, as DefaultDeadlineInSeconds of the proposal."""


class RebindAction(StrEnum):
    """Actions of a rebind; the proposal defines one."""

    REBIND_CPU = "RebindCPU"


class RebindPhase(StrEnum):
    """Phases of a rebind; ``NONE`` before any replica has processed it."""

    NONE = ""
    PENDING = "Pending"
    SUCCEED = "Succeed"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class RebindRequest:
    """
    RebindResource. Times are seconds since the epoch; ``deadline`` counts from ``started``, which is 0 before the start.

    ``plan`` is the plan in the status, for users; no decision uses it. ``ttl`` is the number of seconds after its end (``updated``) until
    it is deleted, ``None`` for never. ``problem`` as for pods.
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
        """Whether it has ended; only a new generation restarts it."""
        return self.phase in (RebindPhase.SUCCEED, RebindPhase.FAILED)

    @property
    def is_answered(self) -> bool:
        """Whether it has ended in its current generation."""
        return self.settled and self.observed_generation >= self.generation


@dataclass(frozen=True, slots=True)
class RebindMove:
    """Change of a pod's CPUs: CPU lists before and after."""

    namespace: str
    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class RebindAnswer:
    """
    Status of a rebind. ``time`` and ``started`` are RFC 3339; ``started`` is empty while the rebind waits for its turn.

    ``plan`` is what was or would be done and ``result`` what was done, by pod. ``steps`` is the number of changes in the plan, which is
    larger if a pod has to make room first. ``stuck`` are pods that could not be moved for lack of spare CPUs.
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
    """Pod as it was just read, with the text of its resource-status, which is the condition for changing its CPUs."""

    pod: Pod
    status_text: str
