"""Reading of YAML and JSON manifests into JSON documents; timestamps stay the texts they are."""

from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import yaml

from koord_numa.sandbox.apiserver.objects.documents import JsonObject

_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"


class _JsonLoader(yaml.SafeLoader):
    """YAML without dates: the API knows only texts."""


_JsonLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def parse_yaml(text: bytes | str) -> Any:
    """The value of one YAML document. Raises ``ValueError`` when it is none."""
    try:
        return yaml.load(text, Loader=_JsonLoader)  # noqa: S506  (a SafeLoader)
    except yaml.YAMLError as problem:
        raise ValueError(f"error converting YAML to JSON: {problem}") from problem
    except RecursionError:
        raise ValueError("error converting YAML to JSON: the document is nested too deeply") from None


@lru_cache(maxsize=8)  # many servers of one process begin with the same definitions
def _documents(text: str) -> tuple[Any, ...]:
    return tuple(yaml.load_all(text, Loader=_JsonLoader))


def read_manifests(path: Path) -> list[JsonObject]:
    """All objects of a file, those inside a ``List`` too, for reading only. Raises ``ValueError`` for what is no object."""
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
