"""
The part of a pod that does not change while it is bound and starts, so that it is read once and not with every update of its status.

It is known again by a digest of everything that it is read from. Only pods that are about to change are remembered: a list of running pods
costs nothing here. A bind may fill in the policy in the annotation ``resource-spec``: what the request of a class becomes by that is read
once for all its pods.
"""

from hashlib import blake2b
from typing import Any, Final

import orjson

from koord_numa.core.objects.request import PodKey, PodRequest
from koord_numa.core.objects.workloads import WorkloadKey
from koord_numa.core.value_objects import ValueObject, replace
from koord_numa.wire import names
from koord_numa.wire.errors import FieldPath
from koord_numa.wire.parsed_cache import ParsedCache
from koord_numa.wire.pod.request_cache import CachedRequest


class SteadyPart(ValueObject):
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
    text = _spec_text(obj)
    return part if text == part.spec_text else _with_spec(part, text, found)


def remember(obj: object, part: SteadyPart) -> None:
    """Keep the steady part that was read of this pod, without any problem."""
    found = _digest(obj) if isinstance(obj, dict) else None
    if found is None:
        return
    known = _PARTS.get(part.key.uid)
    if known is not None and known[0] == found[0] and known[1].request.key and part.request.key:
        # The same but for this text, which then has made the one request of the other.
        _FILLED.put((known[1].request.key, part.spec_text), part.request, part.request.characters + len(part.spec_text))
    _PARTS.put(part.key.uid, (found[0], part), found[1])


def _with_spec(part: SteadyPart, text: str, digest: tuple[bytes, int]) -> SteadyPart | None:
    """The same part with another text of ``resource-spec``, if that was read of such a request before."""
    request = _FILLED.get((part.request.key, text)) if part.request.key else None
    if request is None:
        return None
    filled = replace(part, request=request, spec_text=text)
    _PARTS.put(part.key.uid, (digest[0], filled), digest[1])
    return filled


def _spec_text(obj: dict[str, Any]) -> str:
    text: str = (obj["metadata"].get("annotations") or {}).get(names.RESOURCE_SPEC, "")
    return text


def _digest(obj: dict[str, Any]) -> tuple[bytes, int] | None:
    """Of what the steady part is read from, and how many characters these are. ``None`` where the rest may be malformed."""
    metadata, spec = obj.get("metadata"), obj.get("spec")
    if not isinstance(metadata, dict) or not isinstance(spec, dict):
        return None
    annotations = metadata.get("annotations") or {}
    if not isinstance(annotations, dict):
        return None
    # What is left out is used as it is, so that its type matters.
    loose = (spec.get("nodeName"), metadata.get("resourceVersion"))
    if not all(isinstance(each, str | None) for each in loose) or not _is_generation(metadata.get("generation")):
        return None
    if not all(isinstance(annotations.get(name, ""), str) for name in _AT_BIND):
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


_AT_BIND: Final = (names.RESOURCE_STATUS, names.RESOURCE_SPEC, names.NUMA_NODES, names.EXPLORES)
"""Annotations that a pod gets with its node, or that are filled in then."""

_LOOSE: Final = frozenset({"annotations", "generation", "managedFields", "resourceVersion"})
"""A bind changes the spec, and with it the generation."""

_FILLED: Final[ParsedCache[tuple[bytes, str], CachedRequest]] = ParsedCache(8 << 20)
"""By the key of a request and another text of ``resource-spec``."""

_PARTS: Final[ParsedCache[str, tuple[bytes, SteadyPart]]] = ParsedCache(16 << 20)
"""By uid."""
