"""JSON documents: parsing, serialization and access to nested values. Independent of Kubernetes kinds."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson
import yaml

JsonObject = dict[str, Any]

MISSING: Final = object()


def dumps(value: object) -> bytes:
    """Return the compact JSON text of a value. Raises ``TypeError`` for keys that are not strings."""
    return orjson.dumps(value)


def loads(text: bytes | str) -> Any:
    """Return the value of a JSON text. Raises ``ValueError`` (``orjson.JSONDecodeError``) for malformed JSON."""
    return orjson.loads(text)


def clone(value: Any) -> Any:
    """Return a deep copy of a JSON value, several times faster than ``copy.deepcopy``."""
    return orjson.loads(orjson.dumps(value))


def dig(value: Any, *path: str) -> Any:
    """Return the value at a path of object keys, or ``None`` when a step is absent or is not an object."""
    for step in path:
        if not isinstance(value, dict):
            return None
        value = value.get(step)
    return value


def section(value: JsonObject, name: str) -> JsonObject:
    """Return the object under ``name`` for writing. It is created when it is absent or not an object."""
    inner = value.get(name)
    if not isinstance(inner, dict):
        inner = value[name] = {}
    return inner


def metadata_of(document: Mapping[str, Any]) -> JsonObject:
    """Return the ``metadata`` of an object, or an empty object when there is none."""
    metadata = document.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def timestamp(moment: datetime | None = None) -> str:
    """Return a time (by default now) in RFC 3339 with whole seconds in UTC: ``2026-01-31T12:00:00Z``."""
    return (moment or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"


if TYPE_CHECKING:
    _SafeLoader = yaml.SafeLoader
else:
    # The implementation in C: a start of the sandbox read its manifests for a tenth of its CPU time.
    _SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _JsonLoader(_SafeLoader):
    """A YAML loader without the timestamp type, because the API has dates as strings."""


_JsonLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def parse_yaml(text: bytes | str) -> Any:
    """Return the value of a YAML document. Raises ``ValueError`` for malformed YAML."""
    try:
        return yaml.load(text, Loader=_JsonLoader)  # noqa: S506  (a SafeLoader)
    except yaml.YAMLError as problem:
        raise ValueError(f"error converting YAML to JSON: {problem}") from problem
    except RecursionError:
        raise ValueError("error converting YAML to JSON: the document is nested too deeply") from None


@lru_cache(maxsize=8)  # many servers of a process load the same definitions
def _documents(text: str) -> tuple[Any, ...]:
    return tuple(yaml.load_all(text, Loader=_JsonLoader))


def read_manifests(path: Path) -> list[JsonObject]:
    """Return all objects of a file, including the items of a ``List``.

    The objects are cached and must not be changed. Raises ``ValueError`` for documents that are not objects.
    """
    found: list[JsonObject] = []
    try:
        documents = _documents(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as problem:
        raise ValueError(f"{path}: {problem}") from problem
    except RecursionError:
        raise ValueError(f"{path}: the file is nested too deeply") from None
    for document in documents:
        if document is None:
            continue
        if not isinstance(document, dict):
            raise ValueError(f"{path}: expected objects, found {type(document).__name__}")  # noqa: TRY004  (malformed data)
        items = (document.get("items") or []) if document.get("kind") == "List" else [document]
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise ValueError(f"{path}: expected a list of objects as items")
        found.extend(items)
    return found
