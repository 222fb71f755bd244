"""Caches of parsed pods: requests shared by the pods of a workload, and the parts that do not change during a bind."""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any, Final

import orjson
from pydantic import BaseModel

from koord_numa.core.objects.constraints import Constraints, WorkloadKey
from koord_numa.core.objects.request import PodKey, PodRequest
from koord_numa.core.value_objects import ValueObject, replace
from koord_numa.wire import names
from koord_numa.wire.devices import ANNOTATIONS as DEVICE_ANNOTATIONS
from koord_numa.wire.errors import FieldPath
from koord_numa.wire.gangs import ANNOTATIONS as GANG_ANNOTATIONS
from koord_numa.wire.metadata import Head
from koord_numa.wire.parsing import ParsedCache, Problems
from koord_numa.wire.pod.requests import FREE_KINDS, ConstraintsModel, ContainerModel, WorkloadModel, pod_request

ANNOTATIONS: Final = (
    names.RESOURCE_SPEC,
    names.NUMA_TOPOLOGY_SPEC,
    names.NUMA_SPREAD,
    names.CPU_ISOLATION,
    names.RESERVATION_AFFINITY,
    *DEVICE_ANNOTATIONS,
    *GANG_ANNOTATIONS,
)
"""Annotations that a request depends on."""


class CachedRequest(ValueObject):
    """A request without a node, and its cache key. The key is empty for a request that is not cached."""

    plain: PodRequest
    key: bytes = b""
    characters: int = 0

    @property
    def alone(self) -> PodRequest:
        """
        Return the request for an unbound pod without a controller.

        The pod is lost if a kubelet rejects it, so it must not be used to explore kubelet options.
        """
        if not self.key:
            return replace(self.plain, replaceable=False)
        known = _ALONE.get(self.key)
        return known or _ALONE.put(self.key, replace(self.plain, replaceable=False), self.characters)

    def at(self, node: str) -> PodRequest:
        """Return the request for a pod on this node. A bind changes only ``spec.nodeName``."""
        if not self.key:
            return self.plain
        known = _BOUND.get((self.key, node))
        return known or _BOUND.put((self.key, node), _on_node(self.plain, node), self.characters)


def cached_request(top: Head, spec: dict[str, Any], priority: int, problems: Problems) -> CachedRequest:
    """Return the pod's request, from the cache if an equal one was parsed. Malformed requests keep their node and are not cached."""
    # No digest for a malformed node name: the request is then not cached.
    key, characters = _digest(top, spec, priority) if isinstance(spec.get("nodeName") or "", str) else (b"", 0)
    known = _REQUESTS.get(key)
    if known is None:
        found = Problems()
        known = pod_request(top, spec, priority, found)
        # Not cached: the problem names this pod.
        if found.problem:
            problems.problem = problems.problem or found.problem
            return CachedRequest(known)
        if not key:
            return CachedRequest(known)
        # Without the node, so that the pending and the bound pod share an entry.
        known = _REQUESTS.put(key, _with_shared_constraints(_on_node(known, ""), characters), characters)
    return CachedRequest(known, key, characters)


def _with_shared_constraints(request: PodRequest, characters: int) -> PodRequest:
    """Share the constraints between requests that differ in other fields."""
    own = request.constraints
    shared = _CONSTRAINTS.get(own)
    if shared is None:
        _CONSTRAINTS.put(own, own, characters)
        return request
    return request if shared is own else replace(request, constraints=shared)


def _on_node(request: PodRequest, node: str) -> PodRequest:
    if request.constraints.node_name == node:
        return request
    return replace(request, constraints=replace(request.constraints, node_name=node))


def _digest(top: Head, spec: dict[str, Any], priority: int) -> tuple[bytes, int]:
    """Return the cache key and the number of parsed characters. Empty if the spec cannot be serialized, such as deep nesting."""
    annotations = [top.annotations.get(name) for name in ANNOTATIONS] if top.annotations else None
    parts = {key: spec[key] for key in _SPEC if key in spec}
    for key in ("containers", "initContainers"):
        if isinstance(containers := parts.get(key), list):
            parts[key] = [_part(container, _CONTAINER) for container in containers]
    own_name = ""
    if isinstance(volumes := parts.get("volumes"), list):
        # Most volumes constrain nothing, and the name of a service account token differs between pods.
        parts["volumes"] = demanding = [volume for volume in volumes if not _mounts_anywhere(volume)]
        if any(isinstance(volume, Mapping) and "ephemeral" in volume for volume in demanding):
            own_name = top.name  # the claim of an ephemeral volume is named after the pod
    try:
        text = orjson.dumps([top.namespace, own_name, top.labels, annotations, priority, parts])
    except orjson.JSONEncodeError:
        return b"", 0
    # Sixteen bytes: collisions are practically impossible.
    return blake2b(text, digest_size=16).digest(), len(text)


def _part(value: object, keys: Iterable[str]) -> object:
    return {key: value[key] for key in keys if key in value} if isinstance(value, dict) else value


