"""Caches of parsed pods, and the parser of bound pods from their JSON text in one pass."""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any, Final

import msgspec
import orjson
from msgspec import Raw, Struct

from koord_numa.core.objects.constraints import Constraints
from koord_numa.core.objects.devices import DeviceGrants
from koord_numa.core.objects.request import Assignment, Pod, PodKey, PodRequest
from koord_numa.core.value_objects import ValueObject, replace
from koord_numa.wire import names
from koord_numa.wire.devices import ANNOTATIONS as DEVICE_ANNOTATIONS
from koord_numa.wire.devices import device_grants
from koord_numa.wire.errors import FieldPath, WireError
from koord_numa.wire.gangs import ANNOTATIONS as GANG_ANNOTATIONS
from koord_numa.wire.parsing import Head, Owner, ParsedCache, Problems, controller_uid, has_coined_name, read_time
from koord_numa.wire.pod_annotations import cached_assignment
from koord_numa.wire.pod_requests import FREE_KINDS, ConstraintsModel, ContainerModel, WorkloadModel, pod_request
from koord_numa.wire.raw_json import UnreadObject

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


def read_by(*models: type[Struct]) -> tuple[str, ...]:
    """Return the keys of the fields of these models."""
    return tuple(name for model in models for name in model.__struct_encode_fields__)


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


# Parse bound pods from their JSON text in one pass. Lists contain many of them, and every status update repeats one.
#
# Only the needed fields are decoded, into typed structures. The request is looked up by the text of all fields that it
# depends on, as in ``cached_request``, and must have been parsed in full before, for any pod. For an unusual pod (a field
# of another type, a resize in progress, claims, a request never seen) the functions return nothing, and ``parse_pod``
# parses the whole object. So both ways have the same result.

_ABSENT: Final = Raw(b"null")


class _Metadata(Struct, rename="camel"):
    name: str
    uid: str
    namespace: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    resource_version: str | None = None
    generation: Raw = _ABSENT
    owner_references: list[Owner] | None = None


class _Amounts(Struct, omit_defaults=True):
    requests: Raw = Raw(b"{}")
    limits: Raw = _ABSENT
    claims: Raw = _ABSENT


class ContainerFields(Struct, rename="camel", omit_defaults=True):
    """The fields of a container that a request depends on."""

    name: str
    resources: _Amounts | None = None
    ports: Raw = _ABSENT
    restart_policy: Raw = _ABSENT
    restart_policy_rules: Raw = _ABSENT


class Spec(Struct, rename="camel", omit_defaults=True):
    """The parsed fields of a pod's spec. All except ``node_name`` are part of the key of its request."""

    node_name: str
    containers: list[ContainerFields]
    init_containers: list[ContainerFields] | None = None
    volumes: list[dict[str, Raw]] | None = None
    scheduler_name: str | None = None
    preemption_policy: str | None = None
    priority: Raw = _ABSENT
    overhead: Raw = _ABSENT
    resources: Raw = _ABSENT
    node_selector: Raw = _ABSENT
    affinity: Raw = _ABSENT
    tolerations: Raw = _ABSENT
    topology_spread_constraints: Raw = _ABSENT
    host_network: Raw = _ABSENT
    host_users: Raw = _ABSENT
    scheduling_group: Raw = _ABSENT
    scheduling_gates: Raw = _ABSENT
    resource_claims: Raw = _ABSENT


class _Condition(Struct):
    type: str = ""
    status: str = ""


class _ContainerStatus(Struct, rename="camel"):
    name: str
    resources: _Amounts | None = None
    allocated_resources: Raw = Raw(b"")  # differs from null, which differs from all amounts


class _Status(Struct, rename="camel", frozen=True):
    phase: str | None = None
    reason: str | None = None
    nominated_node_name: str | None = None
    start_time: str | None = None
    conditions: list[_Condition] | None = None
    container_statuses: list[_ContainerStatus] | None = None
    init_container_statuses: list[_ContainerStatus] | None = None
    # Only for pods that need a full parse.
    resource_claim_statuses: Raw = _ABSENT
    extended_resource_claim_status: Raw = _ABSENT


class BoundText(Struct):
    """A bound pod, as decoded from its text."""

    metadata: _Metadata
    spec: Spec
    status: _Status = _Status()


class _Key(Struct, array_like=True):
    namespace: str
    labels: dict[str, str] | None
    annotations: list[str | None] | None
    spec: Spec


