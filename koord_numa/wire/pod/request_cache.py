"""Caches of parsed pods: requests shared by the pods of one workload, and the fields that do not change while a pod is bound."""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any, Final

import orjson
from pydantic import BaseModel

from koord_numa.core.objects.constraints import Constraints
from koord_numa.core.objects.request import PodKey, PodRequest
from koord_numa.core.objects.workloads import WorkloadKey
from koord_numa.core.value_objects import ValueObject, replace
from koord_numa.wire import names
from koord_numa.wire.errors import FieldPath
from koord_numa.wire.gangs import ANNOTATIONS as GANG_ANNOTATIONS
from koord_numa.wire.metadata import Head
from koord_numa.wire.parsing import ParsedCache, Problems
from koord_numa.wire.pod.requests import FREE_KINDS, ConstraintsModel, ContainerModel, Workload, pod_request

ANNOTATIONS: Final = (
    names.RESOURCE_SPEC,
    names.NUMA_TOPOLOGY_SPEC,
    names.NUMA_SPREAD,
    names.RESERVATION_AFFINITY,
    names.DEVICE_JOINT_ALLOCATE,
    names.GPU_PARTITION_SPEC,
    *GANG_ANNOTATIONS,
)
"""Those that a request is read from."""


class CachedRequest(ValueObject):
    """A request without a node, and its key: empty for one that is not kept."""

    plain: PodRequest
    key: bytes = b""
    characters: int = 0

    @property
    def alone(self) -> PodRequest:
        """
        The same request of a pod without a controller, and without a node: it is lost when a kubelet refuses it, so that it explores
        nothing.
        """
        if not self.key:
            return replace(self.plain, replaceable=False)
        known = _ALONE.get(self.key)
        return known or _ALONE.put(self.key, replace(self.plain, replaceable=False), self.characters)

    def at(self, node: str) -> PodRequest:
        """The same request of a pod with this node: a bind changes ``spec.nodeName`` only."""
        if not self.key:
            return self.plain
        known = _BOUND.get((self.key, node))
        return known or _BOUND.put((self.key, node), _on_node(self.plain, node), self.characters)


def cached_request(top: Head, spec: dict[str, Any], priority: int, problems: Problems) -> CachedRequest:
    """The pod's request, from the cache when an equal one was parsed before. A malformed one is as its own node has it."""
    # No digest for a malformed node name: the request then is not remembered.
    key, characters = _digest(top, spec, priority) if isinstance(spec.get("nodeName") or "", str) else (b"", 0)
    known = _REQUESTS.get(key)
    if known is None:
        found = Problems()
        known = pod_request(top, spec, priority, found)
        # Not cached: its problem names this very pod.
        if found.problem:
            problems.problem = problems.problem or found.problem
            return CachedRequest(known)
        if not key:
            return CachedRequest(known)
        # Without its node, so that the waiting and the bound pod share one entry.
        known = _REQUESTS.put(key, _with_shared_constraints(_on_node(known, ""), characters), characters)
    return CachedRequest(known, key, characters)


def _with_shared_constraints(request: PodRequest, characters: int) -> PodRequest:
    """Requests that differ in other things share one value of their constraints."""
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
    """The cache key, and how many characters are parsed; empty for a spec that cannot be serialised, such as one nested too deeply."""
    annotations = [top.annotations.get(name) for name in ANNOTATIONS] if top.annotations else None
    parts = {key: spec[key] for key in _SPEC if key in spec}
    for key in ("containers", "initContainers"):
        if isinstance(containers := parts.get(key), list):
            parts[key] = [_part(container, _CONTAINER) for container in containers]
    own_name = ""
    if isinstance(volumes := parts.get("volumes"), list):
        # Most volumes constrain nothing, and the name of a service account's token differs from pod to pod.
        parts["volumes"] = demanding = [volume for volume in volumes if not _mounts_anywhere(volume)]
        if any(isinstance(volume, Mapping) and "ephemeral" in volume for volume in demanding):
            own_name = top.name  # the claim of such a volume is named after its pod
    try:
        text = orjson.dumps([top.namespace, own_name, top.labels, annotations, priority, parts])
    except orjson.JSONEncodeError:
        return b"", 0
    # Sixteen bytes: two different requests with one digest will not happen.
    return blake2b(text, digest_size=16).digest(), len(text)


def _part(value: object, keys: Iterable[str]) -> object:
    return {key: value[key] for key in keys if key in value} if isinstance(value, dict) else value


def _mounts_anywhere(volume: object) -> bool:
    """Is this a well-formed volume of a kind that every node can mount? It does not constrain the placement."""
    if not isinstance(volume, dict) or len(volume) != 2 or not isinstance(volume.get("name"), str):
        return False
    return any(kind in FREE_KINDS for kind in volume)


def read_by(*models: type[BaseModel]) -> tuple[str, ...]:
    """The keys of the fields that these models have."""
    return tuple(field.alias or name for model in models for name, field in model.model_fields.items())


_SPEC: Final = tuple(key for key in read_by(Workload, ConstraintsModel) if key != "nodeName")
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
    found = _steady_digest(obj)
    if found is None or found[0] != digest or (part.has_node and not obj["spec"].get("nodeName")):
        return None
    text = _spec_text(obj)
    return part if text == part.spec_text else _with_spec(part, text, found)


def remember(obj: object, part: SteadyPart) -> None:
    """Keep the steady part that was read of this pod, without any problem."""
    found = _steady_digest(obj) if isinstance(obj, dict) else None
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


def _steady_digest(obj: dict[str, Any]) -> tuple[bytes, int] | None:
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
