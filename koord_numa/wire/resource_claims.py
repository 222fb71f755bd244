"""ResourceClaims, DeviceClasses and ResourceClaimTemplates (resource.k8s.io/v1): parsing, and JSON for the API server."""

from base64 import b32encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

import orjson

from koord_numa.core.claims import RequestMapping
from koord_numa.core.objects.claims import (
    AllocatedConfig,
    Allocation,
    AllocationMode,
    ClaimAmounts,
    ClaimConfig,
    ClaimSpec,
    ConfigSource,
    DeviceClass,
    DeviceConstraint,
    DeviceId,
    DeviceRequest,
    DeviceRequirements,
    DeviceResult,
    DeviceToleration,
    OpaqueConfig,
    Overhead,
    ResourceClaim,
)
from koord_numa.core.objects.constraints import NodeTerm, Requirement
from koord_numa.core.objects.request import PodKey
from koord_numa.core.resources import format_nano
from koord_numa.core.value_objects import ValueObject, value_field
from koord_numa.wire.errors import FieldPath
from koord_numa.wire.parsing import Int64, Problems, Quantity, Strict, head, is_nested_deeper, read
from koord_numa.wire.resource_slices import nano
from koord_numa.wire.workloads import NodeSelectorModel, node_terms


class CelModel(Strict):
    """A CEL selector."""

    expression: str | None = None


class SelectorModel(Strict):
    """A device selector. 1.36 knows no kind other than CEL."""

    cel: CelModel | None = None


class DeviceTolerationModel(Strict):
    """A toleration of device taints."""

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None
    toleration_seconds: Int64 | None = None


class CapacityRequestsModel(Strict):
    """Requested capacities."""

    requests: dict[str, Quantity] | None = None


class DemandModel(Strict):
    """``exactly``, or an alternative of ``firstAvailable``."""

    name: str | None = None
    device_class_name: str | None = None
    selectors: list[SelectorModel] | None = None
    allocation_mode: str | None = None
    count: Int64 | None = None
    admin_access: bool | None = None
    tolerations: list[DeviceTolerationModel] | None = None
    capacity: CapacityRequestsModel | None = None


class RequestModel(Strict):
    """A named request."""

    name: str
    exactly: DemandModel | None = None
    first_available: list[DemandModel] | None = None


class ConstraintModel(Strict):
    """A constraint between devices."""

    requests: list[str] | None = None
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class OpaqueModel(Strict):
    """Configuration that only the driver understands."""

    driver: str
    parameters: dict[str, Any] | None = None


class ConfigModel(Strict):
    """Configuration in a claim, a class or an allocation."""

    source: str | None = None
    requests: list[str] | None = None
    opaque: OpaqueModel | None = None


class DevicesModel(Strict):
    """``spec.devices`` of a claim."""

    requests: list[RequestModel] | None = None
    constraints: list[ConstraintModel] | None = None
    config: list[ConfigModel] | None = None


class ClaimSpecModel(Strict):
    """``spec`` of a claim."""

    devices: DevicesModel | None = None