def bound_text(obj: UnreadObject) -> BoundText | None:
    """Return the decoded pod, or ``None`` if it needs a full parse."""
    try:
        found = _DECODER.decode(obj.text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None
    return found if _is_usual(found) else None


def request_key(found: BoundText) -> tuple[str, bytes]:
    """Return the node of the pod, and the key of its request."""
    metadata, spec, node = found.metadata, found.spec, found.spec.node_name
    written = metadata.annotations
    annotations = [written.get(name) for name in ANNOTATIONS] if written else None
    # The node is not part of the request.
    spec.node_name = ""
    key = _ENCODER.encode(_Key(metadata.namespace, metadata.labels, annotations, spec))
    spec.node_name = node
    return node, key


def remember_request(key: bytes, request: CachedRequest) -> None:
    """Cache the request of a pod with this key, parsed in full and without a problem."""
    _BOUND_REQUESTS.put(key, request, len(key) + request.characters)


def known_pod(found: BoundText, node: str, key: bytes) -> Pod | None:
    """Return the pod if its request is cached and its times and annotations are well-formed."""
    request = _BOUND_REQUESTS.get(key)
    if request is None:
        return None
    metadata, spec, status = found.metadata, found.spec, found.status
    annotations = metadata.annotations or _NO_ANNOTATIONS
    created, started, held = metadata.creation_timestamp, status.start_time, annotations.get(names.RESOURCE_STATUS)
    granted = annotations.get(names.DEVICE_ALLOCATED)
    assignment: Assignment | None = None
    devices: DeviceGrants = ()
    try:
        created_at = read_time(created, _PATH) if created else 0.0
        started_at = read_time(started, _PATH) if started else 0.0
        if held is not None:
            assignment = cached_assignment(held, _PATH)
        if granted is not None:
            devices = device_grants(granted, _PATH)
    except WireError:
        return None
    bound, owners = request.at(node), metadata.owner_references
    return Pod(
        key=PodKey(metadata.namespace or "default", metadata.name, metadata.uid),
        request=bound,
        scheduler=spec.scheduler_name or "default-scheduler",
        node=node,
        nominated=status.nominated_node_name or "",
        phase=status.phase or "Pending",
        reason=status.reason or "",
        created=created_at,
        deleting=metadata.deletion_timestamp is not None,
        mirror=names.MIRROR in annotations,
        labels=bound.labels,
        owner=controller_uid(owners) if owners else "",
        coined=has_coined_name(owners) if owners else False,
        assignment=assignment,
        preempts=spec.preemption_policy != "Never",
        ready=any(each.type == "Ready" and each.status == "True" for each in (status.conditions or ())),
        started=status.phase == "Running" or bool(status.container_statuses or status.init_container_statuses),
        started_at=started_at,
        resource_version=metadata.resource_version or "",
        spec_text=annotations.get(names.RESOURCE_SPEC, ""),
        never_rebound=annotations.get(names.REBIND, "").lower() == "false",
        explores=explored(annotations[names.EXPLORES]) if names.EXPLORES in annotations else (),
        devices=devices,
    )


def explored(text: str) -> tuple[str, ...]:
    """
    Return the kubelet options that the placement of the pod is meant to reveal.

    Never fails: this scheduler writes the annotation.
    """
    return tuple(filter(None, text[:4096].split(",")))


def _is_usual(found: BoundText) -> bool:
    metadata, spec, status = found.metadata, found.spec, found.status
    if not (spec.node_name and metadata.name and metadata.uid):
        return False
    if not _is_number(metadata.generation):
        return False
    rare = (spec.scheduling_gates, spec.resource_claims, spec.resources)
    if rare != _NONE_OF_SPEC:
        return False
    of_status = (status.resource_claim_statuses, status.extended_resource_claim_status)
    if of_status != _NONE_OF_STATUS:
        return False
    if spec.volumes and not _only_demanding(spec):
        return False
    return not _is_resized(spec, status.container_statuses, status.init_container_statuses)


def _is_number(text: Raw) -> bool:
    """Return whether the text is absent or certainly a 64-bit number. Anything else needs a full parse."""
    digits = bytes(text)
    return digits == b"null" or (digits.isdigit() and len(digits) <= 18)


def _only_demanding(spec: Spec) -> bool:
    """
    Remove volumes that every node can mount, as ``cached_request`` does.

    Return false if an ephemeral volume is left: its claim is named after the pod.
    """
    demanding = [volume for volume in spec.volumes or () if not _raw_mounts_anywhere(volume)]
    spec.volumes = demanding or None
    return not any("ephemeral" in volume for volume in demanding)


def _raw_mounts_anywhere(volume: dict[str, Raw]) -> bool:
    name = volume.get("name")
    if len(volume) != 2 or name is None or not bytes(name).startswith(b'"'):
        return False
    return any(kind in FREE_KINDS for kind in volume)


def _is_resized(spec: Spec, *statuses: list[_ContainerStatus] | None) -> bool:
    """
    Return whether the amounts in a container's status and spec differ, also if only their spelling differs.

    As ``pods.amounts_differ``.
    """
    wanted: dict[str, bytes] | None = None
    for listed in statuses:
        for each in listed or ():
            if each.resources is None:
                continue
            if wanted is None:
                # Of two containers with the same name the last counts, as in the full parse.
                containers = (*spec.containers, *(spec.init_containers or ()))
                wanted = {
                    each.name: _NOTHING if each.resources is None else bytes(each.resources.requests)
                    for each in containers
                }
            asked = wanted.get(each.name)
            allocated = bytes(each.allocated_resources)
            if bytes(each.resources.requests) != asked or allocated not in (asked, b""):
                return True
    return False


_DECODER: Final = msgspec.json.Decoder(BoundText)
_ENCODER: Final = msgspec.json.Encoder()

_NOTHING: Final = b"{}"
_NO_ANNOTATIONS: Final[dict[str, str]] = {}
_NONE_OF_SPEC: Final = (_ABSENT,) * 3
_NONE_OF_STATUS: Final = (_ABSENT,) * 2

_PATH: Final = FieldPath("Pod")
"""Path of errors that are not reported: the pod then gets a full parse, with its full name."""

_BOUND_REQUESTS: Final[ParsedCache[bytes, CachedRequest]] = ParsedCache(16 << 20)
"""Requests of bound pods, by ``request_key``."""
