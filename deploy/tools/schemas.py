# noqa: INP001  (a script, which a test loads by its path)
"""
Write the OpenAPI schemas of the built-in kinds for the sandbox, from the models of kubernetes-asyncio: ``make schemas``.

The models take 48 MB and a second to import, the schemas a few hundred kilobytes.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from kubernetes_asyncio.client import models

from koord_numa.sandbox.apiserver.kinds import BUILTIN, SCHEMAS, references

_LIST: Final = re.compile(r"list\[(.+)\]")
_MAP: Final = re.compile(r"dict\([^,]+, (.+)\)|dict\[[^,]+, (.+)\]")
_MODEL: Final = re.compile(r"([A-Z][a-z]+)?(V\d+(?:alpha\d+|beta\d+)?)([A-Z]\w*)")
_NOT_A_GROUP: Final = ("Version",)
_SCALARS: Final = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "datetime": {"type": "string", "format": "date-time"},
}


def schemas() -> dict[str, Any]:
    """Return the schemas of all built-in kinds and of the types that they contain, by their name in OpenAPI."""
    found: dict[str, Any] = {}
    wanted = [
        name for kind in BUILTIN for version in kind.versions if (name := _model_of(kind.group, version, kind.kind))
    ]
    while wanted:
        model = wanted.pop()
        if (name := _name(model)) not in found:
            found[name] = _schema(getattr(models, model))
            wanted.extend(_inner(getattr(models, model)))
    roots = {
        f"{kind.group}/{version}/{kind.kind}": _name(model)
        for kind in BUILTIN
        for version in kind.versions
        if (model := _model_of(kind.group, version, kind.kind))
    }
    for name, schema in found.items():
        if missing := [inner for inner in references(schema) if inner not in found]:
            raise AssertionError(f"{name} refers to {missing}")
    return {"kinds": dict(sorted(roots.items())), "schemas": dict(sorted(found.items()))}


def text() -> str:
    """Return the document with one schema per line."""
    found = schemas()
    lines = ",\n".join(f"{json.dumps(name)}:{_compact(schema)}" for name, schema in found["schemas"].items())
    return f'{{"kinds":{_compact(found["kinds"])},\n"schemas":{{\n{lines}\n}}}}\n'


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _is_model(name: str) -> bool:
    # Models without fields represent values of any type, such as quantities and raw extensions.
    return bool(getattr(getattr(models, name, None), "openapi_types", None))


def _model_of(group: str, version: str, kind: str) -> str:
    """Return the model of a kind. Kinds that occur in two groups have the group in the name: ``EventsV1Event``."""
    of_group = (group.partition(".")[0] or "core").capitalize()
    names = (f"{of_group}{version.capitalize()}{kind}", f"{version.capitalize()}{kind}")
    return next((name for name in names if _is_model(name)), "")


def _name(model: str) -> str:
    """Return the name in OpenAPI. Clients show its last part."""
    parts = _MODEL.fullmatch(model)
    if parts is None:
        return f"io.k8s.{model}"
    group, version, kind = parts.groups()
    return ".".join(("io.k8s.api", *((group.lower(),) if group else ()), version.lower(), kind))


def _schema(model: Any) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for name, kind in model.openapi_types.items():
        schema = _of_type(kind)
        if about := _about(getattr(model, name).__doc__ or ""):
            # A reference has no other keys.
            schema = {"description": about, "allOf": [schema]} if "$ref" in schema else {"description": about, **schema}
        properties[model.attribute_map[name]] = schema
    required = sorted(model.attribute_map[name] for name in model.openapi_types if _is_required(model, name))
    return {"type": "object", **({"required": required} if required else {}), "properties": properties}


def _of_type(kind: str) -> dict[str, Any]:
    if inner := _LIST.fullmatch(kind):
        return {"type": "array", "items": _of_type(inner[1])}
    if inner := _MAP.fullmatch(kind):
        return {"type": "object", "additionalProperties": _of_type(inner[1] or inner[2])}
    if kind in _SCALARS:
        return dict(_SCALARS[kind])
    return {"$ref": f"#/components/schemas/{_name(kind)}"} if _is_model(kind) else {}


def _inner(model: Any) -> Iterator[str]:
    for kind in model.openapi_types.values():
        while inner := _LIST.fullmatch(kind) or _MAP.fullmatch(kind):
            kind = next(filter(None, inner.groups()))
        if _is_model(kind):
            yield kind


def _about(doc: str) -> str:
    """Return the first sentence of the description of a field."""
    lines = [line.split("# noqa")[0].strip() for line in doc.splitlines()]
    described = " ".join(line for line in lines[1:] if line and not line.startswith(":"))
    return re.split(r"(?<=[.!?])\s", described, maxsplit=1)[0]


def _is_required(model: Any, name: str) -> bool:
    """Return whether the setter of a field rejects ``None``."""
    code = getattr(model, name).fset.__code__
    return any(isinstance(it, str) and it.endswith("must not be `None`") for it in code.co_consts)


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else SCHEMAS).write_text(text(), encoding="utf-8")
