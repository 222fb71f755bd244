"""Parse Koordinator's Device objects and the annotations about devices of pods, and write ``device-allocated``."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, TypeVar

import orjson

from koord_numa.core.cpu_topology import MAX_NUMA_ID
from koord_numa.core.objects.constraints import LabelSelector, Operator
from koord_numa.core.objects.devices import (
    FPGA,
    GPU,
    NO_DEVICE_SPEC,
    RDMA,
    AllocateStrategy,
    DeviceExclusive,
    DeviceGrant,
    DeviceGrants,
    DeviceHint,
    DeviceInventory,
    DeviceSpec,
    DeviceTopology,
    NodeDevice,
    Partition,
    PartitionPolicy,
    Partitions,
    PartitionSpec,
    TopologyScope,
    VirtualFunction,
)
from koord_numa.core.resources import format_amount
from koord_numa.core.value_objects import value_field
from koord_numa.wire import names
from koord_numa.wire.errors import FieldPath, WireError, closest, quoted
from koord_numa.wire.parsing import (
    EnumReader,
    GoJson,
    Head,
    Int64,
    ParsedCache,
    Problems,
    Quantity,
    Strict,
    head,
    load_json,
    read,
    read_as,
    requested,
    supplied,
    version,
)
from koord_numa.wire.workloads import LabelSelectorModel, label_pairs, label_selector

T = TypeVar("T")

MOST_DEVICES: Final = 256
"""Maximum devices of a node, and of a pod. Machines have at most about 64; each costs about 10 us per new state of a node."""

MOST_FUNCTIONS: Final = 1024
"""Maximum virtual functions of all devices of a node, and partitions in its table."""

LONGEST_ID: Final = 253
"""Maximum characters of an identifier, such as a UUID or a PCI address."""

_MOST_MINOR: Final = 2**31 - 1

KNOWN_TYPES: Final = (GPU, RDMA, FPGA)
"""Device types that pods can request."""


class TopologyModel(Strict):
    """The location of a device. A NUMA node of -1 means that the device belongs to none."""

    socket_id: Int64 = value_field(default=-1, name="socketID")
    node_id: Int64 = value_field(default=-1, name="nodeID")
    pcie_id: str = value_field(default="", name="pcieID")


class FunctionModel(Strict):
    """A virtual function."""

    minor: Int64 = 0
    bus_id: str = value_field(default="", name="busID")


class FunctionGroupModel(Strict):
    """Virtual functions with common labels."""

    labels: dict[str, str] | None = None
    vfs: list[FunctionModel] | None = None


class DeviceModel(Strict):
    """A device. A missing ``health`` is false, because Koordinator's agent omits false."""

    type: str = ""
    id: str = ""
    minor: Int64 = 0
    health: bool = False
    labels: dict[str, str] | None = None
    resources: dict[str, Quantity] | None = None
    topology: TopologyModel | None = None
    vf_groups: list[FunctionGroupModel] | None = None


class DeviceListModel(Strict):
    """The spec of a Device object."""

    devices: list[DeviceModel] | None = None


class DeviceObjectModel(Strict):
    """The part of a Device object that is read. Its status is not."""

    spec: DeviceListModel = DeviceListModel()


class PartitionModel(GoJson):
    """An entry of the partition table."""

    minors: list[Int64] = value_field(default_factory=list)
    ring_bus_bandwidth: Quantity | None = None
    allocation_score: Int64 = 0


_TABLE: Final = dict[str, list[PartitionModel] | None] | None


def parse_devices(obj: Mapping[str, Any]) -> DeviceInventory:
    """
    Parse a Device object. ``DeviceInventory.problem`` names malformed parts, and such an object is not used.

    Raises ``WireError`` only if the object has no name.
    """
    problems = Problems()
    top = head(obj, names.DEVICE_KIND, problems)
    empty = DeviceInventory(top.name)
    # Not used at all if a part is malformed: another device could be counted in its place.
    found = empty if problems.problem else problems.collect(lambda: _inventory(top), empty)
    owners = top.metadata.owner_references or ()
    injected = top.labels.get(names.MANAGED_BY) != names.MANAGED_BY_KOORD_NUMA
    return DeviceInventory(
        node=top.name,
        devices=found.devices,
        ids=found.ids,
        partitions=found.partitions,
        honors_partitions=top.labels.get(names.GPU_PARTITION_POLICY) == names.HONOR,
        model=top.labels.get(names.GPU_MODEL, ""),
        node_uid=next((owner.uid for owner in owners if owner.kind == "Node"), ""),
        injected=injected,
        held=found.held,
        problem=problems.problem,
        resource_version=version(top),
    )


