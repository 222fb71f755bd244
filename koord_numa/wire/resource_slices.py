"""Parse ResourceSlices and DeviceTaintRules. A malformed slice still counts as a slice of its pool, but has no devices."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from koord_numa.core.cel import EMPTY_MAP, NANO, CelDevice, MapValue, Semver, Unreadable, parse_semver
from koord_numa.core.cel import Quantity as CelQuantity
from koord_numa.core.claims import (
    NOWHERE,
    Attribute,
    Capacity,
    CapacityPolicy,
    CapacityRange,
    Device,
    DeviceTaintRule,
    NodeAllocatable,
    NodeChoice,
    ResourceSlice,
)
from koord_numa.core.objects.claims import DeviceId, DeviceTaint, PoolId
from koord_numa.core.objects.constraints import NodeTerm
from koord_numa.core.resources import parse_quantity
from koord_numa.core.value_objects import ValueObject
from koord_numa.wire.errors import FieldPath, quoted
from koord_numa.wire.parsing import Int64, Problems, Quantity, Strict, head, read
from koord_numa.wire.workloads import NodeSelectorModel, node_terms


class CounterModel(Strict):
    """An amount of a counter."""

    value: Quantity


class CounterSetModel(Strict):
    """A named set of counters."""

    name: str
    counters: dict[str, CounterModel] | None = None


class ConsumptionModel(Strict):
    """The consumption of a device from a counter set."""

    counter_set: str
    counters: dict[str, CounterModel] | None = None


class RangeModel(Strict):
    """Bounds of requests."""

    min: Quantity | None = None
    max: Quantity | None = None
    step: Quantity | None = None


class PolicyModel(Strict):
    """The rounding of requests for a capacity."""

    default: Quantity | None = None
    valid_values: list[Quantity] | None = None
    valid_range: RangeModel | None = None


class CapacityModel(Strict):
    """A capacity of a device."""

    value: Quantity
    request_policy: PolicyModel | None = None


class DeviceTaintModel(Strict, kw_only=True):
    """A taint of a device."""

    key: str
    value: str | None = None
    effect: str


class NodeAllocatableMappingModel(Strict):
    """The amount of a node resource that a device provides."""

    capacity_key: str | None = None
    capacity_multiplier: Quantity | None = None
    device_multiplier: Quantity | None = None


class NodeAllocatableOverheadModel(Strict):
    """The overhead of a node resource that the use of a device adds."""

    per_pod: Quantity | None = None
    per_container: Quantity | None = None


class NodeAllocatableModel(Strict):
    """The effect of a device on a node resource (KEP-5517)."""

    mapping: NodeAllocatableMappingModel | None = None
    overhead: NodeAllocatableOverheadModel | None = None


class SliceDeviceModel(Strict):
    """A device. Its attributes are objects with one field, whose name is the type."""

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
    """The pool of the slice, with the number of slices in this generation of the pool."""

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
    devices: list[SliceDeviceModel] | None = None
    shared_counters: list[CounterSetModel] | None = None


MOST_DEVICES: Final = 128
"""Maximum devices of a slice (resource/v1 ``ResourceSliceMaxDevices``)."""


class SliceFacts(ValueObject):
    """The name and the content of a ResourceSlice. ``parts`` is ``None`` if even the pool is unknown."""

    name: str
    parts: ResourceSlice | None
    problem: str = ""


def parse_resource_slice(obj: Mapping[str, Any]) -> SliceFacts:
    """
    Parse a ResourceSlice. Raises ``WireError`` only for an object without a name.

    A slice that cannot be read completely has no devices: no device is allocated from a partly unreadable pool.
    """
    problems = Problems()
    top = head(obj, "ResourceSlice", problems)
    path = top.path.at("spec")
    raw = top.body.get("spec")
    model = problems.collect(lambda: read(SliceSpec, raw or {}, path), None)
    if model is None:
        frame = _frame(raw)
        parts = None if frame is None else ResourceSlice(top.name, *frame, problem=problems.problem)
        return SliceFacts(top.name, parts, problems.problem)
    pool = PoolId(model.driver, model.pool.name)
    counts = (model.pool.generation, model.pool.resource_slice_count)
    whole = problems.collect(lambda: _slice(top.name, pool, model, path), None)
    if whole is None:
        nodes = problems.collect(lambda: _nodes(model, path), NodeChoice(everywhere=True))
        whole = ResourceSlice(top.name, pool, *counts, nodes, problem=problems.problem)
    return SliceFacts(top.name, whole, problems.problem)


def _frame(raw: object) -> tuple[PoolId, int, int, NodeChoice] | None:
    """Return pool, generation, slice count and nodes of a malformed slice, so that only its own pool becomes unusable."""
    if not isinstance(raw, dict) or not isinstance(raw.get("pool"), dict):
        return None
    driver, name, generation = raw.get("driver"), raw["pool"].get("name"), raw["pool"].get("generation", 0)
    count, node = raw["pool"].get("resourceSliceCount", 1), raw.get("nodeName")
    if (
        not isinstance(driver, str)
        or not isinstance(name, str)
        or type(generation) is not int
        or type(count) is not int
    ):
        return None
    nodes = NodeChoice(name=node) if isinstance(node, str) and node else NodeChoice(everywhere=True)
    return PoolId(driver, name), generation, count, nodes


def _slice(name: str, pool: PoolId, model: SliceSpec, path: FieldPath) -> ResourceSlice:
    devices = model.devices or []
    if len(devices) > MOST_DEVICES:
        raise path.at("devices").error(f"{len(devices)} devices are too many, at most {MOST_DEVICES} are allowed")
    return ResourceSlice(
        name,
        pool,
        model.pool.generation,
        model.pool.resource_slice_count,
        _nodes(model, path),
        bool(model.per_device_node_selection),
        tuple(_device(pool, device, path.at(f"devices[{at}]")) for at, device in enumerate(devices)),
        tuple((each.name, _amounts(each.counters, path.at("sharedCounters"))) for each in model.shared_counters or ()),
    )


def _nodes(model: SliceSpec | SliceDeviceModel, path: FieldPath) -> NodeChoice:
    if model.node_name:
        return NodeChoice(name=model.node_name)
    if model.all_nodes:
        return NodeChoice(everywhere=True)
    if model.node_selector is None:
        return NOWHERE
    return NodeChoice(term=_single_term(node_terms(model.node_selector, path.at("nodeSelector")), path))


def _single_term(terms: tuple[NodeTerm, ...], path: FieldPath) -> NodeTerm:
    if len(terms) != 1:
        raise path.at("nodeSelector").error(f"{len(terms)} terms instead of one")
    return terms[0]


def _device(pool: PoolId, model: SliceDeviceModel, path: FieldPath) -> Device:
    attributes = {name: _attribute(name, value, path) for name, value in (model.attributes or {}).items()}
    capacity = {name: _capacity(each, path.at(f"capacity.{name}")) for name, each in (model.capacity or {}).items()}
    return Device(
        id=DeviceId(*pool, model.name),
        attributes=attributes,
        cel=_cel(pool.driver, bool(model.allow_multiple_allocations), attributes, capacity),
        capacity=capacity,
        consumes=tuple(
            (each.counter_set, _amounts(each.counters, path.at("consumesCounters")))
            for each in model.consumes_counters or ()
        ),
        taints=tuple(DeviceTaint(taint.key, taint.value or "", taint.effect) for taint in model.taints or ()),
        nodes=_nodes(model, path),
        shared=bool(model.allow_multiple_allocations),
        binds_to_node=bool(model.binds_to_node),
        binding_conditions=tuple(model.binding_conditions or ()),
        binding_failure_conditions=tuple(model.binding_failure_conditions or ()),
        allocatable=tuple(
            _allocatable(name, each, path.at(f"nodeAllocatableResources.{name}"))
            for name, each in sorted((model.node_allocatable_resources or {}).items())
        ),
    )


def _allocatable(resource: str, model: NodeAllocatableModel, path: FieldPath) -> NodeAllocatable:
    mapping, overhead = model.mapping, model.overhead or NodeAllocatableOverheadModel()
    key, multiplier = "", None
    if mapping is not None and mapping.capacity_key:
        key = mapping.capacity_key
        multiplier = NANO if mapping.capacity_multiplier is None else nano(mapping.capacity_multiplier, path)
    elif mapping is not None:
        multiplier = _optional(mapping.device_multiplier, path)
    per_pod, per_container = _optional(overhead.per_pod, path), _optional(overhead.per_container, path)
    return NodeAllocatable(resource, key, multiplier, per_pod, per_container)


_KINDS: Final[Mapping[str, type]] = {"int": int, "bool": bool, "string": str, "version": str}
_LISTS: Final[Mapping[str, str]] = {f"{kind}s": kind for kind in _KINDS}
_UNKNOWN: Final = Attribute("", ())


def _attribute(name: str, value: Mapping[str, Any], path: FieldPath) -> Attribute:
    """Parse an attribute. A value field of unknown type gives an unknown kind, which affects only the users of the attribute."""
    given = [(kind, item) for kind, item in value.items() if item is not None]
    if len(given) > 1:
        raise path.at(f"attributes.{name}").error(f"{quoted(dict(value))} has several values")
    field, item = given[0] if given else ("", None)
    kind = _LISTS.get(field, field)
    if kind not in _KINDS:
        return _UNKNOWN
    values = (item,) if field == kind else tuple(item) if isinstance(item, list) else None
    if values is None or any(type(each) is not _KINDS[kind] for each in values):
        raise path.at(f"attributes.{name}.{field}").error(f"{quoted(item)} is not a valid {field}")
    return Attribute(kind, values, listed=field != kind)


def _capacity(model: CapacityModel, path: FieldPath) -> Capacity:
    policy = model.request_policy
    if policy is None:
        return Capacity(nano(model.value, path))
    limits = policy.valid_range
    return Capacity(
        nano(model.value, path),
        CapacityPolicy(
            _optional(policy.default, path),
            tuple(nano(value, path) for value in policy.valid_values or ()),
            CapacityRange(_optional(limits.min, path) or 0, _optional(limits.max, path), _optional(limits.step, path))
            if limits is not None
            else None,
        ),
    )


def _amounts(counters: Mapping[str, CounterModel] | None, path: FieldPath) -> dict[str, int]:
    return {name: nano(counter.value, path.at(name)) for name, counter in (counters or {}).items()}


def _optional(value: Quantity | None, path: FieldPath) -> int | None:
    return None if value is None else nano(value, path)


def nano(value: Quantity, path: FieldPath) -> int:
    """Return a quantity in units of 10^-9, the finest resolution of Kubernetes."""
    try:
        return _nano(value)
    except ValueError as error:
        raise path.error(str(error)) from None


@lru_cache(maxsize=4096)
def _nano(value: Quantity) -> int:
    return CelQuantity.of(parse_quantity(value)).nano


def _cel(driver: str, shared: bool, attributes: Mapping[str, Attribute], capacity: Mapping[str, Capacity]) -> CelDevice:
    """Return the device as CEL expressions see it. Names without a domain get the driver as domain (cel/compile.go)."""
    values = [(name, _cel_value(name, attribute)) for name, attribute in attributes.items()]
    amounts = [(name, CelQuantity(each.value)) for name, each in capacity.items()]
    return CelDevice(driver, shared, _domains(driver, values), _domains(driver, amounts))


def _domains(driver: str, values: list[tuple[str, Any]]) -> MapValue:
    domains: dict[object, dict[object, object]] = {}
    for name, value in values:
        domain, slash, bare = name.partition("/")
        if slash:
            domains.setdefault(domain, {})[bare] = value
        else:
            domains.setdefault(driver, {})[name] = value
    return MapValue({domain: MapValue(names) for domain, names in domains.items()}, default=EMPTY_MAP)


def _cel_value(name: str, attribute: Attribute) -> object:
    values: tuple[object, ...] = attribute.values
    if not attribute.kind:
        return Unreadable(f"attribute {name}: unsupported attribute value")
    if attribute.kind == "version":
        try:
            values = tuple(_version(str(value)) for value in values)
        except ValueError as error:
            return Unreadable(f"attribute {name}: parse semantic version: {error}")
    return values if attribute.listed else values[0]


@lru_cache(maxsize=1024)
def _version(text: str) -> Semver:
    return parse_semver(text)


class DeviceTaintSelectorModel(Strict):
    """``spec.deviceSelector``."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRuleSpec(Strict, kw_only=True):
    """``spec``."""

    device_selector: DeviceTaintSelectorModel | None = None
    taint: DeviceTaintModel


_SELECTED_BY: Final = frozenset(DeviceTaintSelectorModel.__struct_fields__)


def parse_taint_rule(obj: Mapping[str, Any]) -> DeviceTaintRule:
    """
    Parse a DeviceTaintRule. Raises ``WireError`` if any part cannot be read.

    A selector with an unknown member would taint more devices than intended, so such a rule is an error.
    """
    top = head(obj, "DeviceTaintRule", Problems())
    path = top.path.at("spec")
    raw = top.body.get("spec") or {}
    spec = read(DeviceTaintRuleSpec, raw, path)
    selector = spec.device_selector or DeviceTaintSelectorModel()
    members = {key for key, value in (raw.get("deviceSelector") or {}).items() if value is not None}
    if unknown := sorted(members - _SELECTED_BY):
        raise path.at(f"deviceSelector.{unknown[0]}").error("the selector type is not supported")
    taint = DeviceTaint(spec.taint.key, spec.taint.value or "", spec.taint.effect, rule=top.name)
    return DeviceTaintRule(
        top.name, taint, selector.driver, selector.pool, selector.device, selects=spec.device_selector is not None
    )
