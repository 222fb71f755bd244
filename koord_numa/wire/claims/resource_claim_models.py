"""The fields of ResourceClaims and DeviceClasses that are read, as resource/v1 spells them."""

from typing import Any

from pydantic import Field

from koord_numa.wire.parsing import Int64, Quantity, Strict
from koord_numa.wire.selectors import NodeSelectorModel


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
