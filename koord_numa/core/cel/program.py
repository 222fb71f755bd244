"""Interface of the package: compile a selector once, convert devices once, evaluate often."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from koord_numa.core.cel.runtime import MAX_TREE_DEPTH, CelDevice, Evaluate, Frame, Reads, TimedFrame
from koord_numa.core.cel.values import TYPE_NAMES, CelError, CompileError, CostExceededError, EvaluationError


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled selector."""

    source: str
    evaluate: Evaluate
    variables: int  # number of comprehension variable slots
    reads: Reads  # attributes that determine the result

    def matches(self, device: CelDevice) -> bool:
        """
        Return whether the device matches.

        Raises ``EvaluationError``, or ``CostExceededError`` beyond the limit of one million units.
        """
        return self.run(device)[0]

    def frame_for(self, device: CelDevice, clock: Callable[[], float] | None = None) -> Frame:
        """Return a frame for one evaluation, with a deadline if a CPU clock is given."""
        return Frame(device, self.variables) if clock is None else TimedFrame(device, self.variables, clock)

    def run(self, device: CelDevice, frame: Frame | None = None) -> tuple[bool, int]:
        """
        Return the result and its cost in units. A frame from ``frame_for`` keeps the cost also when the evaluation
        fails.
        """
        frame = frame or Frame(device, self.variables)
        try:
            result = self.evaluate(frame)
        # Python's stack can overflow below the depth limit. The result is then an error instead of a crash.
        except RecursionError:
            raise EvaluationError("the expression is nested too deeply") from None
        # An operand outside of the domain of a Python function, such as a lone surrogate that cannot be encoded.
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise EvaluationError(f"internal error: {error}") from None
        frame.check_cost()
        # ``is``, because the int 1 is not a bool.
        if result is True or result is False:
            return result, frame.cost
        kind = TYPE_NAMES.get(type(result), type(result).__name__)
        raise EvaluationError(
            f"CEL result of type {kind} could not be converted to bool: unsupported native conversion from {kind} to 'bool'"
        )


class ProgramCache:
    """An LRU cache of compiled expressions, bounded by the total number of characters of the expressions."""

    def __init__(self, characters: int) -> None:
        self._most = characters
        self._characters = 0
        self._programs: OrderedDict[str, Program | CompileError] = OrderedDict()

    def __len__(self) -> int:
        return len(self._programs)

    def __contains__(self, source: str) -> bool:
        return source in self._programs

    def get(self, source: str) -> Program | CompileError:
        """Return the program of an expression, or its compile error."""
        known = self._programs.get(source)
        if known is not None:
            self._programs.move_to_end(source)
            return known
        # On use: clusters without selectors, and commands that only count, need neither the parser nor the function library.
        from koord_numa.core.cel.compiler import compile_text

        found = compile_text(source)
        made = self._programs[source] = found if isinstance(found, CompileError) else Program(source, *found)
        self._characters += len(source)
        while self._characters > self._most:
            oldest, _ = self._programs.popitem(last=False)
            self._characters -= len(oldest)
        return made


CACHE: Final = ProgramCache(2 << 20)
"""
Capacity of 2 MiB of text, enough for the largest object of an API server. A program takes about 40 times the memory of
its text.
"""


def is_compiled(source: str) -> bool:
    """Return whether the compiled expression is in the cache."""
    return source in CACHE


def compile_selector(source: str) -> Program:
    """Return the program of an expression, from the cache if possible. Raises ``CompileError``."""
    result = CACHE.get(source)
    if isinstance(result, CompileError):
        raise CompileError(f"compilation failed: {result}", result.position)
    return result


__all__ = [
    "MAX_TREE_DEPTH",
    "CelDevice",
    "CelError",
    "CompileError",
    "CostExceededError",
    "EvaluationError",
    "Program",
    "compile_selector",
]
