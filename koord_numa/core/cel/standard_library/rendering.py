"""``"%s".format([…])`` and ``strings.quote``, as cel-go ext/formatting.go."""

import re
from collections.abc import Callable
from math import isfinite
from typing import Final
from urllib.parse import SplitResult

from koord_numa.core.cel.compile.frame import CHARACTERS_PER_UNIT, LIMITS, Frame
from koord_numa.core.cel.errors import EvaluationError, ValueTooLargeError
from koord_numa.core.cel.standard_library.conversions import format_double
from koord_numa.core.cel.values.values import MapValue, TypeValue

_CLAUSE: Final = re.compile(r"%(?:(%)|(?:\.(\d{1,3}))?([a-zA-Z]))")
_QUOTES: Final = str.maketrans(
    {
        "\a": "\\a",
        "\b": "\\b",
        "\f": "\\f",
        "\n": "\\n",
        "\r": "\\r",
        "\t": "\\t",
        "\v": "\\v",
        "\\": "\\\\",
        '"': '\\"',
    }
)


def render_quoted(text: str) -> str:
    """The text between quotes, with escapes."""
    return f'"{text.translate(_QUOTES)}"'


class _Output:
    """The parts of a text that grows. Each part is charged before it is kept; the whole is bounded like every text."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self._parts: list[str] = []
        self._length = 0

    def append(self, part: str) -> None:
        self._length += len(part)
        if self._length > LIMITS.characters:
            raise ValueTooLargeError(f"a text is longer than {LIMITS.characters} characters")
        self.frame.charge(1 + len(part) // CHARACTERS_PER_UNIT)
        self._parts.append(part)

    def text(self) -> str:
        return "".join(self._parts)


def render(frame: Frame, template: str, arguments: tuple[object, ...]) -> str:
    """The template with its clauses replaced one by one."""
    parts = _Output(frame)
    at = used = 0
    for match in _CLAUSE.finditer(template):
        # A lone % would be dropped in silence otherwise.
        _refuse_stray(template[at : match.start()])
        parts.append(template[at : match.start()])
        at = match.end()
        if match[1]:
            parts.append("%")
            continue
        if used >= len(arguments):
            raise EvaluationError(f"index {used} out of range")
        _clause(parts, match[3], int(match[2] or 6), arguments[used])
        used += 1
    _refuse_stray(template[at:])
    parts.append(template[at:])
    return parts.text()


def _refuse_stray(text: str) -> None:
    if "%" in text:
        raise EvaluationError("could not parse formatting clause: unexpected end of string")


def _clause(output: _Output, letter: str, precision: int, value: object) -> None:
    if letter == "s":
        _text(output, value)
        return
    clause = _CLAUSES.get(letter)
    if clause is None:
        raise EvaluationError(f"could not parse formatting clause: unrecognized formatting clause {letter!r}")
    output.append(clause(value, precision))


def _text(output: _Output, value: object) -> None:
    if isinstance(value, tuple) and not isinstance(value, SplitResult):
        output.append("[")
        for at, item in enumerate(value):
            if at:
                output.append(", ")
            _text(output, item)
        output.append("]")
    elif isinstance(value, MapValue):
        # Sorted, since the order of a Go map is random and cel-go sorts as well.
        entries: list[str] = []
        for key, item in value.items():
            entry = _Output(output.frame)
            _text(entry, key)
            entry.append(": ")
            _text(entry, item)
            entries.append(entry.text())
        output.append("{")
        output.append(", ".join(sorted(entries)))
        output.append("}")
    else:
        output.append(_scalar_text(value))


def _scalar_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return format_double(value)
    if isinstance(value, TypeValue):
        return value.name
    if value is None:
        return "null"
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, str | int):
        return str(value)
    raise EvaluationError(
        _wrong("string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types", value)
    )


def _decimal(value: object, _: int) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise EvaluationError(_wrong("decimal clause can only be used on numbers", value))
    return format_double(value) if isinstance(value, float) else str(int(value))


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise EvaluationError(_wrong("fixed-point and scientific clauses can only be used on numbers", value))
    return float(value)


def _fixed(value: object, precision: int) -> str:
    number = _number(value)
    return f"{number:.{precision}f}" if isfinite(number) else format_double(number)


def _scientific(value: object, precision: int) -> str:
    number = _number(value)
    return f"{number:.{precision}e}" if isfinite(number) else format_double(number)


def _binary(value: object, _: int) -> str:
    if not isinstance(value, int):
        raise EvaluationError(_wrong("only ints, uints and bools can be formatted as binary", value))
    return format(int(value), "b")


def _octal(value: object, _: int) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        raise EvaluationError(_wrong("octal clause can only be used on ints and uints", value))
    return format(int(value), "o")


def _hexadecimal(value: object, _: int) -> str:
    if isinstance(value, str | bytes):
        return (value.encode() if isinstance(value, str) else value).hex()
    if isinstance(value, bool) or not isinstance(value, int):
        raise EvaluationError(_wrong("only ints, uints, bytes and strings can be formatted as hex", value))
    return format(int(value), "x")


def _wrong(rule: str, value: object) -> str:
    return f"error during formatting: {rule}, was given {type(value).__name__}"


_CLAUSES: Final[dict[str, Callable[[object, int], str]]] = {
    "d": _decimal,
    "f": _fixed,
    "e": _scientific,
    "b": _binary,
    "o": _octal,
    "x": _hexadecimal,
    "X": lambda value, precision: _hexadecimal(value, precision).upper(),
}