def _inventory(top: Head) -> DeviceInventory:
    path = top.path.at("spec.devices")
    models = read(DeviceObjectModel, top.body, top.path).spec.devices or []
    _at_most(MOST_DEVICES, len(models), "devices", path)
    functions = sum(len(group.vfs or ()) for model in models for group in model.vf_groups or ())
    _at_most(MOST_FUNCTIONS, functions, "virtual functions", path)
    devices: dict[tuple[str, int], NodeDevice] = {}
    ids: dict[tuple[str, int], str] = {}
    for model in models:
        device = _device(model, path)
        if device.key in devices:
            raise path.error(f"{device.type} {device.minor} is listed twice")
        devices[device.key] = device
        ids[device.key] = _text(model.id, path.at("id"))
    return DeviceInventory(
        node=top.name,
        devices=tuple(devices[key] for key in sorted(devices)),
        ids=ids,
        partitions=_partitions(top.annotations, top.path),
        held=_held(top) if top.labels.get(names.MANAGED_BY) == names.MANAGED_BY_KOORD_NUMA else (),
    )


def _device(model: DeviceModel, path: FieldPath) -> NodeDevice:
    if not model.type:
        raise path.at("type").error("is missing")
    functions = [
        VirtualFunction(_text(function.bus_id, path.at("busID")), function.minor, label_pairs(group.labels))
        for group in model.vf_groups or ()
        for function in group.vfs or ()
    ]
    if len({function.bus_id for function in functions}) < len(functions):
        raise path.error(f"two virtual functions of {quoted(model.type)} {model.minor} have the same busID")
    return NodeDevice(
        type=_text(model.type, path.at("type")),
        minor=_minor(model.minor, path),
        resources=tuple(sorted(supplied(model.resources, path.at("resources")).items())),
        topology=None if model.topology is None else _topology(model.topology, path.at("topology")),
        healthy=model.health,
        labels=label_pairs(model.labels),
        functions=tuple(sorted(functions, key=lambda function: function.bus_id)),
    )


def _topology(model: TopologyModel, path: FieldPath) -> DeviceTopology:
    if model.node_id > MAX_NUMA_ID:
        raise path.at("nodeID").error(f"NUMA node {model.node_id} is above {MAX_NUMA_ID}")
    numa = model.node_id if model.node_id >= 0 else None
    return DeviceTopology(numa, _text(model.pcie_id, path.at("pcieID")), model.socket_id)


def _partitions(annotations: Mapping[str, str], path: FieldPath) -> Partitions | None:
    text = annotations.get(names.GPU_PARTITIONS)
    if not text:
        return None
    path = path.annotation(names.GPU_PARTITIONS)
    table = read_as(_TABLE, load_json(text, path), path)
    if table is None:
        return None
    _at_most(MOST_FUNCTIONS, sum(len(listed or ()) for listed in table.values()), "partitions", path)
    found: dict[int, tuple[Partition, ...]] = {}
    for size, listed in table.items():
        if not size.isascii() or not size.isdigit() or not 0 < len(size) <= 3:
            raise path.error(f"{quoted(size)} is not a number of GPUs")
        found[int(size)] = tuple(_partition(model, int(size), path.at(size)) for model in listed or ())
    return tuple(sorted(found.items()))


def _partition(model: PartitionModel, size: int, path: FieldPath) -> Partition:
    minors = tuple(sorted({_minor(minor, path) for minor in model.minors}))
    if len(minors) != size or len(model.minors) != size:
        raise path.error(f"a partition lists {len(model.minors)} GPUs")
    bandwidth = model.ring_bus_bandwidth
    if abs(model.allocation_score) > _MOST_MINOR:
        raise path.at("allocationScore").error(f"{model.allocation_score} is out of range")
    return Partition(minors, model.allocation_score, None if bandwidth is None else _bandwidth(bandwidth, path))


def _bandwidth(value: Quantity, path: FieldPath) -> int:
    return requested({"ringBusBandwidth": value}, path)["ringBusBandwidth"]


def _minor(minor: int, path: FieldPath) -> int:
    if not 0 <= minor <= _MOST_MINOR:
        raise path.at("minor").error(f"{quoted(minor)} is not in 0 to {_MOST_MINOR}")
    return minor


def _text(text: str, path: FieldPath) -> str:
    if len(text) > LONGEST_ID:
        raise path.error(f"{quoted(text)} is longer than {LONGEST_ID} characters")
    return text


def _at_most(most: int, count: int, what: str, path: FieldPath) -> None:
    if count > most:
        raise path.error(f"{count} {what} are too many, at most {most} are supported")


class HintModel(GoJson):
    """The conditions on the devices of one type."""

    selector: LabelSelectorModel | None = None
    vf_selector: LabelSelectorModel | None = None
    allocate_strategy: str = ""
    required_topology_scope: str = ""
    exclusive_policy: str = ""


