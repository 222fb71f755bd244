"""
A cache of parsed pod requests: the pods of one workload have the same request, and most events about a pod only change its status.

The key is a digest of every field that the request is parsed from and of no other field: names and service account volumes, which
differ between the pods of a workload, are left out. Malformed requests are not cached.
"""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any, Final

import orjson
from pydantic import BaseModel

from koord_numa.core.objects.constraints import Constraints
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.value_objects import ValueObject, replace
from koord_numa.wire import names
from koord_numa.wire.gangs import ANNOTATIONS as GANG_ANNOTATIONS
from koord_numa.wire.metadata import Head
from koord_numa.wire.parsed_cache import ParsedCache
from koord_numa.wire.parsing import Problems
from koord_numa.wire.pod.constraints import ConstraintsModel
from koord_numa.wire.pod.requests import ContainerModel, Workload, pod_request
from koord_numa.wire.pod.volume_mounts import FREE_KINDS

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
