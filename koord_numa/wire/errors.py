"""Errors of malformed objects: the object, the key, the accepted values, and the closest spelling."""

import json
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, Union, get_args, get_origin

from msgspec import Meta, Struct
from msgspec.structs import fields

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails


NEAR: Final = 2
"""Largest edit distance of a misspelled key: two neighboring letters swapped, or two single mistakes."""

_LONGEST: Final = 128
"""Maximum characters of a compared word. The cost of a comparison is the product of the lengths."""


def plain(word: str) -> str:
    """Return the word in lower case without separators, with "policy" for "policies": ``qos-class`` and ``qosClass`` are equal."""
    return word.lower().replace("-", "").replace("_", "").replace(".", "").replace("policies", "policy")


def is_near(word: str, other: str, limit: int = NEAR) -> bool:
    """Return whether at most ``limit`` insertions, deletions and replacements of a character turn ``word`` into ``other``."""
    if abs(len(word) - len(other)) > limit or max(len(word), len(other)) > _LONGEST:
        return False
    row = list(range(len(other) + 1))
    for done, letter in enumerate(word, 1):
        before, row = row, [done]
        for place, wanted in enumerate(other, 1):
            row.append(min(before[place] + 1, row[-1] + 1, before[place - 1] + (letter != wanted)))
        if min(row) > limit:
            return False
    return row[-1] <= limit


def closest(word: str, words: Iterable[str]) -> str:
    """Return the word that was most probably meant. Empty if none is similar."""
    by_plain = {plain(known): known for known in words}
    found = get_close_matches(plain(word[:_LONGEST]), by_plain, n=1)
    return by_plain[found[0]] if found else ""