class JointModel(GoJson):
    """``scheduling.koordinator.sh/device-joint-allocate``."""

    device_types: list[str] = value_field(default_factory=list)
    required_scope: str = ""


class PartitionSpecModel(GoJson):
    """``scheduling.koordinator.sh/gpu-partition-spec``."""

    allocate_policy: str = ""
    ring_bus_bandwidth: Quantity | None = None


_STRATEGIES: Final = EnumReader({strategy.value: strategy for strategy in AllocateStrategy})
_SCOPES: Final = EnumReader(
    {
        "": None,
        "Device": TopologyScope.DEVICE,
        "PCIe": TopologyScope.PCIE,
        "NUMANode": TopologyScope.NUMA_NODE,
        "Node": TopologyScope.NODE,
    }
)
_EXCLUSIVES: Final = EnumReader({exclusive.value: exclusive for exclusive in DeviceExclusive})
_JOINT_SCOPES: Final = EnumReader({"": False, "SamePCIe": True})
_POLICIES: Final = EnumReader(
    {policy.value: policy for policy in PartitionPolicy}, also={"": PartitionPolicy.BEST_EFFORT}
)
_TYPES: Final = EnumReader({kind: kind for kind in KNOWN_TYPES})

ANNOTATIONS: Final = (names.DEVICE_ALLOCATE_HINT, names.DEVICE_JOINT_ALLOCATE, names.GPU_PARTITION_SPEC)
"""Annotations of a pod about devices that its request depends on."""

_LONGEST_SHARED: Final = 4096  # characters of annotations that are cached


def device_spec(annotations: Mapping[str, str], path: FieldPath) -> DeviceSpec:
    """Return the demands of a pod on its devices. Raises ``WireError`` for malformed and for unknown members."""
    texts = tuple(annotations.get(name) for name in ANNOTATIONS)
    if texts == _NO_TEXTS:
        return NO_DEVICE_SPEC
    reader = _device_spec if sum(len(text or "") for text in texts) < _LONGEST_SHARED else _device_spec.__wrapped__
    found = reader(*texts)
    if isinstance(found, WireError):
        # Cached without a pod name, which is added here.
        raise WireError(path.subject, found.key, found.message)
    return found


_NO_TEXTS: Final = (None,) * len(ANNOTATIONS)


@lru_cache(maxsize=2048)
def _device_spec(hint: str | None, joint: str | None, partition: str | None) -> DeviceSpec | WireError:
    path = FieldPath("")
    try:
        hints = _hints(hint, path.annotation(names.DEVICE_ALLOCATE_HINT))
        types, same_pcie = _joint(joint, path.annotation(names.DEVICE_JOINT_ALLOCATE))
        return DeviceSpec(
            hints, types, same_pcie, _partition_spec(partition, path.annotation(names.GPU_PARTITION_SPEC))
        )
    except WireError as error:
        return error.with_traceback(None)


def _hints(text: str | None, path: FieldPath) -> tuple[tuple[str, DeviceHint], ...]:
    if text is None:
        return ()
    document = load_json(text, path)
    if document is None:
        return ()
    if not isinstance(document, dict):
        raise path.error(f"{quoted(document)} is not an object")
    _at_most(len(KNOWN_TYPES), len(document), "device types", path)
    found = []
    for kind, value in document.items():
        place = path.at(kind)
        name = _TYPES.read(kind, path)
        model = _known(HintModel, value, place)
        found.append(
            (
                name,
                DeviceHint(
                    selector=_selector(model.selector, place.at("selector")),
                    function_selector=_selector(model.vf_selector, place.at("vfSelector")),
                    strategy=_STRATEGIES.read(model.allocate_strategy, place.at("allocateStrategy")),
                    scope=_SCOPES.read(model.required_topology_scope, place.at("requiredTopologyScope")),
                    exclusive=_EXCLUSIVES.read(model.exclusive_policy, place.at("exclusivePolicy")),
                ),
            )
        )
    return tuple(sorted(found, key=lambda item: item[0]))


def _selector(model: LabelSelectorModel | None, path: FieldPath) -> LabelSelector | None:
    selector = label_selector(model, path)
    for need in () if selector is None else selector.requirements:
        if need.operator in (Operator.GT, Operator.LT):
            raise path.at(need.key).error(f"{need.operator.value} is not an operator of a label selector")
    return selector


def _joint(text: str | None, path: FieldPath) -> tuple[tuple[str, ...], bool]:
    if text is None:
        return (), False
    model = _known(JointModel, load_json(text, path), path)
    _at_most(len(KNOWN_TYPES), len(model.device_types), "device types", path)
    types = tuple(dict.fromkeys(_TYPES.read(kind, path.at("deviceTypes")) for kind in model.device_types))
    return types, _JOINT_SCOPES.read(model.required_scope, path.at("requiredScope"))


