"""``ports.Lease`` where there is no election."""

from typing import Final


class NoElection:
    """``ports.Lease`` of a process that is the only one, as its operator has decided."""

    holder: Final = ""
    problem: Final = ""

    def fresh(self) -> bool:
        """Always."""
        return True

    def remaining(self) -> float:
        """No other process acts, so no request is too slow."""
        return float("inf")
