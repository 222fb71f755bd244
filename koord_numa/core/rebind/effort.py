"""A bound on work that is counted, not timed, so that the same node always gets the same plan."""

from dataclasses import dataclass


@dataclass(slots=True)
class Effort:
    """So many looks are left."""

    left: int

    def spend(self) -> bool:
        """Take one look, if there is one left."""
        if not self.left:
            return False
        self.left -= 1
        return True
