"""
The objects of a YAML or JSON file, whatever the file is like.

Theory. libyaml builds values by recursion in C, where a file of a few kilobytes that is nested deeply enough ends the process; and a few
aliases of aliases (``*a``) stand for more values than any memory holds. Both show in the stream of parser events, which needs no
recursion and a tenth of the time, so it is read first. JSON has neither, and a reader of its own that is a hundred times as fast.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import click
import orjson
import yaml

from koord_numa.wire.parsing import is_nested_deeper

Document = Mapping[str, Any]

DEEPEST: Final = 250
"""Levels of objects and lists: more than any object of a cluster has (orjson, which encodes requests, stops at 254)."""

MOST_REPEATED: Final = 1_000_000
"""Values that the aliases of one text may stand for together."""

_NESTING: Final = "maximum nesting depth"
"""What libyaml says of deeper ones than it reads."""

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The one in C where there is one: a cluster's objects are many megabytes."""


def documents(text: str, name: str) -> Iterator[Document]:
    """The objects of a YAML or JSON text, those in lists one by one. Raises ``click.ClickException``."""
    try:
        found = _json(text, name) or _yaml(text, name)
    except yaml.YAMLError as error:
        # Newer ones of libyaml stop at a thousand levels, and may have read ahead to them before the first event comes.
        if _NESTING in str(getattr(error, "problem", "")):
            raise _too_deep(name) from None
        raise click.ClickException(f"{name} is not YAML: {error}") from None
    for document in found:
        yield from _flat(document, name)


def _flat(document: Any, name: str) -> Iterator[Document]:
    if not isinstance(document, dict):
        raise click.ClickException(f"{name} has a document that is no Kubernetes object")
    # A List of kubectl is named `List`, the API's own `PodList`.
    if str(document.get("kind") or "").endswith("List") and isinstance(document.get("items"), list):
        for item in document["items"]:
            yield from _flat(item, name)
    else:
        yield document


def _json(text: str, name: str) -> list[Any]:
    """The one document of a JSON text; nothing when it is none, or is nested too deeply for the reader."""
    if text.lstrip()[:1] not in ("{", "["):
        return []
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return []  # YAML in flow style, several documents, or malformed: the other reader says where
    if is_nested_deeper(value, DEEPEST):
        raise _too_deep(name)
    return [value] if value else []


def _yaml(text: str, name: str) -> list[Any]:
    _check(text, name)
    return [document for document in yaml.load_all(text, _LOADER) if document]


def _check(text: str, name: str) -> None:
    """Raises ``click.ClickException`` for a text of which no values must be built."""
    sizes: dict[str, int] = {}  # values by anchor, those behind aliases in it included
    under_way: list[tuple[str | None, int]] = []  # the collections that are open, and the values before each
    values = repeated = 0
    for event in yaml.parse(text, _LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            under_way.append((event.anchor, values))
            if len(under_way) > DEEPEST:
                raise _too_deep(name)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = under_way.pop()
            if anchor is not None:
                sizes[anchor] = values - before
        elif isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in under_way):
                raise click.ClickException(f"{name} has a value that contains itself: *{event.anchor}")
            size = sizes.get(event.anchor or "", 1)
            repeated += size
            values += size
            if repeated > MOST_REPEATED:
                raise click.ClickException(f"{name} has aliases that stand for more than {MOST_REPEATED} values")
        values += 1


def _too_deep(name: str) -> click.ClickException:
    return click.ClickException(f"{name} is nested more than {DEEPEST} levels deep")
