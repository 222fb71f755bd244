"""Budget of one decision for CEL selectors, and the cached results of selectors."""

from collections.abc import Callable
from typing import Final

from koord_numa.core.cel.program import CelDevice, Program, compile_selector, is_compiled
from koord_numa.core.cel.runtime import LIMITS
from koord_numa.core.cel.values import CelError, detached
from koord_numa.core.claims.inventory import Device
from koord_numa.core.value_objects import MutableObject, ValueObject, value_field


class SelectorLimits(ValueObject):
    """Limits of selectors. A unit takes 0.1 to 0.6 microseconds."""

    claim: int = LIMITS.cost
    """
    Maximum units for the claims of a pod before a pause: one expensive evaluation or 100,000 ordinary ones.

    At most 0.5 s of CPU time.
    """
    turn: int = 30_000
    """Maximum units before the decision yields to other work: at most 20 ms."""
    evaluation: int = 10
    """Units charged per evaluation, in addition to the units of its operations."""
    character: int = 20
    """Units charged per character of a compiled expression."""
    driver_answers: int = 4096
    """Maximum cached results of selectors that depend on the driver name only."""


SELECTOR_LIMITS: Final = SelectorLimits()


class ClaimError(Exception):
    """The claim cannot be decided on this node: an expression fails, a class is missing, or a limit is exceeded."""


class BudgetUsedError(ClaimError):
    """The selectors of a claim have used their budget. Their evaluation continues after a pause."""


class TurnOverError(Exception):
    """The decision has used its turn. It is retried later and then uses the cached selector results."""


class SelectorBudget(MutableObject):
    """The budget of the claims of a pod. ``name`` identifies the claims in messages."""

    name: str
    left: int = SELECTOR_LIMITS.claim

    @property
    def used(self) -> bool:
        """Whether the budget is exhausted."""
        return self.left <= 0


class Selectors(MutableObject):
    """
    The selectors of one decision. Without a ``budget`` their total cost is not limited.

    ``clock`` returns the CPU time of the thread in seconds, for the deadline of an evaluation.
    """

    budget: SelectorBudget | None = None
    clock: Callable[[], float] | None = None
    _turn: int | None = None  # units left in this turn, None for no limit
    _answers: dict[tuple[Device, str], bool | CelError] = value_field(default_factory=dict)

    def begin_turn(self, units: int | None = SELECTOR_LIMITS.turn) -> None:
        """Start a turn. ``TurnOverError`` is raised after the given units, or never for None."""
        self._turn = units

    def forget_answers(self) -> None:
        """Clear the cached results at the end of a decision about a node."""
        self._answers.clear()

    def program(self, expression: str) -> Program:
        """Return the compiled selector. Raises ``CompileError``."""
        if not is_compiled(expression):
            self._check()
            self._charge(SELECTOR_LIMITS.character * len(expression))
        return compile_selector(expression)

    def answer(self, device: Device, expression: str) -> bool | CelError:
        """Return the result of a selector for a device, or the error of its compilation or evaluation."""
        answer = device.memory.get(expression)
        if answer is None:
            answer = self._answers.get((device, expression))
        if answer is None:
            answer = self._evaluate(expression, device.cel)
            device.remember(expression, answer)
            self._answers[device, expression] = answer
        return answer

    def driver_answer(self, expression: str, driver: str) -> bool | None:
        """
        Return the result of a selector that depends on the driver name only, or None for other and for broken
        selectors.
        """
        key = (expression, driver)
        if key not in _DRIVER_ANSWERS:
            try:
                by_driver = self.program(expression).reads.driver_only
            except CelError:
                by_driver = False
            answer = self._evaluate(expression, CelDevice(driver)) if by_driver else None
            if len(_DRIVER_ANSWERS) >= SELECTOR_LIMITS.driver_answers:
                _DRIVER_ANSWERS.clear()
            _DRIVER_ANSWERS[key] = None if isinstance(answer, CelError) else answer
        return _DRIVER_ANSWERS[key]

    def _evaluate(self, expression: str, device: CelDevice) -> bool | CelError:
        self._check()
        try:
            program = self.program(expression)
        except CelError as error:
            return detached(error)
        frame = program.frame_for(device, self.clock)
        try:
            return program.run(device, frame)[0]
        except CelError as error:
            return detached(error)
        finally:
            self._charge(SELECTOR_LIMITS.evaluation + frame.units)

    def _check(self) -> None:
        """
        Check the budget and the turn before a compilation or evaluation.

        Raises ``BudgetUsedError`` or ``TurnOverError``.
        """
        if self.budget is not None and self.budget.used:
            raise BudgetUsedError(
                f"claim {self.budget.name}: its CEL selectors have used their budget of {SELECTOR_LIMITS.claim} units; "
                "their evaluation continues after a pause that grows"
            )
        if self._turn is not None and self._turn <= 0:
            raise TurnOverError

    def _charge(self, units: int) -> None:
        if self.budget is not None:
            self.budget.left -= units
        if self._turn is not None:
            self._turn -= units


_DRIVER_ANSWERS: Final[dict[tuple[str, str], bool | None]] = {}
