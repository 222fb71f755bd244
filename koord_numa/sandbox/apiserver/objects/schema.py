"""Structural OpenAPI v3 schemas of CustomResourceDefinitions: validation with the field paths and words of a real server.

CEL rules (``x-kubernetes-validations``) are not evaluated. Pruning and defaulting are in ``structure``.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from koord_numa.sandbox.apiserver.errors import Cause, duplicate, invalid_value, required, unsupported
from koord_numa.sandbox.apiserver.objects.documents import JsonObject, dumps

INT_OR_STRING: Final = "x-kubernetes-int-or-string"
PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"
EMBEDDED: Final = "x-kubernetes-embedded-resource"


def validate(value: Any, schema: JsonObject, path: str = "") -> Iterator[Cause]:
    """All that is wrong with a value; ``path`` is how the field is called."""
    if value is None and schema.get("nullable"):
        return
    problem = _type_problem(value, schema)
    if problem:
        yield Cause(
            path,
            f"Invalid value: {_shown(value)}: {path} in body must be of type {problem}: {_shown(value)}",
            "FieldValueTypeInvalid",
        )
        return
    yield from _enumerated(value, schema, path)
    if isinstance(value, dict):
        yield from _object(value, schema, path)
    elif isinstance(value, list):
        yield from _list(value, schema, path)
    elif isinstance(value, str):
        yield from _text(value, schema, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _number(value, schema, path)
    if not _COMBINING.isdisjoint(schema):
        yield from _combined(value, schema, path)


_COMBINING: Final = frozenset({"allOf", "anyOf", "oneOf", "not"})

_TYPE_ONLY: Final = frozenset({"type", "description", "default"})
"""Keys of a schema that rules nothing out apart from other types."""

_PLAIN: Final[Mapping[str, type]] = {"string": str, "boolean": bool, "integer": int}


def _is_plain(value: Any, schema: JsonObject) -> bool:
    """Is nothing wrong at first sight? Most values of large objects are of this sort, and need no path and no generator."""
    return type(value) is _PLAIN.get(schema.get("type") or "") and schema.keys() <= _TYPE_ONLY


_TYPES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: not isinstance(value, bool) and (isinstance(value, int) or _whole(value)),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}


def _whole(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


def _type_problem(value: Any, schema: JsonObject) -> str:
    if schema.get(INT_OR_STRING):
        return "" if isinstance(value, int | str) and not isinstance(value, bool) else "integer,string"
    wanted = schema.get("type")
    check = _TYPES.get(wanted or "")
    return "" if check is None or check(value) else str(wanted)


def _shown(value: Any) -> str:
    if value is None:
        return '"null"'
    if isinstance(value, dict | list):
        return dumps(value).decode()
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _enumerated(value: Any, schema: JsonObject, path: str) -> Iterator[Cause]:
    choices = schema.get("enum")
    if choices is not None and not any(value == choice and type(value) is type(choice) for choice in choices):
        yield unsupported(path, value, [str(choice) for choice in choices])


def _object(value: JsonObject, schema: JsonObject, path: str) -> Iterator[Cause]:
    for name in schema.get("required") or ():
        if name not in value:
            yield required(_join(path, name))
    properties = schema.get("properties") or {}
    extra = schema.get("additionalProperties")
    for name, inner in value.items():
        inner_schema = properties.get(name, extra)
        if isinstance(inner_schema, dict) and not _is_plain(inner, inner_schema):
            yield from validate(inner, inner_schema, _join(path, name))
    yield from _bounds(len(value), schema, path, ("minProperties", "maxProperties", "properties"))


def _list(value: list[Any], schema: JsonObject, path: str) -> Iterator[Cause]:
    items = schema.get("items")
    if isinstance(items, dict):
        for index, item in enumerate(value):
            if not _is_plain(item, items):
                yield from validate(item, items, f"{path}[{index}]")
    yield from _bounds(len(value), schema, path, ("minItems", "maxItems", "items"))
    kind = schema.get("x-kubernetes-list-type")
    keys = schema.get("x-kubernetes-list-map-keys") or ()
    seen: set[bytes] = set()
    for index, item in enumerate(value):
        if kind == "map" and isinstance(item, dict):
            identity: Any = {key: item.get(key) for key in keys}
        elif kind == "set" or schema.get("uniqueItems"):
            identity = item
        else:
            continue
        text = dumps(identity)
        if text in seen:
            yield duplicate(f"{path}[{index}]", text.decode())
        seen.add(text)


def _bounds(count: int, schema: JsonObject, path: str, names: tuple[str, str, str]) -> Iterator[Cause]:
    least, most, word = names
    if least in schema and count < schema[least]:
        yield invalid_value(path, count, f"{path} in body should have at least {schema[least]} {word}")
    if most in schema and count > schema[most]:
        yield Cause(path, f"Too many: {count}: must have at most {schema[most]} {word}", "FieldValueTooMany")


@lru_cache(maxsize=1024)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text)


def is_pattern(text: object) -> bool:
    """Whether a text is a regular expression that this server can use."""
    try:
        return isinstance(text, str) and _pattern(text) is not None
    except re.error:
        return False


_DATE_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def _text(value: str, schema: JsonObject, path: str) -> Iterator[Cause]:
    if len(value) < schema.get("minLength", 0):
        yield invalid_value(path, value, f"{path} in body should be at least {schema['minLength']} chars long")
    if "maxLength" in schema and len(value) > schema["maxLength"]:
        yield Cause(path, f"Too long: may not be more than {schema['maxLength']} bytes", "FieldValueTooLong")
    if "pattern" in schema and not _pattern(schema["pattern"]).search(value):
        yield invalid_value(path, value, f"{path} in body should match '{schema['pattern']}'")
    if schema.get("format") == "date-time" and not _DATE_TIME.fullmatch(value):
        yield invalid_value(path, value, f'{path} in body must be of type date-time: "{value}"')


def _number(value: float, schema: JsonObject, path: str) -> Iterator[Cause]:
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None and (value < least or (schema.get("exclusiveMinimum") and value == least)):
        word = "greater than" if schema.get("exclusiveMinimum") else "greater than or equal to"
        yield invalid_value(path, value, f"{path} in body should be {word} {least}")
    if most is not None and (value > most or (schema.get("exclusiveMaximum") and value == most)):
        word = "less than" if schema.get("exclusiveMaximum") else "less than or equal to"
        yield invalid_value(path, value, f"{path} in body should be {word} {most}")
    step = schema.get("multipleOf")
    if step and value % step:
        yield invalid_value(path, value, f"{path} in body should be a multiple of {step}")


def _combined(value: Any, schema: JsonObject, path: str) -> Iterator[Cause]:
    for inner in schema.get("allOf") or ():
        yield from validate(value, inner, path)
    fitting = [sum(_fits(value, inner, path) for inner in schema.get(name) or ()) for name in ("anyOf", "oneOf")]
    if schema.get("anyOf") and not fitting[0]:
        yield invalid_value(path, _shown(value), f"{path} in body must validate at least one schema (anyOf)")
    if schema.get("oneOf") and fitting[1] != 1:
        yield invalid_value(path, _shown(value), f"{path} in body must validate one and only one schema (oneOf)")
    if isinstance(schema.get("not"), dict) and _fits(value, schema["not"], path):
        yield invalid_value(path, _shown(value), f"{path} in body must not validate the schema (not)")


def _fits(value: Any, schema: JsonObject, path: str) -> bool:
    return next(validate(value, schema, path), None) is None


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
