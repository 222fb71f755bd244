"""Pruning of unknown fields and defaulting by a structural schema. Both change the document in place."""

from typing import Any, Final

from koord_numa.sandbox.apiserver.objects.documents import JsonObject, clone
from koord_numa.sandbox.apiserver.objects.schema import EMBEDDED, PRESERVE

_ROOT_FIELDS: Final = frozenset(("apiVersion", "kind", "metadata"))


def prune(document: JsonObject, schema: JsonObject) -> list[str]:
    """Remove what the schema of a whole object does not know; returns the paths of what was removed."""
    removed: list[str] = []
    _prune_object(document, schema, "", removed, root=True)
    return removed


def _prune_object(value: JsonObject, schema: JsonObject, path: str, removed: list[str], *, root: bool = False) -> None:
    keep_unknown = bool(schema.get(PRESERVE))
    embedded = root or bool(schema.get(EMBEDDED))
    properties = schema.get("properties") or {}
    extra = schema.get("additionalProperties")
    for name in list(value):
        where = f"{path}.{name}" if path else name
        if embedded and name in _ROOT_FIELDS:
            continue
        if name in properties:
            _prune_value(value[name], properties[name], where, removed)
        elif isinstance(extra, dict):
            _prune_value(value[name], extra, where, removed)
        elif extra is not True and not keep_unknown:
            del value[name]
            removed.append(where)


def _prune_value(value: Any, schema: JsonObject, path: str, removed: list[str]) -> None:
    if isinstance(value, dict):
        _prune_object(value, schema, path, removed)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for index, item in enumerate(value):
            _prune_value(item, schema["items"], f"{path}[{index}]", removed)


def fill_defaults(value: Any, schema: JsonObject) -> None:
    """Set every absent field that has a default; a null where none is allowed counts as absent."""
    if isinstance(value, dict):
        _fill_object(value, schema)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for item in value:
            fill_defaults(item, schema["items"])


def _fill_object(value: JsonObject, schema: JsonObject) -> None:
    properties = schema.get("properties") or {}
    for name, inner in properties.items():
        if name in value and value[name] is None and not inner.get("nullable"):
            del value[name]
        if name not in value and "default" in inner:
            value[name] = clone(inner["default"])
    extra = schema.get("additionalProperties")
    for name, inner_value in value.items():
        inner = properties.get(name, extra)
        if isinstance(inner, dict):
            fill_defaults(inner_value, inner)
