"""When the schema inside a CustomResourceDefinition is acceptable: well-typed throughout, and structural."""

from collections.abc import Iterator
from typing import Any, Final

from koord_numa.sandbox.apiserver.errors import Cause, invalid_value, required, unsupported
from koord_numa.sandbox.apiserver.objects.documents import JsonObject
from koord_numa.sandbox.apiserver.objects.schema import INT_OR_STRING, PRESERVE, is_pattern, validate

_IDENTITY: Final = ("apiVersion", "kind", "metadata")
_TYPES: Final = ("array", "boolean", "integer", "number", "object", "string")

_TEXT: Final[JsonObject] = {"type": "string"}
_FLAG: Final[JsonObject] = {"type": "boolean"}
_NUMBER: Final[JsonObject] = {"type": "number"}
_LENGTH: Final[JsonObject] = {"type": "integer", "minimum": 0}
_SCHEMAS: Final[JsonObject] = {"type": "array", "items": {"type": "object"}}
_TEXTS: Final[JsonObject] = {"type": "array", "items": _TEXT}
_LENGTHS: Final = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_FLAGS: Final = ("nullable", "uniqueItems", "exclusiveMinimum", "exclusiveMaximum", INT_OR_STRING, PRESERVE)
_SCHEMA: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "type": _TEXT,
        "format": _TEXT,
        "pattern": _TEXT,
        "required": _TEXTS,
        "enum": {"type": "array", "items": {}},
        "properties": {"type": "object", "additionalProperties": {"type": "object"}},
        "items": {"type": "object"},
        "not": {"type": "object"},
        "allOf": _SCHEMAS,
        "anyOf": _SCHEMAS,
        "oneOf": _SCHEMAS,
        "minimum": _NUMBER,
        "maximum": _NUMBER,
        "multipleOf": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
        "x-kubernetes-list-type": {"type": "string", "enum": ["atomic", "map", "set"]},
        "x-kubernetes-list-map-keys": _TEXTS,
        **dict.fromkeys(_LENGTHS, _LENGTH),
        **dict.fromkeys(_FLAGS, _FLAG),
    },
}


def schema_causes(schema: JsonObject, path: str) -> Iterator[Cause]:
    """All that is wrong with the schema of a whole object."""
    malformed = list(_malformed(schema, path))
    yield from malformed or _unstructured(schema, path, root=True)


def _malformed(schema: Any, path: str) -> Iterator[Cause]:
    found = list(validate(schema, _SCHEMA, path))
    if found:
        yield from found
        return
    if "pattern" in schema and not is_pattern(schema["pattern"]):
        yield invalid_value(f"{path}.pattern", schema["pattern"], "must be a valid regular expression")
    for name, inner in (schema.get("properties") or {}).items():
        yield from _malformed(inner, f"{path}.properties[{name}]")
    for name in ("items", "not", "additionalProperties"):
        inner = schema.get(name)
        if isinstance(inner, dict):
            yield from _malformed(inner, f"{path}.{name}")
        elif name == "additionalProperties" and not isinstance(inner, bool | None):
            yield invalid_value(f"{path}.{name}", str(inner), "must be a schema or a boolean")
    for name in ("allOf", "anyOf", "oneOf"):
        for index, inner in enumerate(schema.get(name) or ()):
            yield from _malformed(inner, f"{path}.{name}[{index}]")


def _unstructured(schema: JsonObject, path: str, *, root: bool = False) -> Iterator[Cause]:
    """What is not structural: a missing or unknown type, or a default that breaks its own schema."""
    kind = schema.get("type")
    if root and kind != "object":
        yield invalid_value(f"{path}.type", kind or "", "must be object at the root")
    elif kind is None and not (schema.get(INT_OR_STRING) or schema.get(PRESERVE)):
        yield required(f"{path}.type", "must not be empty for specified object fields")
    elif kind is not None and kind not in _TYPES:
        yield unsupported(f"{path}.type", kind, _TYPES)
    elif "default" in schema:
        yield from validate(schema["default"], schema, f"{path}.default")
    for name, inner in (schema.get("properties") or {}).items():
        if not (root and name in _IDENTITY):
            yield from _unstructured(inner, f"{path}.properties[{name}]")
    if "items" in schema:
        yield from _unstructured(schema["items"], f"{path}.items")
    elif kind == "array":
        yield required(f"{path}.items", "must be specified")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _unstructured(schema["additionalProperties"], f"{path}.additionalProperties")
