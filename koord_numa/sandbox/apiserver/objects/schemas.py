"""
OpenAPI schemas of the built-in kinds, for ``kubectl explain`` and strict field validation.

``deploy/tools/schemas.py`` generates the data file. ``shapes`` checks the types of fields that this server reads.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import orjson

from koord_numa.sandbox.apiserver.objects.documents import JsonObject

SCHEMAS: Final = Path(str(files("koord_numa.sandbox"))) / "data" / "schemas.json"

REFERENCE: Final = "#/components/schemas/"
"""Prefix of references in a document of OpenAPI 3."""


@lru_cache(maxsize=1)
def _data() -> Mapping[str, Any]:
    found: Mapping[str, Any] = orjson.loads(SCHEMAS.read_bytes())
    return found


def schema_name(group: str, version: str, kind: str) -> str:
    """Return the name of the schema of a built-in kind, or an empty text for a kind without a schema."""
    return str(_data()["kinds"].get(f"{group}/{version}/{kind}", ""))


def schema(name: str) -> JsonObject:
    """Return a schema by its name. Callers do not change it."""
    found: JsonObject = _data()["schemas"][name]
    return found


def with_references(names: Iterable[str]) -> dict[str, JsonObject]:
    """Return the schemas of these names and of all types that they contain."""
    found: dict[str, JsonObject] = {}
    wanted = list(names)
    while wanted:
        if (name := wanted.pop()) not in found:
            found[name] = schema(name)
            wanted.extend(references(found[name]))
    return found


def references(value: Any) -> Iterator[str]:
    """Yield the names of the schemas that a schema refers to."""
    if isinstance(value, dict):
        if isinstance(named := value.get("$ref"), str):
            yield named.removeprefix(REFERENCE)
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def unknown_fields(group: str, version: str, kind: str, document: Any) -> Iterator[str]:
    """Yield the paths of fields that a built-in kind does not have, such as ``spec.nodeSelectr``.

    Empty for kinds without a schema.
    """
    if name := schema_name(group, version, kind):
        yield from _unknown(schema(name), document, "")


def _unknown(described: JsonObject, value: Any, path: str) -> Iterator[str]:
    for part in described.get("allOf") or (described,):
        if "$ref" in part:
            described = schema(part["$ref"].removeprefix(REFERENCE))
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unknown(described.get("items") or {}, item, f"{path}[{index}]")
    elif isinstance(value, dict) and ("properties" in described or "additionalProperties" in described):
        fields, others = described.get("properties") or {}, described.get("additionalProperties")
        for key, item in value.items():
            below = f"{path}.{key}" if path else key
            if key in fields or others is not None:
                yield from _unknown(fields.get(key) or others or {}, item, below)
            else:
                yield below
