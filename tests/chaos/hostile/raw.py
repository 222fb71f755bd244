"""JSON texts that no kube-apiserver sends and other API servers may: NaN, wrong types, repeated keys, negative amounts, deep nesting."""

import json
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, Final

from koord_numa.sandbox.apiserver.documents import loads
from koord_numa.sandbox.apiserver.kinds import FieldPath
from koord_numa.sandbox.apiserver.storage import Record
from tests.e2e.world import JsonObject

DEEP: Final = '{"a":' * 2000 + "1" + "}" * 2000
TEXTS: Final = (
    "NaN", "Infinity", "-Infinity", "1e999", "-5", "1.5", "1e308", "1" + "0" * 40, "-9223372036854775809", '"-5"', '"NaN"', '"inf"',
    '"-1Gi"', '"1e999"', '"\\u0000"', '"\\u202e"', '""', "null", "true", "[]", "{}", "[null]", "[[]]", '{"":null}', '"x"',
)  # fmt: skip
"""Values in place of any other."""

IDENTITY: Final = {"apiVersion", "kind", "name", "namespace", "uid", "resourceVersion", "nodeName"}
"""Fields by which an object is found."""

WATCHED_BY_KOPF: Final = {"Pod", "NodeResourceTopology", "RebindResource"}
"""Kinds of which the metadata stay as they are: Kopf relies on their types, which every API server decodes itself."""

FREE_FORM: Final = {"ResourceClaim", "DeviceClass", "ResourceSlice", "ReplicaSet", "StatefulSet", "Service"}
"""Kinds that are also nested more deeply than decoders follow. The other kinds have no free-form fields."""


class HostileRecord(Record):
    """A record whose text is hostile for everyone who reads it over HTTP, and harmless for the parts of the sandbox."""

    __slots__ = ("harmless",)

    dice: Random = Random(0)
    share = 0.0
    """Share of the records of hostile objects whose text is changed."""

    def __init__(self, document: JsonObject, revision: int, fields: Mapping[str, FieldPath]) -> None:
        super().__init__(document, revision, fields)
        self.harmless = self.raw
        if self.key.name.startswith("hostile") and self.dice.random() < self.share:
            self.raw = corrupted(loads(self.raw), self.dice).encode()

    def load(self) -> JsonObject:
        """The object as it was stored."""
        document: JsonObject = loads(self.harmless)
        return document


def corrupted(document: JsonObject, dice: Random) -> str:
    """The text of an object with one to three hostile values."""
    texts = [*TEXTS, DEEP] if document["kind"] in FREE_FORM else TEXTS
    hostile: dict[str, str] = {}
    for number in range(dice.randint(1, 3)):
        watched = document["kind"] in WATCHED_BY_KOPF
        parts = {key: value for key, value in document.items() if key != "metadata"} if watched else document
        containers = [it for it in _containers(parts) if it]
        container = dice.choice(containers)
        mark = f"@{number}@"
        hostile[f'"{mark}"'] = dice.choice(texts)
        if isinstance(container, list):
            container[dice.randrange(len(container))] = mark
            continue
        keys = [key for key in container if key not in IDENTITY]
        if not keys:
            continue
        key = dice.choice(keys)
        if dice.random() < 0.3:
            # The same key twice: the last one counts.
            hostile[f'"{mark}"'] += f", {json.dumps(key)}: {json.dumps(container[key])}"
        container[key] = mark
    text = json.dumps(document)
    for mark, value in hostile.items():
        text = text.replace(mark, value)
    return text


def _containers(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _containers(inner)