def _partition_spec(text: str | None, path: FieldPath) -> PartitionSpec | None:
    if text is None:
        return None
    model = _known(PartitionSpecModel, load_json(text, path), path)
    bandwidth = model.ring_bus_bandwidth
    policy = _POLICIES.read(model.allocate_policy, path.at("allocatePolicy"))
    return PartitionSpec(policy, None if bandwidth is None else _bandwidth(bandwidth, path))


Model = TypeVar("Model", bound=GoJson)


def _known(model: type[Model], value: object, path: FieldPath) -> Model:
    """Parse a part of an annotation. A member that the model does not have is an error: a demand is not ignored."""
    if unknown := model.unknown_names(value):
        accepted = model.accepted_names()
        meant = closest(unknown[0], accepted)
        hint = f", did you mean {meant}?" if meant else ""
        raise path.at(unknown[0]).error(f"is unknown{hint} (accepted: {', '.join(accepted)})")
    return read(model, value, path)


class HeldFunctionModel(GoJson):
    """A virtual function that a pod holds."""

    minor: Int64 = 0
    bus_id: str = value_field(default="", name="busID")


class ExtensionModel(GoJson):
    """Further parts of a held device."""

    vfs: list[HeldFunctionModel] = value_field(default_factory=list)


class GrantModel(GoJson):
    """A device that a pod holds a part of."""

    minor: Int64 = 0
    id: str = ""
    resources: dict[str, Quantity] = value_field(default_factory=dict)
    extension: ExtensionModel = ExtensionModel()


_Listed = dict[str, list[GrantModel | None] | None]

_GRANTS: Final = _Listed | None

_KNOWN_GRANTS: Final[ParsedCache[str, DeviceGrants]] = ParsedCache(4 << 20)
"""Parsed annotations by the text of the annotation, which every status update of a pod repeats."""


def device_grants(text: str, path: FieldPath) -> DeviceGrants:
    """Return the devices that the bound pod at ``path`` holds by its ``device-allocated``. Raises ``WireError``."""
    known = _KNOWN_GRANTS.get(text)
    # Malformed texts are parsed each time: the error names the pod.
    if known is None:
        known = _KNOWN_GRANTS.put(text, _grants(text, path.annotation(names.DEVICE_ALLOCATED)), len(text))
    return known


def _grants(text: str, path: FieldPath) -> DeviceGrants:
    value = load_json(text, path)
    # Counted before validation, which reports every malformed entry: 0.4 s for 30,000 entries.
    if isinstance(value, dict):
        _at_most(MOST_DEVICES, sum(len(it) for it in value.values() if isinstance(it, list)), "devices", path)
    listed = read_as(_GRANTS, value, path)
    return _grants_of(listed or {}, path)


def _grants_of(listed: _Listed, path: FieldPath) -> DeviceGrants:
    _at_most(MOST_DEVICES, sum(len(models or ()) for models in listed.values()), "devices", path)
    found = [
        DeviceGrant(
            type=_text(kind, path),
            minor=_minor(model.minor, path.at(kind)),
            resources=requested(model.resources, path.at(kind)),
            functions=tuple(VirtualFunction(_text(it.bus_id, path), it.minor) for it in model.extension.vfs),
            id=_text(model.id, path.at(kind)),
        )
        for kind, models in listed.items()
        for model in models or ()
        if model is not None
    ]
    return tuple(sorted(found, key=lambda grant: grant.key))


_HELD: Final = dict[str, _Listed | None] | None


def _held(top: Head) -> tuple[tuple[str, DeviceGrants], ...]:
    """Return the devices that pods hold by their kubelet, as the node agent writes them."""
    text = top.annotations.get(names.HELD_DEVICES)
    if not text:
        return ()
    path = top.path.annotation(names.HELD_DEVICES)
    pods = read_as(_HELD, load_json(text, path), path) or {}
    _at_most(MOST_DEVICES, len(pods), "pods", path)
    return tuple((_text(pod, path), _grants_of(listed or {}, path)) for pod, listed in sorted(pods.items()))


def device_allocated(grants: DeviceGrants) -> str:
    """Return the JSON of ``device-allocated``. Amounts and identifiers are written as Koordinator writes them."""
    found: dict[str, list[dict[str, Any]]] = {}
    for grant in grants:
        amounts = {name: format_amount(name, amount) for name, amount in sorted(grant.resources.items())}
        entry: dict[str, Any] = {"minor": grant.minor, "resources": amounts}
        if grant.id:
            entry["id"] = grant.id
        if grant.functions:
            entry["extension"] = {"vfs": [{"minor": it.minor, "busID": it.bus_id} for it in grant.functions]}
        found.setdefault(grant.type, []).append(entry)
    return orjson.dumps(found).decode()