def meant(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean LSE?`` for a word that is spelled nearly like exactly one of the known words, else an empty text."""
    written = plain(word)
    limit = 1 if len(written) <= 4 else NEAR
    words = [other for other in known if other]
    found = [it for it in words if plain(it) == written] or [it for it in words if is_near(written, plain(it), limit)]
    return f"; did you mean {found[0]}?" if written and len(found) == 1 else ""


QUOTED: Final = 60
"""Maximum characters of a found text in a message. An annotation may have megabytes."""


class WireError(ValueError):
    """
    A malformed API object. The text is one line: object, field, value found, and accepted values.

    ``Node worker-2: label node.koordinator.sh/numa-topology-policy: "Strict" is none of BestEffort, None, Restricted,
    SingleNUMANode``
    """

    def __init__(self, subject: str, key: str, message: str) -> None:
        super().__init__(": ".join(part for part in (subject, key, message) if part))
        self.subject = subject
        self.key = key
        self.message = message


class FieldPath(NamedTuple):  # created many times per parsed object, so it must be cheap
    """The place of a value: the object (``Pod default/web``) and the key (``annotation …``)."""

    subject: str
    key: str = ""

    @classmethod
    def of(cls, kind: str, name: object) -> "FieldPath":
        """Return the path of an object by kind and name. A name that is not a string is quoted."""
        return cls(f"{kind} {_cut(name) if isinstance(name, str) else quoted(name)}")

    def at(self, key: str) -> "FieldPath":
        """Return the path of a key of the same object."""
        return FieldPath(self.subject, f"{self.key}.{key}" if self.key else key)

    def label(self, name: str) -> "FieldPath":
        """Return the path of a label of the object."""
        return FieldPath(self.subject, f"label {name}")

    def annotation(self, name: str) -> "FieldPath":
        """Return the path of an annotation of the object."""
        return FieldPath(self.subject, f"annotation {name}")

    # Keys are also read from objects: the key of a label may be as long as a message.
    def error(self, message: str) -> WireError:
        """Return the error to raise for this path."""
        return WireError(self.subject, _cut(self.key, 4 * QUOTED), message)


def quoted(value: object) -> str:
    """Return a found value as JSON, shortened for a message. Handles huge texts, deep nesting and long integers."""
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


_EXPECTED: Final[Mapping[Any, str]] = {str: "a text", bool: "a boolean", int: "a whole number", float: "a number"}
"""Expected JSON by the type of a field."""

_INFINITE: Final = 2**1024
"""Smallest integer that is no float."""

fields_of: Final = cache(fields)
"""The fields of a model. msgspec evaluates the annotations each time, which was two thirds of the time of a mistake."""

Mistake = tuple[str, str]
"""Key and sentence. The key is empty if the whole value is wrong."""


def mistake(kind: Any, value: Any, key: str = "") -> Mistake | None:
    """
    Return the first mistake in a value that a model or another type does not accept, or None if there is none.

    Example: ``spec.count``, ``0 is below 1, the least that is allowed``.
    """
    if isinstance(kind, type) and issubclass(kind, Struct):
        return _mistake_in_model(kind, value, key)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return mistake(arguments[0], value, key) or _out_of_bounds(arguments[1], value, key)
    if origin in (Union, UnionType):
        return _mistake_in_union(arguments, value, key)
    if origin is list:
        if not isinstance(value, list):
            return key, _not(value, "a list")
        return _first(mistake(arguments[0], item, f"{key}[{place}]") for place, item in enumerate(value))
    if kind is dict or origin is dict:
        if not isinstance(value, dict):
            return key, _not(value, "an object")
        return _first(_mistake_in_member(arguments[1], name, item, key) for name, item in value.items())
    if kind is Any or _is_of(kind, value):
        return (key, f"{quoted(value)} is too large") if kind is float and abs(value) >= _INFINITE else None
    return key, _not(value, _EXPECTED[kind])


def _first(found: Iterable[Mistake | None]) -> Mistake | None:
    return next((it for it in found if it is not None), None)


def _mistake_in_model(model: type[Struct], value: object, key: str) -> Mistake | None:
    if not isinstance(value, dict):
        return key, _not(value, "an object")
    for field in fields_of(model):
        at = _joined(key, field.encode_name)
        if field.encode_name in value:
            if (found := mistake(field.type, value[field.encode_name], at)) is not None:
                return found
        elif field.required:
            return at, "is missing"
    other = [name for name in value if not isinstance(name, str)]  # as in YAML files
    return (f"{key}[{quoted(other[0])}]", _not(other[0], "a text")) if other else None


def _mistake_in_member(kind: Any, name: object, item: object, key: str) -> Mistake | None:
    if not isinstance(name, str):
        return f"{key}[{quoted(name)}]", _not(name, "a text")
    return mistake(kind, item, _joined(key, name))


def _mistake_in_union(kinds: tuple[Any, ...], value: object, key: str) -> Mistake | None:
    if value is None and NoneType in kinds:
        return None
    kinds = tuple(kind for kind in kinds if kind is not NoneType)
    models = [kind for kind in kinds if kind not in _EXPECTED]
    if len(kinds) == 1 or (models and isinstance(value, dict)):
        return mistake((models or kinds)[0], value, key)
    if any(_is_of(kind, value) for kind in kinds if kind in _EXPECTED):
        return None
    expected = [_EXPECTED.get(kind, "an object") for kind in kinds if not (kind is int and float in kinds)]
    return key, f"{quoted(value)} is neither {' nor '.join(expected)}" if len(expected) > 1 else _not(
        value, expected[0]
    )


def _is_of(kind: Any, value: object) -> bool:
    if isinstance(value, bool):
        return kind is bool
    if isinstance(value, str):
        return kind is str and not any("\ud800" <= character <= "\udfff" for character in value)
    return isinstance(value, (int, float) if kind is float else kind)


def _not(value: object, expected: str) -> str:
    return (
        f"{quoted(value)} is neither true nor false"
        if expected == "a boolean"
        else f"{quoted(value)} is not {expected}"
    )


def _out_of_bounds(bounds: Meta, value: Any, key: str) -> Mistake | None:
    if bounds.ge is not None and value < bounds.ge:
        return key, f"{quoted(value)} is below {bounds.ge}, the least that is allowed"
    if bounds.le is not None and value > bounds.le:
        return key, f"{quoted(value)} is above {bounds.le}, the most that is allowed"
    if bounds.min_length is not None and len(value) < bounds.min_length:
        return key, f"{quoted(value)} is too short, at least {bounds.min_length} are needed"
    return None


# Errors of pydantic, which reads the settings and the files of the sandbox.

_EXPECTED_BY_ERROR: Final[Mapping[str, str]] = {
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
"""Expected JSON type by the type of pydantic's error."""

_SENTENCES: Final[Mapping[str, str]] = {
    "greater_than": "is not above {gt}",
    "greater_than_equal": "is below {ge}, the least that is allowed",
    "less_than": "is not below {lt}",
    "less_than_equal": "is above {le}, the most that is allowed",
    "int_parsing_size": "is too large",
    "string_pattern_mismatch": "does not match {pattern}",
}

_ABSENT: Final = object()


def first_mistake(error: "ValidationError", value: object) -> tuple[str, str]:
    """
    Return the key and the sentence of the first mistake.

    Example: ``spec.count``, ``0 is below 1, the least that is allowed``. The key is empty if the whole ``value`` is
    wrong.
    """
    errors = error.errors(include_url=False)
    first = errors[0]
    key = key_of(first, value)
    # Every alternative of a union reports a mismatch.
    same = [each for each in errors if key_of(each, value) == key]
    if first["type"] in ("missing", "extra_forbidden"):
        return key, "is missing" if first["type"] == "missing" else "is unknown"
    return key, _sentence(same)


def key_of(error: "ErrorDetails", value: object) -> str:
    """Return the place of the mistake, such as ``spec.devices[0].name``. Steps of pydantic that do not exist in ``value`` are omitted."""
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
        # Some models follow Go's encoding/json, which matches names case-insensitively.
        return value.get(step, next((item for key, item in value.items() if _equal(key, step)), _ABSENT))
    if isinstance(value, Sequence) and not isinstance(value, str) and isinstance(step, int) and step < len(value):
        return value[step]
    return _ABSENT


def _equal(key: object, step: object) -> bool:
    return isinstance(key, str) and isinstance(step, str) and key.lower() == step.lower()


def _sentence(errors: "Sequence[ErrorDetails]") -> str:
    first = errors[0]
    found = quoted(first["input"])
    expected = list(
        dict.fromkeys(_EXPECTED_BY_ERROR[each["type"]] for each in errors if each["type"] in _EXPECTED_BY_ERROR)
    )
    if "a number" in expected and "a whole number" in expected:
        expected.remove("a whole number")
    if len(expected) > 1:
        return f"{found} is neither {' nor '.join(expected)}"
    if first["type"] in _EXPECTED_BY_ERROR:
        return f"{found} is neither true nor false" if expected == ["a boolean"] else f"{found} is not {expected[0]}"
    if pattern := _SENTENCES.get(first["type"]):
        return f"{found} {pattern.format_map(first.get('ctx') or {})}"
    return _bounded(first) or f"{found}: {_own_words(first)}"


def _bounded(error: "ErrorDetails") -> str:
    """Return the sentence for a value outside an enumeration or of the wrong length. Empty for other errors."""
    bounds: Mapping[str, Any] = error.get("ctx") or {}
    if error["type"] in ("enum", "literal_error"):
        words = str(bounds["expected"]).replace(" or ", ", ").replace("'", "")
        return f"{quoted(error['input'])} is none of {words}"
    if error["type"] in ("too_short", "string_too_short"):
        return f"{quoted(error['input'])} is too short, at least {bounds['min_length']} are needed"
    if error["type"] in ("too_long", "string_too_long"):
        return f"{quoted(error['input'])} is too long, at most {bounds['max_length']} are allowed"
    return ""


def _own_words(error: "ErrorDetails") -> str:
    """Return the text of a validator of this package, without the exception type that pydantic puts before it."""
    message = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return message[:1].lower() + message[1:]


def sentence_of(error: "ValidationError", value: object, roots: Iterable[str] = ()) -> str:
    """Return key and sentence as one text, after ``roots``: ``rack.yaml: machines[0].sockets: 0 is below 1, …``."""
    return ": ".join(part for part in (*roots, *first_mistake(error, value)) if part)
