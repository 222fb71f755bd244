"""
Requests of pods that were read before: most news about a pod is about its status, and its request is the same value again.

A request is known by a digest of everything that it is read from. What was malformed is not remembered.
"""

from dataclasses import replace
from hashlib import blake2b
from typing import Any, Final

import orjson
from cachetools import LRUCache

from koord_numa.core.request import PodRequest
from koord_numa.wire import names
from koord_numa.wire.metadata import Head
from koord_numa.wire.reading import Findings
from koord_numa.wire.requests import pod_request

_ANNOTATIONS: Final = (
    names.RESOURCE_SPEC,
    names.NUMA_TOPOLOGY_SPEC,
    names.RESERVATION_AFFINITY,
    names.DEVICE_JOINT_ALLOCATE,
    names.GPU_PARTITION_SPEC,
)


def remembered_request(top: Head, spec: dict[str, Any], priority: int, findings: Findings) -> PodRequest:
    """The pod's request, from memory if nothing that it depends on has changed."""
    key = _digest(top, spec)
    known = _REQUESTS.get(key) or _read_before_it_was_bound(key, top, spec)
    if known is None:
        found = Findings()
        known = pod_request(top, spec, priority, found)
        if found.problem:
            findings.problem = findings.problem or found.problem
        elif key:
            _REQUESTS[key] = known
    return known


def _read_before_it_was_bound(key: bytes, top: Head, spec: dict[str, Any]) -> PodRequest | None:
    """A bind changes one field of the spec, and nothing else of what was asked for."""
    node = spec.get("nodeName")
    if not key or not isinstance(node, str) or not node:
        return None
    unbound = _REQUESTS.get(_digest(top, {name: value for name, value in spec.items() if name != "nodeName"}))
    if unbound is None:
        return None
    bound = _REQUESTS[key] = replace(unbound, constraints=replace(unbound.constraints, node_name=node))
    return bound


def _digest(top: Head, spec: dict[str, Any]) -> bytes:
    """Nothing for what is no JSON at all, such as endless nesting."""
    annotations = [top.annotations.get(name) for name in _ANNOTATIONS]
    try:
        text = orjson.dumps([top.namespace, top.name, top.labels, annotations, spec])
    except orjson.JSONEncodeError:
        return b""
    return blake2b(text, digest_size=16).digest()


_REQUESTS: Final[LRUCache[bytes, PodRequest]] = LRUCache(maxsize=16384)
