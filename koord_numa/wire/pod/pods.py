"""Pods: from the API object to identity, scheduling and request. A malformed pod is still a pod; its problem is named."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from koord_numa.core.claims.pod_claims import PodResourceClaim
from koord_numa.core.objects.request import Assignment, Pod, PodKey
from koord_numa.wire import names
from koord_numa.wire.errors import FieldPath
from koord_numa.wire.images import pod_images
from koord_numa.wire.metadata import Head, head, version
from koord_numa.wire.parsing import Int64, Problems, Strict, read, read_time
from koord_numa.wire.pod.pod_annotations import assignment, check_bind_policy
from koord_numa.wire.pod.request_cache import cached_request
from koord_numa.wire.pod.resize import counted_request
from koord_numa.wire.workloads import controller_of


class PodClaimModel(Strict):
    """An entry of ``spec.resourceClaims``: a claim by name, or one made for the pod from a template."""

    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodClaimStatusModel(Strict):
    """Which claim was made from a template; without a name, none is needed."""

    name: str
    resource_claim_name: str | None = None


class ExtendedClaimStatusModel(Strict):
    """Which claim has devices for the pod's extended resources."""

    resource_claim_name: str | None = None


class SchedulingSpec(Strict):
    """The part of a pod's spec that is about its path among other pods."""

    scheduler_name: str | None = None
    priority: Int64 | None = None
    preemption_policy: str | None = None
    scheduling_gates: list[dict[str, Any]] | None = None
    resource_claims: list[PodClaimModel] | None = None


class Status(Strict):
    """How far the pod has come."""

    phase: str | None = None
    reason: str | None = None
    nominated_node_name: str | None = None
    start_time: str | None = None
    container_statuses: list[Any] | None = None
    init_container_statuses: list[Any] | None = None
    conditions: list[Any] | None = None
    resource_claim_statuses: list[PodClaimStatusModel] | None = None
    extended_resource_claim_status: ExtendedClaimStatusModel | None = None


def parse_pod(obj: Mapping[str, Any]) -> Pod:
    """
    The pod in an API object. Malformed parts set ``Pod.problem`` and are left out; whatever amounts can be read count.

    Raises ``WireError`` only when the object has no name or uid by which it could be known.
    """
    problems = Problems()
    top = head(obj, "Pod", problems)
    # A pod is known by its uid: one without cannot be told from its successor of the same name.
    if not top.uid:
        raise top.path.at("metadata.uid").error("is missing")
    raw_spec, raw_status = _part(top, "spec", problems), _part(top, "status", problems)
    scheduling = problems.collect(lambda: read(SchedulingSpec, raw_spec, top.path.at("spec")), _NO_SCHEDULING)
    status = problems.collect(lambda: read(Status, raw_status, top.path.at("status")), _NO_STATUS)
    start = status.start_time or ""
    # An empty text is as good as absent.
    request = cached_request(top, raw_spec, scheduling.priority or 0, problems)
    # A running pod may be resized: what it counts for is in its status.
    if request.constraints.node_name:
        request = problems.collect(
            partial(counted_request, request, raw_spec, raw_status, top.path.at("status")), request
        )
    else:
        problems.collect(partial(check_bind_policy, request, top.path), None)
        # A pod without a controller is lost when a kubelet refuses it, so that it explores nothing.
        if not top.metadata.controller:
            request = replace(request, replaceable=False)
    node = request.constraints.node_name
    held = top.annotations.get(names.RESOURCE_STATUS)
    return Pod(
        key=PodKey(top.namespace or "default", top.name, top.uid),
        request=request,
        scheduler=scheduling.scheduler_name or "default-scheduler",
        node=node,
        nominated=status.nominated_node_name or "",
        phase=status.phase or "Pending",
        reason=status.reason or "",
        created=top.created,
        deleting=top.metadata.deletion_timestamp is not None,
        gated=bool(scheduling.scheduling_gates),
        mirror=names.MIRROR in top.annotations,
        labels=request.labels,
        owner=top.metadata.controller,
        # Only where a default constraint may apply: bound pods are spread already.
        controller=None if node else controller_of(top),
        # Before the bind the annotation is a leftover or another's writing, and holds nothing.
        assignment=problems.collect(lambda: _assignment(held, top.path), None) if node and held is not None else None,
        preempts=scheduling.preemption_policy != "Never",
        ready=_is_ready(status.conditions or ()),
        # Statuses of containers are written by the kubelet that has admitted the pod.
        started=status.phase == "Running" or bool(status.container_statuses or status.init_container_statuses),
        started_at=problems.collect(lambda: read_time(start, top.path.at("status.startTime")) if start else 0.0, 0.0),
        resource_version=version(top),
        spec_text=top.annotations.get(names.RESOURCE_SPEC, ""),
        never_rebound=top.annotations.get(names.REBIND, "").lower() == "false",
        # A resource-status on a pod without a node is stale: it is replaced by the bind.
        stale_status=not node and held is not None,
        resource_claims=_resource_claims(scheduling, status),
        extended_claim=(status.extended_resource_claim_status or _NO_CLAIM).resource_claim_name or "",
        explores=_explores(top) if node else (),
        images=() if node else pod_images(raw_spec),
        problem=problems.problem,
    )


def _explores(top: Head) -> tuple[str, ...]:
    """The options that the pod was placed to find out about; written by this scheduler, so any text will do."""
    return tuple(filter(None, top.annotations.get(names.EXPLORES, "")[:4096].split(",")))


def _is_ready(conditions: Iterable[Any]) -> bool:
    """Does the condition ``Ready`` hold? A pod without it is not ready."""
    return any(
        isinstance(each, Mapping) and each.get("type") == "Ready" and each.get("status") == "True"
        for each in conditions
    )


def _resource_claims(spec: SchedulingSpec, status: Status) -> tuple[PodResourceClaim, ...]:
    """As dynamic-resource-allocation/resourceclaim ``Name``."""
    made = {it.name: it.resource_claim_name for it in status.resource_claim_statuses or ()}
    return tuple(
        PodResourceClaim(it.name, it.resource_claim_name)
        if it.resource_claim_name
        else PodResourceClaim(
            it.name, made.get(it.name) or "", from_template=True, needed=it.name not in made or bool(made[it.name])
        )
        for it in spec.resource_claims or ()
    )


def _part(top: Head, key: str, problems: Problems) -> dict[str, Any]:
    part = top.body.get(key)
    if part is None or isinstance(part, dict):
        return part or {}
    if isinstance(part, Mapping):
        return dict(part)
    problems.problem = problems.problem or str(top.path.at(key).error("is not an object"))
    return {}


def _assignment(text: str, path: FieldPath) -> Assignment | None:
    return assignment(text, path.annotation(names.RESOURCE_STATUS))


_NO_SCHEDULING = SchedulingSpec()
_NO_STATUS = Status()
_NO_CLAIM = ExtendedClaimStatusModel()
