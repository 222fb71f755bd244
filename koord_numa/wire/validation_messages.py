"""What pydantic found wrong with a value, in the words of the one who wrote it: which key, what is there, and what may be there."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from koord_numa.wire.errors import quoted

_EXPECTED: Final[Mapping[str, str]] = {
    "string_type": "a text",
    "string_sub_type": "a text",
    "string_unicode": "a text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "bool_type": "a boolean",
    "bool_parsing": "a boolean",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "an object",
    "mapping_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
"""What should be there instead, by the type of pydantic's error."""

_SENTENCES: Final[Mapping[str, str]] = {
    "greater_than": "is not above {gt}",
    "greater_than_equal": "is below {ge}, the least that is allowed",
    "less_than": "is not below {lt}",
    "less_than_equal": "is above {le}, the most that is allowed",
    "int_parsing_size": "is too large",
    "string_pattern_mismatch": "does not match {pattern}",
}

_ABSENT: Final = object()


def first_mistake(error: ValidationError, value: object) -> tuple[str, str]:
    """
    The key and the sentence about the first mistake, which a person repairs first: ``spec.count``, ``0 is below 1, the least that is
    allowed``. The key is empty where the whole ``value`` is wrong.
    """
    errors = error.errors(include_url=False)
    first = errors[0]
    key = key_of(first, value)
    # Every alternative of a union reports that it does not match.
    same = [each for each in errors if key_of(each, value) == key]
    if first["type"] in ("missing", "extra_forbidden"):
        return key, "is missing" if first["type"] == "missing" else "is unknown"
    return key, _sentence(same)


def key_of(error: ErrorDetails, value: object) -> str:
    """Where the mistake is, as ``spec.devices[0].name``: steps that lead to nothing in ``value`` are pydantic's own and left out."""
    key, at = "", value
    for step in error["loc"]:
        found = _inside(at, step)
        if found is not _ABSENT:
            key, at = _joined(key, step), found
    return _joined(key, error["loc"][-1]) if error["type"] == "missing" else key


def _joined(key: str, step: int | str) -> str:
    if isinstance(step, int):
        return f"{key}[{step}]"
    return f"{key}.{step}" if key else step


def _inside(value: object, step: int | str) -> object:
    if isinstance(value, Mapping):
        # Go's encoding/json, as which some models read, matches names without regard to case.
        return value.get(step, next((item for key, item in value.items() if _equal(key, step)), _ABSENT))
    if isinstance(value, Sequence) and not isinstance(value, str) and isinstance(step, int) and step < len(value):
        return value[step]
    return _ABSENT


def _equal(key: object, step: object) -> bool:
    return isinstance(key, str) and isinstance(step, str) and key.lower() == step.lower()


def _sentence(errors: Sequence[ErrorDetails]) -> str:
    first = errors[0]
    found = quoted(first["input"])
    expected = list(dict.fromkeys(_EXPECTED[each["type"]] for each in errors if each["type"] in _EXPECTED))
    if "a number" in expected and "a whole number" in expected:
        expected.remove("a whole number")
    if len(expected) > 1:
        return f"{found} is neither {' nor '.join(expected)}"
    if first["type"] in _EXPECTED:
        return f"{found} is neither true nor false" if expected == ["a boolean"] else f"{found} is not {expected[0]}"
    if pattern := _SENTENCES.get(first["type"]):
        return f"{found} {pattern.format_map(first.get('ctx') or {})}"
    return _bounded(first) or f"{found}: {_own_words(first)}"


def _bounded(error: ErrorDetails) -> str:
    """None of the words that are allowed, or a list or text of the wrong length."""
    bounds: Mapping[str, Any] = error.get("ctx") or {}
    if error["type"] in ("enum", "literal_error"):
        words = str(bounds["expected"]).replace(" or ", ", ").replace("'", "")
        return f"{quoted(error['input'])} is none of {words}"
    if error["type"] in ("too_short", "string_too_short"):
        return f"{quoted(error['input'])} is too short, at least {bounds['min_length']} are needed"
    if error["type"] in ("too_long", "string_too_long"):
        return f"{quoted(error['input'])} is too long, at most {bounds['max_length']} are allowed"
    return ""


def _own_words(error: ErrorDetails) -> str:
    """The text of a validator of this package; pydantic puts the kind of exception before it."""
    message = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return message[:1].lower() + message[1:]


def sentence_of(error: ValidationError, value: object, roots: Iterable[str] = ()) -> str:
    """Key and sentence in one, with what stands before the key: ``rack.yaml: machines[0].sockets: 0 is below 1, …``."""
    return ": ".join(part for part in (*roots, *first_mistake(error, value)) if part)
