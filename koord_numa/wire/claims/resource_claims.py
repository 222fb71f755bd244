"""ResourceClaims and DeviceClasses: from API objects to what the allocator decides on, and allocations back to API objects."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
from pydantic import Field

from koord_numa.core.claims.objects.claim import (
    AllocationMode,
    ClaimConfig,
    ClaimSpec,
    DeviceClass,
    DeviceConstraint,
    DeviceDemand,
    DeviceRequest,
    DeviceToleration,
    OpaqueConfig,
)
from koord_numa.core.claims.objects.resource_claim import ResourceClaim
from koord_numa.core.claims.search.allocation import AllocatedConfig, Allocation, ConfigSource, DeviceResult
from koord_numa.core.claims.search.inventory import DeviceId
from koord_numa.core.objects.constraints import NodeTerm, Requirement
from koord_numa.wire.claims.resource_slices import nano, quantity_text
from koord_numa.wire.errors import FieldPath
from koord_numa.wire.metadata import head
from koord_numa.wire.parsing import Int64, Problems, Quantity, Strict, read
from koord_numa.wire.selectors import NodeSelectorModel, node_terms

FINALIZER: Final = "resource.kubernetes.io/delete-protection"
"""Keeps an allocated claim until it is deallocated (resource/v1 ``Finalizer``)."""


class CelModel(Strict):
    """A CEL selector."""

    expression: str | None = None


class SelectorModel(Strict):
    """A selector; kinds other than CEL are unknown to 1.36."""

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
    """``exactly``, or one alternative of ``firstAvailable``."""

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
    """Configuration that only a driver understands."""

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
    """One allocated device."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    tolerations: list[DeviceTolerationModel] | None = None
    share_id: str | None = Field(None, alias="shareID")
    consumed_capacity: dict[str, Quantity] | None = None
    binding_conditions: list[str] | None = None
    binding_failure_conditions: list[str] | None = None


class AllocatedDevicesModel(Strict):
    """Devices of an allocation with their configuration."""

    results: list[ResultModel] | None = None
    config: list[ConfigModel] | None = None


class AllocationModel(Strict):
    """``status.allocation``."""

    devices: AllocatedDevicesModel | None = None
    node_selector: NodeSelectorModel | None = None


class ConsumerModel(Strict):
    """Who may use a claim."""

    api_group: str | None = None
    resource: str = ""
    name: str = ""
    uid: str = ""


class ConditionModel(Strict):
    """A condition of an allocated device."""

    type: str
    status: str


class DeviceStatusModel(Strict):
    """What a driver says about an allocated device."""

    driver: str
    pool: str
    device: str
    share_id: str | None = Field(None, alias="shareID")
    conditions: list[ConditionModel] | None = None


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


def parse_resource_claim(obj: Mapping[str, Any]) -> ResourceClaim:
    """A ResourceClaim; ``problem`` says what is malformed. Raises ``WireError`` only when it has no name."""
    problems = Problems()
    top = head(obj, "ResourceClaim", problems)
    path = top.path.at("spec")
    spec = problems.collect(lambda: parse_claim_spec(top.body.get("spec") or {}, path), ClaimSpec())
    status_path = top.path.at("status")
    status = problems.collect(
        lambda: read(ClaimStatusModel, top.body.get("status") or {}, status_path), ClaimStatusModel()
    )
    allocation = problems.collect(lambda: _allocation(status.allocation, status_path.at("allocation")), None)
    finalizers = top.body["metadata"].get("finalizers") or ()
    return ResourceClaim(
        namespace=top.namespace or "default",
        name=top.name,
        uid=top.uid,
        version=top.metadata.resource_version or "",
        spec=spec,
        allocation=allocation,
        reserved_for=tuple(it.uid for it in status.reserved_for or () if it.resource == "pods" and not it.api_group),
        other_consumers=sum(it.resource != "pods" or bool(it.api_group) for it in status.reserved_for or ()),
        owner=top.metadata.controller,
        deleting=top.metadata.deletion_timestamp is not None,
        protected=FINALIZER in finalizers,
        conditions=frozenset(
            (DeviceId(it.driver, it.pool, it.device), condition.type)
            for it in status.devices or ()
            for condition in it.conditions or ()
            if condition.status == "True"
        ),
        problem=problems.problem,
    )


def parse_device_class(obj: Mapping[str, Any]) -> DeviceClass:
    """A DeviceClass; a malformed one names its problem. Raises ``WireError`` only when it has no name."""
    problems = Problems()
    top = head(obj, "DeviceClass", problems)
    spec = problems.collect(
        lambda: read(ClassSpecModel, top.body.get("spec") or {}, top.path.at("spec")), ClassSpecModel()
    )
    return DeviceClass(
        top.name,
        _selectors(spec.selectors),
        tuple(_opaque(config.opaque) for config in spec.config or ()),
        spec.extended_resource_name or "",
        problems.problem,
    )