def _mounts_anywhere(volume: object) -> bool:
    """Return whether a volume is well-formed and of a kind that every node can mount. It does not constrain the placement."""
    if not isinstance(volume, dict) or len(volume) != 2 or not isinstance(volume.get("name"), str):
        return False
    return any(kind in FREE_KINDS for kind in volume)


def read_by(*models: type[BaseModel]) -> tuple[str, ...]:
    """Return the keys of the fields of these models."""
    return tuple(field.alias or name for model in models for name, field in model.model_fields.items())


_SPEC: Final = tuple(key for key in read_by(WorkloadModel, ConstraintsModel) if key != "nodeName")
_CONTAINER: Final = read_by(ContainerModel)

_CHARACTERS: Final = 16 << 20

_REQUESTS: Final[ParsedCache[bytes, PodRequest]] = ParsedCache(_CHARACTERS)
"""Requests of pods without a node, by digest."""

_ALONE: Final[ParsedCache[bytes, PodRequest]] = ParsedCache(_CHARACTERS)
"""Requests of pods without a node and without a controller, by digest."""

_BOUND: Final[ParsedCache[tuple[bytes, str], PodRequest]] = ParsedCache(_CHARACTERS)
"""Requests of bound pods, by digest and node."""

_CONSTRAINTS: Final[ParsedCache[Constraints, Constraints]] = ParsedCache(_CHARACTERS)


class SteadyPart(ValueObject):
    """The parts of a pod that do not change with its status, its node and the annotations of its bind."""

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
        tuple[str, str, str], ...
    ]  # entries of ``spec.resourceClaims``: names of the entry, of the claim, and of the template; one of the latter two is empty
    has_node: bool  # the fields below are not known for bound pods
    controller: WorkloadKey | None = None
    images: tuple[str, ...] = ()

    def request_at(self, node: str) -> PodRequest:
        """Return the request of the pod on this node, or of the unbound pod for an empty name."""
        if node:
            return self.request.at(node)
        return self.request.plain if self.owner else self.request.alone


def known_part(obj: object) -> SteadyPart | None:
    """Return the steady part of this pod if it was parsed before from the same texts."""
    uid = obj["metadata"].get("uid") if isinstance(obj, dict) and isinstance(obj.get("metadata"), dict) else None
    known = _PARTS.get(uid) if isinstance(uid, str) else None
    if known is None or not isinstance(obj, dict):
        return None
    digest, part = known
    found = _steady_digest(obj)
    if found is None or found[0] != digest or (part.has_node and not obj["spec"].get("nodeName")):
        return None
    text = _spec_text(obj)
    return part if text == part.spec_text else _with_spec(part, text, found)


def remember(obj: object, part: SteadyPart) -> None:
    """Cache the steady part of this pod, which was parsed without a problem."""
    found = _steady_digest(obj) if isinstance(obj, dict) else None
    if found is None:
        return
    known = _PARTS.get(part.key.uid)
    if known is not None and known[0] == found[0] and known[1].request.key and part.request.key:
        # Equal but for resource-spec: that text maps the cached request to this one.
        _FILLED.put((known[1].request.key, part.spec_text), part.request, part.request.characters + len(part.spec_text))
    _PARTS.put(part.key.uid, (found[0], part), found[1])


def _with_spec(part: SteadyPart, text: str, digest: tuple[bytes, int]) -> SteadyPart | None:
    """Return the part with another text of ``resource-spec``, if it was parsed before for the same request."""
    request = _FILLED.get((part.request.key, text)) if part.request.key else None
    if request is None:
        return None
    filled = replace(part, request=request, spec_text=text)
    _PARTS.put(part.key.uid, (digest[0], filled), digest[1])
    return filled


def _spec_text(obj: dict[str, Any]) -> str:
    text: str = (obj["metadata"].get("annotations") or {}).get(names.RESOURCE_SPEC, "")
    return text


def _steady_digest(obj: dict[str, Any]) -> tuple[bytes, int] | None:
    """Return the digest of the steady part and its characters. ``None`` if the remaining fields may be malformed."""
    metadata, spec = obj.get("metadata"), obj.get("spec")
    if not isinstance(metadata, dict) or not isinstance(spec, dict):
        return None
    annotations = metadata.get("annotations") or {}
    if not isinstance(annotations, dict):
        return None
    # The omitted fields are used without validation, so their types are checked here.
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


_AT_BIND: Final = (
    names.RESOURCE_STATUS,
    names.RESOURCE_SPEC,
    names.NUMA_NODES,
    names.EXPLORES,
    names.DEVICE_ALLOCATED,
)
"""Annotations that are written or filled in with the bind."""

_LOOSE: Final = frozenset({"annotations", "generation", "managedFields", "resourceVersion"})
"""Metadata that is not part of the digest. A bind changes the spec, and thereby the generation."""

_FILLED: Final[ParsedCache[tuple[bytes, str], CachedRequest]] = ParsedCache(8 << 20)
"""By the key of a request and another text of ``resource-spec``."""

_PARTS: Final[ParsedCache[str, tuple[bytes, SteadyPart]]] = ParsedCache(16 << 20)
"""By UID."""
