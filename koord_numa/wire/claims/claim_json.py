"""Write JSON for the API server: ``status.allocation`` of a ResourceClaim, and claims for extended resources of pods."""

from base64 import b32encode
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

import orjson

from koord_numa.core.claims.allocation import AllocatedConfig, Allocation, DeviceResult
from koord_numa.core.claims.claim import DeviceRequest, DeviceToleration
from koord_numa.core.claims.extended_resources import RequestMapping
from koord_numa.core.claims.node_allocatable import ClaimAmounts, Overhead
from koord_numa.core.objects.constraints import NodeTerm, Requirement
from koord_numa.core.objects.request import PodKey
from koord_numa.core.resources import format_nano
from koord_numa.wire.claims.resource_claims import EXTENDED

_LONGEST_NAME: Final = 63
_SUFFIX: Final = 10


def extended_claim_name(pod: PodKey) -> str:
    """
    Return the name of the claim for a pod's extended resources.

    Follows upstream's ``generateName``, but the suffix is a hash of the pod's UID. A retry after a lost response
    therefore creates no second claim: the API server rejects the duplicate name.
    """
    digest = b32encode(sha256(pod.uid.encode()).digest()).decode().lower()
    return f"{pod.name}-extended-resources-"[: _LONGEST_NAME - _SUFFIX] + digest[:_SUFFIX]


def extended_claim_json(pod: PodKey, requests: Sequence[DeviceRequest]) -> dict[str, Any]:
    """Return the claim for a pod's extended resources, owned by the pod (dynamicresources ``preFilterExtendedResources``)."""
    owner = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": pod.name,
        "uid": pod.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": extended_claim_name(pod),
            "namespace": pod.namespace,
            "annotations": {EXTENDED: "true"},
            "ownerReferences": [owner],
        },
        "spec": {"devices": {"requests": [_request_json(request) for request in requests]}},
    }


def mappings_json(claim: str, mappings: Sequence[RequestMapping]) -> dict[str, Any]:
    """Return ``status.extendedResourceClaimStatus`` of a pod (core/v1 ``PodExtendedResourceClaimStatus``)."""
    return {
        "resourceClaimName": claim,
        "requestMappings": [
            {"containerName": it.container, "resourceName": it.resource, "requestName": it.request} for it in mappings
        ],
    }


def claim_amounts_json(claim: str, amounts: ClaimAmounts) -> dict[str, Any]:
    """Return an entry of ``status.nodeAllocatableResourceClaimStatuses`` (core/v1 ``NodeAllocatableResourceClaimStatus``)."""
    written: dict[str, Any] = {"resourceClaimName": claim}
    if amounts.containers:
        written["containers"] = list(amounts.containers)
    if amounts.mapping:
        written["mapping"] = [{"name": name, "quantity": format_nano(amount)} for name, amount in amounts.mapping]
    if amounts.overhead:
        written["overhead"] = [_overhead_json(each) for each in amounts.overhead]
    return written


def _overhead_json(overhead: Overhead) -> dict[str, Any]:
    parts = {"perPod": overhead.per_pod, "perContainer": overhead.per_container}
    return {"name": overhead.resource} | {
        name: format_nano(amount) for name, amount in parts.items() if amount is not None
    }


def _request_json(request: DeviceRequest) -> dict[str, Any]:
    (demand,) = request.alternatives
    exactly = {"deviceClassName": demand.device_class, "allocationMode": str(demand.mode), "count": demand.count}
    return {"name": request.name, "exactly": exactly}


def allocation_json(allocation: Allocation) -> dict[str, Any]:
    """Return ``status.allocation`` as JSON, without its timestamp."""
    devices: dict[str, Any] = {"results": [_result_json(result) for result in allocation.results]}
    if allocation.configs:
        devices["config"] = [_config_json(config) for config in allocation.configs]
    written: dict[str, Any] = {"devices": devices}
    if allocation.nodes is not None:
        written["nodeSelector"] = {"nodeSelectorTerms": [_term_json(term) for term in allocation.nodes]}
    return written


def _result_json(result: DeviceResult) -> dict[str, Any]:
    driver, pool, device = result.device
    optional = {
        "adminAccess": result.admin_access,
        "tolerations": [_toleration_json(toleration) for toleration in result.tolerations],
        "shareID": result.share_id,
        "consumedCapacity": {name: format_nano(amount) for name, amount in result.consumed},
        "bindingConditions": list(result.binding_conditions),
        "bindingFailureConditions": list(result.binding_failure_conditions),
    }
    written: dict[str, Any] = {"request": result.request, "driver": driver, "pool": pool, "device": device}
    # Empty fields are omitted, as Go's omitempty does. Otherwise, the API server would store and send the difference.
    return written | {name: value for name, value in optional.items() if value}


def _toleration_json(toleration: DeviceToleration) -> dict[str, Any]:
    written: dict[str, Any] = {
        "key": toleration.key,
        "operator": toleration.operator,
        "value": toleration.value,
        "effect": toleration.effect,
    }
    written = {name: value for name, value in written.items() if value}
    # tolerationSeconds is a pointer in Go: 0 (evict at once) differs from an absent value and must be kept.
    return written if toleration.seconds is None else written | {"tolerationSeconds": toleration.seconds}


def _config_json(config: AllocatedConfig) -> dict[str, Any]:
    written: dict[str, Any] = {"source": config.source.value}
    if config.requests:
        written["requests"] = list(config.requests)
    if config.opaque is not None:
        # The parameters were kept as text. In the object they are JSON, not a string.
        written["opaque"] = {"driver": config.opaque.driver, "parameters": orjson.loads(config.opaque.parameters)}
    return written


def _term_json(term: NodeTerm) -> dict[str, Any]:
    written = {"matchExpressions": _requirements_json(term.labels), "matchFields": _requirements_json(term.fields)}
    # An empty list selects nothing in Go's matching. An absent list is no condition.
    return {name: value for name, value in written.items() if value}


def _requirements_json(requirements: Sequence[Requirement]) -> list[dict[str, Any]]:
    return [
        {"key": it.key, "operator": it.operator.value} | ({"values": list(it.values)} if it.values else {})
        for it in requirements
    ]