def parse_claim_spec(raw: object, path: FieldPath) -> ClaimSpec:
    """``spec`` of a claim or of a template."""
    devices = read(ClaimSpecModel, raw, path).devices or DevicesModel()
    path = path.at("devices")
    return ClaimSpec(
        tuple(_request(model, path.at(f"requests[{at}]")) for at, model in enumerate(devices.requests or ())),
        tuple(
            DeviceConstraint(
                model.match_attribute or model.distinct_attribute or "",
                distinct=not model.match_attribute,
                requests=frozenset(model.requests or ()),
            )
            for model in devices.constraints or ()
        ),
        tuple(ClaimConfig(_opaque(model.opaque), tuple(model.requests or ())) for model in devices.config or ()),
    )


def _request(model: RequestModel, path: FieldPath) -> DeviceRequest:
    if model.first_available:
        alternatives = tuple(
            _demand(each.name or "", each, path.at(f"firstAvailable[{at}]"))
            for at, each in enumerate(model.first_available)
        )
        return DeviceRequest(model.name, alternatives, prioritized=True)
    return DeviceRequest(model.name, (_demand(model.name, model.exactly or DemandModel(), path.at("exactly")),))


def _demand(name: str, model: DemandModel, path: FieldPath) -> DeviceDemand:
    requests = model.capacity.requests if model.capacity is not None else None
    return DeviceDemand(
        name=name,
        device_class=model.device_class_name or "",
        selectors=_selectors(model.selectors),
        mode=model.allocation_mode or AllocationMode.EXACT_COUNT.value,
        count=1 if model.count is None else model.count,
        admin_access=bool(model.admin_access),
        tolerations=_tolerations(model.tolerations),
        capacity=None
        if requests is None
        else tuple(sorted((key, nano(value, path.at(f"capacity.requests.{key}"))) for key, value in requests.items())),
    )


def _selectors(models: Sequence[SelectorModel] | None) -> tuple[str | None, ...]:
    return tuple(None if model.cel is None else model.cel.expression or "" for model in models or ())


def _tolerations(models: Sequence[DeviceTolerationModel] | None) -> tuple[DeviceToleration, ...]:
    return tuple(
        DeviceToleration(
            model.key or "", model.operator or "Equal", model.value or "", model.effect or "", model.toleration_seconds
        )
        for model in models or ()
    )


def _opaque(model: OpaqueModel | None) -> OpaqueConfig | None:
    if model is None:
        return None
    return OpaqueConfig(model.driver, orjson.dumps(model.parameters or {}).decode())


def _allocation(model: AllocationModel | None, path: FieldPath) -> Allocation | None:
    if model is None:
        return None
    devices = model.devices or AllocatedDevicesModel()
    return Allocation(
        tuple(_result(each, path) for each in devices.results or ()),
        tuple(
            AllocatedConfig(
                ConfigSource.CLASS if each.source == ConfigSource.CLASS.value else ConfigSource.CLAIM,
                tuple(each.requests or ()),
                _opaque(each.opaque),
            )
            for each in devices.config or ()
        ),
        None if model.node_selector is None else node_terms(model.node_selector, path.at("nodeSelector")),
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


def allocation_json(allocation: Allocation) -> dict[str, Any]:
    """``status.allocation`` as it is written, without its time stamp."""
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
        "consumedCapacity": {name: quantity_text(amount) for name, amount in result.consumed},
        "bindingConditions": list(result.binding_conditions),
        "bindingFailureConditions": list(result.binding_failure_conditions),
    }
    written: dict[str, Any] = {"request": result.request, "driver": driver, "pool": pool, "device": device}
    return written | {name: value for name, value in optional.items() if value}


def _toleration_json(toleration: DeviceToleration) -> dict[str, Any]:
    written: dict[str, Any] = {
        "key": toleration.key,
        "operator": toleration.operator,
        "value": toleration.value,
        "effect": toleration.effect,
    }
    written = {name: value for name, value in written.items() if value}
    return written if toleration.seconds is None else written | {"tolerationSeconds": toleration.seconds}


def _config_json(config: AllocatedConfig) -> dict[str, Any]:
    written: dict[str, Any] = {"source": config.source.value}
    if config.requests:
        written["requests"] = list(config.requests)
    if config.opaque is not None:
        written["opaque"] = {"driver": config.opaque.driver, "parameters": orjson.loads(config.opaque.parameters)}
    return written


def _term_json(term: NodeTerm) -> dict[str, Any]:
    written = {"matchExpressions": _requirements_json(term.labels), "matchFields": _requirements_json(term.fields)}
    return {name: value for name, value in written.items() if value}


def _requirements_json(requirements: Sequence[Requirement]) -> list[dict[str, Any]]:
    return [
        {"key": it.key, "operator": it.operator.value} | ({"values": list(it.values)} if it.values else {})
        for it in requirements
    ]
