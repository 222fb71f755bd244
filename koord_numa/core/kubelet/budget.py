"""
The one bound on the work of a decision on one node: counted steps, so that the same input gives the same answer.

Code that may run long calls ``spend``. ``limited`` sets the budget for everything that runs inside it. The budget is kept in a context
variable, because most of the code that spends it consists of nested generators that know nothing of a decision. A dry run takes 5 to 12
steps per container. A step takes 15 to 40 microseconds, the most on machines with 8 NUMA nodes.
"""

from contextvars import ContextVar
from enum import Enum
from typing import Final

DECISION: Final = 24_000
"""Steps of one decision on one node, in all slices. The hardest recorded nodes (8 NUMA nodes) take 0.4 to 0.9 s for them."""

SLICE: Final = 400
"""Steps of a decision that run at once: 5 to 20 ms. The others run between decisions."""

EVENT: Final = 9_000
"""Steps of the replay of pods after one event."""


class OnTruncation(Enum):
    """What an answer does when the budget ended before every possible state was tried."""

    WAIT = "wait"  # the pod waits for the next topology
    TRUST = "trust"  # the answer rests on the states that were tried; it may be a wrong yes


class TooManyWays(Exception):
    """More states are possible than may be tried."""


class OverBudget(TooManyWays):
    """The steps of a budget are spent."""


_CURRENT: Final[ContextVar["Budget | None"]] = ContextVar("budget", default=None)


class Budget:
    """Steps that are left, for everything that runs inside the ``with`` block."""

    __slots__ = ("_token", "left")

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, steps: int) -> None:
        """Take steps off the budget. Raise ``OverBudget`` if none are left."""
        self.left -= steps
        if self.left < 0:
            raise OverBudget

    def __enter__(self) -> "Budget":
        self._token = _CURRENT.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _CURRENT.reset(self._token)


def limited(steps: int) -> Budget:
    """Give everything that runs inside a budget of its own."""
    return Budget(steps)


def spend(steps: int = 1) -> None:
    """Take steps off the current budget, if there is one. Raise ``OverBudget`` if none are left."""
    budget = _CURRENT.get()
    if budget is not None:
        budget.left -= steps
        if budget.left < 0:
            raise OverBudget
