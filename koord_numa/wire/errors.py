"""Errors of objects from outside: which object, which key and what to write instead."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

QUOTED: Final = 60
"""So many characters of a found text go into a message: an annotation may be megabytes long."""


class WireError(ValueError):
    """
    An API object is malformed. Prints as one line: object, field, value found, and what is accepted.

    ``Node worker-2: label node.koordinator.sh/numa-topology-policy: "Strict" is none of BestEffort, None, Restricted, SingleNUMANode``
    """

    def __init__(self, subject: str, key: str, message: str) -> None:
        super().__init__(": ".join(part for part in (subject, key, message) if part))
        self.subject = subject
        self.key = key
        self.message = message


class FieldPath(NamedTuple):  # made many times for every object that is read, so it has to be cheap
    """Where a value was found: in which object (``Pod default/web``), under which key (``annotation …``)."""

    subject: str
    key: str = ""

    @classmethod
    def of(cls, kind: str, name: object) -> "FieldPath":
        """An object by kind and name; a name that is no text is quoted as what it is."""
        return cls(f"{kind} {_cut(name) if isinstance(name, str) else quoted(name)}")

    def at(self, key: str) -> "FieldPath":
        """A key of the same object."""
        return FieldPath(self.subject, f"{self.key}.{key}" if self.key else key)

    def label(self, name: str) -> "FieldPath":
        """A label of the object."""
        return FieldPath(self.subject, f"label {name}")

    def annotation(self, name: str) -> "FieldPath":
        """An annotation of the object."""
        return FieldPath(self.subject, f"annotation {name}")

    # Keys come from objects too: a label's key may be as long as a message.
    def error(self, message: str) -> WireError:
        """The error to raise about this path."""
        return WireError(self.subject, _cut(self.key, 4 * QUOTED), message)


def quoted(value: object) -> str:
    """A found value as JSON, short enough for a message whatever it is: huge texts, deep nesting, endless integers."""
    match value:
        case None | bool():
            return json.dumps(value)
        case str():
            return json.dumps(_cut(value), ensure_ascii=False)
        case int():
            # Python refuses to print integers of more than 4,300 digits.
            return str(value) if value.bit_length() <= 64 else f"an integer of {value.bit_length()} bits"
        case float():
            return repr(value)
        case list() | tuple():
            return f"a list of {len(value)}"
        case dict():
            return f"an object of {len(value)} fields"
        case _:
            return f"a {type(value).__name__}"


def _cut(text: str, length: int = QUOTED) -> str:
    kept = text if len(text) <= length else text[:length] + "…"
    if kept.isascii():  # as nearly all names
        return kept
    return kept.encode("utf-8", "backslashreplace").decode()  # half a surrogate pair must not break a log


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
