"""The fields of ResourceSlices that are read, as resource/v1 spells them."""

from typing import Any

from koord_numa.wire.parsing import Int64, Quantity, Strict
from koord_numa.wire.selectors import NodeSelectorModel


class CounterModel(Strict):
    """An amount of a counter."""

    value: Quantity


class CounterSetModel(Strict):
    """A named set of counters."""

    name: str
    counters: dict[str, CounterModel] | None = None


class ConsumptionModel(Strict):
    """What a device takes of a counter set."""

    counter_set: str
    counters: dict[str, CounterModel] | None = None


class RangeModel(Strict):
    """Bounds of requests."""

    min: Quantity | None = None
    max: Quantity | None = None
    step: Quantity | None = None


class PolicyModel(Strict):
    """How requests of a capacity are rounded."""

    default: Quantity | None = None
    valid_values: list[Quantity] | None = None
    valid_range: RangeModel | None = None


class CapacityModel(Strict):
    """A capacity of a device."""

    value: Quantity
    request_policy: PolicyModel | None = None


class DeviceTaintModel(Strict):
    """A taint of a device."""

    key: str
    value: str | None = None
    effect: str


class NodeAllocatableMappingModel(Strict):
    """What a device is worth of a resource of the node."""

    capacity_key: str | None = None
    capacity_multiplier: Quantity | None = None
    device_multiplier: Quantity | None = None


class NodeAllocatableOverheadModel(Strict):
    """What the use of a device takes of a resource of the node."""

    per_pod: Quantity | None = None
    per_container: Quantity | None = None


class NodeAllocatableModel(Strict):
    """What a device takes of a resource of the node (KEP-5517)."""

    mapping: NodeAllocatableMappingModel | None = None
    overhead: NodeAllocatableOverheadModel | None = None


class DeviceModel(Strict):
    """A device; its attributes are one-field objects whose field names the type."""

    name: str
    attributes: dict[str, dict[str, Any]] | None = None
    capacity: dict[str, CapacityModel] | None = None
    consumes_counters: list[ConsumptionModel] | None = None
    taints: list[DeviceTaintModel] | None = None
    node_name: str | None = None
    node_selector: NodeSelectorModel | None = None
    all_nodes: bool | None = None
    allow_multiple_allocations: bool | None = None
    binds_to_node: bool | None = None
    binding_conditions: list[str] | None = None
    binding_failure_conditions: list[str] | None = None
    node_allocatable_resources: dict[str, NodeAllocatableModel] | None = None


class PoolModel(Strict):
    """Which pool the slice belongs to, and how many slices that has in this generation."""

    name: str
    generation: Int64 = 0
    resource_slice_count: Int64 = 1


class SliceSpec(Strict):
    """A slice."""

    driver: str
    pool: PoolModel
    node_name: str | None = None
    node_selector: NodeSelectorModel | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: list[DeviceModel] | None = None
    shared_counters: list[CounterSetModel] | None = None
