"""
The rules by which a kube-apiserver accepts the schema of a CustomResourceDefinition, as far as they can be told from outside.

Source: the Kubernetes documentation of structural schemas (Extend the Kubernetes API with CustomResourceDefinitions).
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

Schema = Mapping[str, Any]

FORBIDDEN: Final = frozenset(
    {"$ref", "$schema", "definitions", "dependencies", "deprecated", "discriminator", "id", "patternProperties"}
    | {"readOnly", "writeOnly", "xml", "additionalItems"}
)
TYPES: Final = frozenset({"object", "array", "string", "integer", "number", "boolean"})
COLUMN_TYPES: Final = frozenset({"integer", "number", "string", "boolean", "date"})
INT_OR_STRING: Final = "x-kubernetes-int-or-string"
PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"
VALUE_KEYWORDS: Final = frozenset({"type", "description", "title", "default", "nullable", "additionalProperties"})


def faults(schema: Schema, path: str = "") -> Iterator[str]:
    """Return the errors that an API server would report about a schema."""
    where = path or "."
    yield from (f"{where}: {keyword} is forbidden" for keyword in sorted(FORBIDDEN & schema.keys()))
    if schema.get("uniqueItems"):
        yield f"{where}: uniqueItems is forbidden"
    kind = schema.get("type")
    if kind not in TYPES and not (kind is None and (schema.get(INT_OR_STRING) or schema.get(PRESERVE))):
        yield f"{where}: has no type"
    if "properties" in schema and "additionalProperties" in schema:
        yield f"{where}: properties and additionalProperties exclude each other"
    if kind == "array" and not isinstance(schema.get("items"), Mapping):
        yield f"{where}: an array needs one schema for its items"
    if missing := set(schema.get("required", ())) - set(schema.get("properties", ())):
        yield f"{where}: required but unknown: {sorted(missing)}"
    yield from _lists(schema, where)
    yield from _logic(schema, where)
    for name, child in schema.get("properties", {}).items():
        yield from faults(child, f"{path}.{name}")
    if isinstance(items := schema.get("items"), Mapping):
        yield from faults(items, f"{path}[]")


def root_faults(schema: Schema) -> Iterator[str]:
    """Further rules for the root of a schema."""
    if schema.get("type") != "object":
        yield "the root is not an object"
    if set(schema.get("properties", {}).get("metadata", {})) - {"type", "properties", "description"}:
        yield "metadata may only be restricted in its name"
    if "default" in schema:
        yield "the root has a default"


def _lists(schema: Schema, where: str) -> Iterator[str]:
    if schema.get("x-kubernetes-list-type") == "map":
        items = schema["items"]
        for key in schema["x-kubernetes-list-map-keys"]:
            if key not in items.get("required", ()) and "default" not in items["properties"][key]:
                yield f"{where}: map key {key} is neither required nor has a default"


def _logic(schema: Schema, where: str) -> Iterator[str]:
    """Inside anyOf and its like only restrictions may stand, but for the one idiom of integers or strings."""
    for keyword in ("anyOf", "allOf", "oneOf", "not"):
        branches = schema.get(keyword, [])
        if schema.get(INT_OR_STRING) and branches == [{"type": "integer"}, {"type": "string"}]:
            continue
        for branch in [branches] if isinstance(branches, Mapping) else branches:
            if VALUE_KEYWORDS & branch.keys() or any(key.startswith("x-kubernetes-") for key in branch):
                yield f"{where}: {keyword} states more than a restriction"


def defaults(schema: Schema, path: str = "") -> Iterator[tuple[str, Any, Schema]]:
    """Every default with its path and schema."""
    if "default" in schema:
        yield path, schema["default"], schema
    for name, child in schema.get("properties", {}).items():
        yield from defaults(child, f"{path}.{name}")
    if isinstance(items := schema.get("items"), Mapping):
        yield from defaults(items, f"{path}[]")


def knows(schema: Schema, json_path: str) -> bool:
    """Return true if the schema has the last field of a printer column's path."""
    here: Schema = schema
    path = json_path.replace(r"\.", "\0")
    if path.startswith(".metadata."):
        return True
    for step in path.strip(".").replace("]", "").replace(".", "[").split("["):
        if step.isdigit() or step.startswith(("?", "@", "*", "name==")):
            here = here["items"] if here.get("type") == "array" else here
        elif step:
            if step not in here.get("properties", {}):
                return False
            here = here["properties"][step]
    return True
