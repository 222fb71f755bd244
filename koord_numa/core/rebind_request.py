"""What a RebindResource asks for: repack the CPUs of the pods of one node, within a deadline."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

DEFAULT_DEADLINE: Final = 600
"""Seconds, as the proposal's DefaultDeadlineInSeconds."""


class RebindAction(StrEnum):
    """What to do; the proposal knows one action."""

    REBIND_CPU = "RebindCPU"


class RebindPhase(StrEnum):
    """How far a rebind has come; ``NONE`` before anybody has looked at it."""

    NONE = ""
    PENDING = "Pending"
    SUCCEED = "Succeed"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class RebindRequest:
    """One RebindResource. ``created`` is seconds since the epoch, ``deadline`` seconds after it. ``problem`` as for pods."""

    name: str
    uid: str
    node: str
    action: RebindAction = RebindAction.REBIND_CPU
    deadline: int = DEFAULT_DEADLINE
    dry_run: bool = False
    generation: int = 0
    created: float = 0.0
    phase: RebindPhase = RebindPhase.NONE
    observed_generation: int = 0
    deleting: bool = False
    resource_version: str = ""
    problem: str = ""

    @property
    def settled(self) -> bool:
        """It has ended; only a new generation starts it again."""
        return self.phase in (RebindPhase.SUCCEED, RebindPhase.FAILED)


@dataclass(frozen=True, slots=True)
class RebindMove:
    """What a plan does to one pod: CPUs before and after, as cpu lists."""

    namespace: str
    name: str
    before: str
    after: str