class ResultModel(Strict):
    """An allocated device."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    tolerations: list[DeviceTolerationModel] | None = None
    share_id: str | None = value_field(default=None, name="shareID")
    consumed_capacity: dict[str, Quantity] | None = None
    binding_conditions: list[str] | None = None
    binding_failure_conditions: list[str] | None = None


class AllocatedDevicesModel(Strict):
    """The devices of an allocation with their configuration."""

    results: list[ResultModel] | None = None
    config: list[ConfigModel] | None = None


class AllocationModel(Strict):
    """``status.allocation``."""

    devices: AllocatedDevicesModel | None = None
    node_selector: NodeSelectorModel | None = None


class ConsumerModel(Strict):
    """A consumer that may use a claim."""

    api_group: str | None = None
    resource: str = ""
    name: str = ""
    uid: str = ""


class DeviceConditionModel(Strict):
    """A condition of an allocated device."""

    type: str
    status: str


class DeviceStatusModel(Strict):
    """The status that a driver reports for an allocated device."""

    driver: str
    pool: str
    device: str
    share_id: str | None = value_field(default=None, name="shareID")
    conditions: list[DeviceConditionModel] | None = None


class ClaimStatusModel(Strict):
    """``status`` of a claim."""

    allocation: AllocationModel | None = None
    reserved_for: list[ConsumerModel] | None = None
    devices: list[DeviceStatusModel] | None = None


class ClassSpecModel(Strict):
    """``spec`` of a device class."""

    selectors: list[SelectorModel] | None = None
    config: list[ConfigModel] | None = None
    extended_resource_name: str | None = None


DEEPEST: Final = 200
"""Maximum nesting of the parameters of a device configuration. They are written back, and the encoder (orjson) stops at 254 levels."""

FINALIZER: Final = "resource.kubernetes.io/delete-protection"
"""Finalizer that keeps an allocated claim until it is deallocated (resource/v1 ``Finalizer``)."""

EXTENDED: Final = "resource.kubernetes.io/extended-resource-claim"
"""Annotation of claims for extended resources (resource/v1 ``ExtendedResourceClaimAnnotation``)."""


def parse_resource_claim(obj: Mapping[str, Any]) -> ResourceClaim:
    """Parse a ResourceClaim. ``problem`` describes malformed parts. Raises ``WireError`` only for an object without a name."""
    problems = Problems()
    top = head(obj, "ResourceClaim", problems)
    path = top.path.at("spec")
    spec = problems.collect(lambda: parse_claim_spec(top.body.get("spec") or {}, path), ClaimSpec())
    status_path = top.path.at("status")
    status = problems.collect(
        lambda: read(ClaimStatusModel, top.body.get("status") or {}, status_path), ClaimStatusModel()
    )
    allocation = problems.collect(lambda: _allocation(status.allocation, status_path.at("allocation"), problems), None)
    # Read from the raw body: no other kind needs its finalizers.
    finalizers = top.body["metadata"].get("finalizers") or ()
    return ResourceClaim(
        namespace=top.namespace or "default",  # claims are namespaced; only handwritten files omit the namespace
        name=top.name,
        uid=top.uid,
        version=top.metadata.resource_version or "",
        spec=spec,
        allocation=allocation,
        # The API allows consumers other than pods. Their end is unknown, so the claim stays in use while any is listed.
        reserved_for=tuple(it.uid for it in status.reserved_for or () if it.resource == "pods" and not it.api_group),
        other_consumers=sum(it.resource != "pods" or bool(it.api_group) for it in status.reserved_for or ()),
        reserved_groups=tuple(
            it.uid
            for it in status.reserved_for or ()
            if it.resource == "podgroups" and it.api_group == "scheduling.k8s.io"
        ),
        owner=top.metadata.controller,
        extended=top.annotations.get(EXTENDED) == "true",
        deleting=top.metadata.deletion_timestamp is not None,
        protected=FINALIZER in finalizers,
        conditions=frozenset(
            (DeviceId(it.driver, it.pool, it.device), condition.type)
            for it in status.devices or ()
            for condition in it.conditions or ()
            # Only true conditions matter, both for binding conditions and for binding failure conditions.
            if condition.status == "True"
        ),
        problem=problems.problem,
    )


def parse_device_class(obj: Mapping[str, Any]) -> DeviceClass:
    """Parse a DeviceClass. ``problem`` describes malformed parts. Raises ``WireError`` only for an object without a name."""
    problems = Problems()
    top = head(obj, "DeviceClass", problems)
    spec = problems.part(top, "spec", ClassSpecModel)
    path = top.path.at("spec.config")
    return DeviceClass(
        top.name,
        _selectors(spec.selectors),
        problems.collect(lambda: tuple(_opaque(config.opaque, path) for config in spec.config or ()), ()),
        spec.extended_resource_name or "",
        problems.problem,
        top.created,
    )


def parse_claim_spec(raw: object, path: FieldPath) -> ClaimSpec:
    """Parse ``spec`` of a claim or of a claim template."""
    devices = read(ClaimSpecModel, raw, path).devices or DevicesModel()
    path = path.at("devices")
    return ClaimSpec(
        tuple(_request(model, path.at(f"requests[{at}]")) for at, model in enumerate(devices.requests or ())),
        tuple(
            DeviceConstraint(
                model.distinct_attribute if model.match_attribute is None else model.match_attribute,
                # The API server requires exactly one of the two attributes.
                distinct=model.match_attribute is None,
                requests=frozenset(model.requests or ()),
            )
            for model in devices.constraints or ()
        ),
        tuple(
            ClaimConfig(_opaque(model.opaque, path.at("config")), tuple(model.requests or ()))
            for model in devices.config or ()
        ),
    )


def _request(model: RequestModel, path: FieldPath) -> DeviceRequest:
    if model.first_available:
        alternatives = tuple(
            _demand(each.name or "", each, path.at(f"firstAvailable[{at}]"))
            for at, each in enumerate(model.first_available)
        )
        return DeviceRequest(model.name, alternatives, prioritized=True)
    return DeviceRequest(model.name, (_demand(model.name, model.exactly or DemandModel(), path.at("exactly")),))


def _demand(name: str, model: DemandModel, path: FieldPath) -> DeviceRequirements:
    requests = model.capacity.requests if model.capacity is not None else None
    return DeviceRequirements(
        name=name,
        device_class=model.device_class_name or "",
        selectors=_selectors(model.selectors),
        # The defaults of resource/v1: objects from files have not passed the API server.
        mode=model.allocation_mode or AllocationMode.EXACT_COUNT.value,
        count=1 if model.count is None else model.count,
        admin_access=bool(model.admin_access),
        tolerations=_tolerations(model.tolerations),
        capacity=None
        if requests is None
        else tuple(sorted((key, nano(value, path.at(f"capacity.requests.{key}"))) for key, value in requests.items())),
    )


def _selectors(models: Sequence[SelectorModel] | None) -> tuple[str | None, ...]:
    # `None` is a selector of a kind that 1.36 does not know. Such a request matches no device.
    return tuple(None if model.cel is None else model.cel.expression or "" for model in models or ())


def _tolerations(models: Sequence[DeviceTolerationModel] | None) -> tuple[DeviceToleration, ...]:
    return tuple(
        DeviceToleration(
            # the default of the API
            model.key or "",
            model.operator or "Equal",
            model.value or "",
            model.effect or "",
            model.toleration_seconds,
        )
        for model in models or ()
    )


def _opaque(model: OpaqueModel | None, path: FieldPath) -> OpaqueConfig | None:
    if model is None:
        return None
    if is_nested_deeper(model.parameters, DEEPEST):
        raise path.error(f"the parameters for {model.driver} are nested more than {DEEPEST} levels deep")
    try:
        # Kept as text: it is only compared and written back.
        return OpaqueConfig(model.driver, orjson.dumps(model.parameters or {}).decode())
    except TypeError as error:  # an integer beyond 64 bits
        raise path.error(f"the parameters for {model.driver} cannot be passed on: {error}") from None


def _allocation(model: AllocationModel | None, path: FieldPath, problems: Problems) -> Allocation | None:
    """Return the allocation. A malformed configuration does not hide the devices, which are in use in any case."""
    if model is None:
        return None
    devices = model.devices or AllocatedDevicesModel()
    return Allocation(
        # Results are parsed outside of `collect`: without them the devices in use are unknown, and the whole allocation
        # counts as malformed.
        tuple(_result(each, path) for each in devices.results or ()),
        problems.collect(lambda: _configs(devices, path.at("devices.config")), ()),
        None if model.node_selector is None else node_terms(model.node_selector, path.at("nodeSelector")),
    )


def _configs(devices: AllocatedDevicesModel, path: FieldPath) -> tuple[AllocatedConfig, ...]:
    return tuple(
        AllocatedConfig(
            ConfigSource.CLASS if each.source == ConfigSource.CLASS.value else ConfigSource.CLAIM,
            tuple(each.requests or ()),
            _opaque(each.opaque, path),
        )
        for each in devices.config or ()
    )


def _result(model: ResultModel, path: FieldPath) -> DeviceResult:
    consumed = {name: nano(value, path.at(name)) for name, value in (model.consumed_capacity or {}).items()}
    return DeviceResult(
        model.request,
        DeviceId(model.driver, model.pool, model.device),
        bool(model.admin_access),
        _tolerations(model.tolerations),
        model.share_id or "",
        tuple(sorted(consumed.items())),
        tuple(model.binding_conditions or ()),
        tuple(model.binding_failure_conditions or ()),
    )


_Json = dict[str, Any]
KIND: Final = "ResourceClaimTemplate"


class ClaimTemplate(ValueObject):
    """A ResourceClaimTemplate. ``claim`` is the body of the claims that are created from it."""

    namespace: str
    name: str
    claim: Mapping[str, Any]

    def claim_of(self, metadata: Mapping[str, Any], entry: str, kind: str = "Pod") -> _Json:
        """
        Return the claim that the controller would create for an entry of a pod or PodGroup (resourceclaim controller, ``handleClaim``).

        ``metadata`` are those of the owner, and ``kind`` is its kind.
        """
        name = str(metadata.get("name"))
        version = "v1" if kind == "Pod" else "scheduling.k8s.io/v1beta1"
        owner = {"apiVersion": version, "kind": kind, "name": name, "uid": metadata["uid"], "controller": True}
        theirs = self.claim.get("metadata")
        # The claim gets the labels and annotations of the template. The controller sets name, namespace and owner.
        own = {
            **(theirs if isinstance(theirs, Mapping) else {}),
            "name": f"{name}-{entry}",  # readable instead of generated: the claim exists only in the simulation
            "namespace": metadata["namespace"],
            "uid": f"{metadata['uid']}-{entry}",
            "ownerReferences": [owner],
        }
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": own,
            "spec": self.claim.get("spec") or {},
        }


def parse_claim_template(obj: Mapping[str, Any]) -> ClaimTemplate:
    """
    Parse a ResourceClaimTemplate. Raises ``WireError`` for an object without a name.

    A malformed template is reported for the claims that are created from it.
    """
    top = head(obj, KIND, Problems())
    spec = top.body.get("spec")
    return ClaimTemplate(top.namespace, top.name, spec if isinstance(spec, Mapping) else {})


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
