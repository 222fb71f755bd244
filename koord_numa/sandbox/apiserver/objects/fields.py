"""
Fields that built-in kinds have, for strict field validation, by the models of the Kubernetes client.

The models are imported at the first validation that a client asks for: they take as long as the rest of the server.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

_LIST: Final = re.compile(r"list\[(.+)\]")
_MAP: Final = re.compile(r"dict\([^,]+, (.+)\)|dict\[[^,]+, (.+)\]")


def unknown_fields(group: str, version: str, kind: str, document: Any) -> Iterator[str]:
    """Paths of the fields that a built-in kind does not have, such as ``spec.nodeSelectr``. None for kinds without a model."""
    model = _model_of(group, version, kind)
    if model:
        yield from _unknown(model, document, "")


def _unknown(type_name: str, value: Any, path: str) -> Iterator[str]:
    if (inner := _LIST.fullmatch(type_name)) and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unknown(inner[1], item, f"{path}[{index}]")
    elif (inner := _MAP.fullmatch(type_name)) and isinstance(value, dict):
        for key, item in value.items():
            yield from _unknown(inner[1] or inner[2], item, f"{path}.{key}" if path else key)
    elif isinstance(value, dict) and (fields := _fields(type_name)) is not None:
        for name, item in value.items():
            there = f"{path}.{name}" if path else name
            if name in fields:
                yield from _unknown(fields[name], item, there)
            else:
                yield there


@lru_cache(maxsize=1024)
def _fields(type_name: str) -> dict[str, str] | None:
    """The type of each field of a model, by the field's name on the wire; ``None`` for what is no model."""
    from kubernetes_asyncio.client import models  # noqa: PLC0415  (see the module's docstring)

    model = getattr(models, type_name, None)
    # Models without fields stand for values of any type, such as quantities and raw extensions.
    if model is None or not getattr(model, "openapi_types", None):
        return None
    return {model.attribute_map[name]: kind for name, kind in model.openapi_types.items()}


@lru_cache(maxsize=256)
def _model_of(group: str, version: str, kind: str) -> str:
    """Kinds whose name two groups share have the group in the name of their model: ``EventsV1Event``."""
    of_group = (group.partition(".")[0] or "core").capitalize()
    names = (f"{of_group}{version.capitalize()}{kind}", f"{version.capitalize()}{kind}")
    return next((name for name in names if _fields(name) is not None), "")
