"""The two ways in which an expression can fail, and why the cost limit is neither."""


class CelError(Exception):
    """An expression cannot be compiled or evaluated. The text is a sentence without a position prefix."""


class CompileError(CelError):
    """The text is not an expression, or no overload takes the types of its operands."""

    def __init__(self, message: str, position: int = 0) -> None:
        super().__init__(message)
        self.position = position  # characters from the beginning of the expression


class EvaluationError(CelError):
    """A value is missing or has the wrong type. ``&&``, ``||``, ``all`` and ``exists`` absorb it when another operand decides."""


class CostExceededError(CelError):
    """The evaluation passed the limit of cost units. No operator absorbs it."""


class ValueTooLargeError(CostExceededError):
    """A value would be larger than any selector needs. No operator absorbs it either."""


NO_SUCH_OVERLOAD = "no such overload"
