"""One measured number beside its target. It knows nothing about how the number was measured."""

from dataclasses import asdict, dataclass
from typing import Literal


class NotMeasurableError(Exception):
    """This figure needs something that is absent here, such as the recorded inputs; the message says what."""


@dataclass(frozen=True, slots=True)
class Figure:
    """
    A measured value and the target that it must reach.

    ``name`` begins with the subject, ``koord-cpu mean``; ``note`` may carry whatever helps to read the value.
    """

    name: str
    value: float
    unit: str
    target: float
    better: Literal["lower", "higher"] = "lower"
    note: str = ""

    @property
    def ok(self) -> bool:
        """Has the target been reached?"""
        return self.value <= self.target if self.better == "lower" else self.value >= self.target

    def __str__(self) -> str:
        """One line: name, value, target, verdict, note."""
        # Names are padded, so that a run is a table without knowing its longest line.
        sign = "<=" if self.better == "lower" else ">="
        line = f"{self.name:<44} {self.value:>12,.2f} {self.unit:<5} {sign} {self.target:>12,.2f}  "
        return f"{line}{'ok  ' if self.ok else 'MISS'}  {self.note}".rstrip()

    def as_json(self) -> dict[str, object]:
        """The fields and the verdict, for ``--json``."""
        return {**asdict(self), "ok": self.ok}
