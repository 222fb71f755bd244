"""
The part of a pod that does not change while it is bound and starts, so that it is read once and not with every update of its status.

It is known again by a digest of everything that it is read from. Only pods that are about to change are remembered: a list of running pods
costs nothing here.
"""

from hashlib import blake2b
from typing import Any, Final

import orjson

from koord_numa.core.objects.request import PodKey, PodRequest
from koord_numa.core.objects.workloads import WorkloadKey
from koord_numa.core.value_objects import value_object
from koord_numa.wire import names
from koord_numa.wire.errors import FieldPath
from koord_numa.wire.parsed_cache import ParsedCache
from koord_numa.wire.pod.request_cache import CachedRequest


@value_object
class SteadyPart:
    """What is read of a pod apart from its status, its node, and what is written into its annotations when it is bound."""

    path: FieldPath
    key: PodKey
    request: CachedRequest
    scheduler: str
    created: float
    deleting: bool
    gated: bool
    mirror: bool
    owner: str
    coined: bool
    preempts: bool
    spec_text: str
    never_rebound: bool
    claims: tuple[
        tuple[str, str], ...
    ]  # entries of ``spec.resourceClaims``: the name, and that of the claim, empty for one from a template
    has_node: bool  # of a pod that was read with a node, the rest is not known
    controller: WorkloadKey | None = None
    images: tuple[str, ...] = ()

    def request_at(self, node: str) -> PodRequest:
        """The request of the pod with this node, or with none."""
        if node:
            return self.request.at(node)
        return self.request.plain if self.owner else self.request.alone


def known_part(obj: object) -> SteadyPart | None:
    """The steady part of this pod, if it was read before from the same texts."""
    uid = obj["metadata"].get("uid") if isinstance(obj, dict) and isinstance(obj.get("metadata"), dict) else None
    known = _PARTS.get(uid) if isinstance(uid, str) else None
    if known is None or not isinstance(obj, dict):
        return None
    digest, part = known
    found = _digest(obj)
    if found is None or found[0] != digest or (part.has_node and not obj["spec"].get("nodeName")):
        return None
    return part


def remember(obj: object, part: SteadyPart) -> None:
    """Keep the steady part that was read of this pod, without any problem."""
    found = _digest(obj) if isinstance(obj, dict) else None
    if found is not None:
        _PARTS.put(part.key.uid, (found[0], part), found[1])


def _digest(obj: dict[str, Any]) -> tuple[bytes, int] | None:
    """Of what the steady part is read from, and how many characters these are. ``None`` where the rest may be malformed."""
    metadata, spec = obj.get("metadata"), obj.get("spec")
    if not isinstance(metadata, dict) or not isinstance(spec, dict):
        return None
    annotations = metadata.get("annotations") or {}
    if not isinstance(annotations, dict):
        return None
    # What is left out is used as it is, so that its type matters.
    loose = (spec.get("nodeName"), metadata.get("resourceVersion"), *map(annotations.get, _AT_BIND))
    if not all(isinstance(each, str | None) for each in loose) or not _is_generation(metadata.get("generation")):
        return None
    parts = (
        {key: value for key, value in metadata.items() if key not in _LOOSE},
        {key: value for key, value in annotations.items() if key not in _AT_BIND},
        {key: value for key, value in spec.items() if key != "nodeName"},
    )
    try:
        text = orjson.dumps(parts)
    except orjson.JSONEncodeError:
        return None
    return blake2b(text, digest_size=16).digest(), len(text)


def _is_generation(value: object) -> bool:
    return value is None or (type(value) is int and abs(value) < 1 << 63)


_AT_BIND: Final = (names.RESOURCE_STATUS, names.EXPLORES)
"""Annotations that a pod gets with its node."""

_LOOSE: Final = frozenset({"annotations", "generation", "managedFields", "resourceVersion"})
"""A bind changes the spec, and with it the generation."""

_PARTS: Final[ParsedCache[str, tuple[bytes, SteadyPart]]] = ParsedCache(32 << 20)
"""By uid."""
