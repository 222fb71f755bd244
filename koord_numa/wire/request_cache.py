"""
Requests of pods that were read before: pods of one workload ask for the same, and most news about a pod is about its status.

A request is known by a digest of everything that it is read from, and of nothing else: what sets the pods of a workload apart,
their names and their service account's volumes, is left out. What was malformed is not remembered.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Final

import orjson
from cachetools import LRUCache
from pydantic import BaseModel

from koord_numa.core.request import PodRequest
from koord_numa.wire import names
from koord_numa.wire.constraints import DemandsModel
from koord_numa.wire.metadata import Head
from koord_numa.wire.parsing import Problems
from koord_numa.wire.requests import ContainerModel, Workload, pod_request
from koord_numa.wire.volume_mounts import FREE_KINDS

_ANNOTATIONS: Final = (
    names.RESOURCE_SPEC,
    names.NUMA_TOPOLOGY_SPEC,
    names.RESERVATION_AFFINITY,
    names.DEVICE_JOINT_ALLOCATE,
    names.GPU_PARTITION_SPEC,
)


def remembered_request(top: Head, spec: dict[str, Any], priority: int, findings: Problems) -> PodRequest:
    """The pod's request, from memory if another pod, or this one before, asked for the same."""
    node = spec.get("nodeName") or ""
    key = _digest(top, spec, priority) if isinstance(node, str) else b""
    known = _REQUESTS.get(key)
    if known is None:
        found = Problems()
        known = pod_request(top, spec, priority, found)
        if found.problem:
            findings.problem = findings.problem or found.problem
            return known
        if not key:
            return known
        known = _REQUESTS[key] = _on_node(known, "")
    return _bound(key, known, node) if node else known


def _bound(key: bytes, unbound: PodRequest, node: str) -> PodRequest:
    """A bind changes one field of the spec, and nothing else of what was asked for."""
    known = _BOUND.get((key, node))
    if known is None:
        known = _BOUND[key, node] = _on_node(unbound, node)
    return known


def _on_node(request: PodRequest, node: str) -> PodRequest:
    if request.constraints.node_name == node:
        return request
    return replace(request, constraints=replace(request.constraints, node_name=node))


def _digest(top: Head, spec: dict[str, Any], priority: int) -> bytes:
    """Nothing for what is no JSON at all, such as endless nesting."""
    annotations = [top.annotations.get(name) for name in _ANNOTATIONS]
    parts = {key: spec[key] for key in _SPEC if key in spec}
    for key in ("containers", "initContainers"):
        if isinstance(containers := parts.get(key), list):
            parts[key] = [_part(container, _CONTAINER) for container in containers]
    own_name = ""
    if isinstance(volumes := parts.get("volumes"), list):
        parts["volumes"] = demanding = [volume for volume in volumes if not _mounts_anywhere(volume)]
        if any(isinstance(volume, Mapping) and "ephemeral" in volume for volume in demanding):
            own_name = top.name  # the claim of such a volume is named after its pod
    try:
        text = orjson.dumps([top.namespace, own_name, top.labels, annotations, priority, parts])
    except orjson.JSONEncodeError:
        return b""
    return blake2b(text, digest_size=16).digest()


def _part(value: object, keys: Iterable[str]) -> object:
    return {key: value[key] for key in keys if key in value} if isinstance(value, dict) else value


def _mounts_anywhere(volume: object) -> bool:
    """A well-formed volume of one kind that any node can mount says nothing about where the pod can go."""
    if not isinstance(volume, dict) or len(volume) != 2 or not isinstance(volume.get("name"), str):
        return False
    return any(kind in FREE_KINDS for kind in volume)


def _read_by(*models: type[BaseModel]) -> tuple[str, ...]:
    return tuple(field.alias or name for model in models for name, field in model.model_fields.items())


_SPEC: Final = tuple(key for key in _read_by(Workload, DemandsModel) if key != "nodeName")
_CONTAINER: Final = _read_by(ContainerModel)

_REQUESTS: Final[LRUCache[bytes, PodRequest]] = LRUCache(maxsize=16384)
"""Requests as they were before anybody bound a pod."""

_BOUND: Final[LRUCache[tuple[bytes, str], PodRequest]] = LRUCache(maxsize=16384)
"""The same by node."""
