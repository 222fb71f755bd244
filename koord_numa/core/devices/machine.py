"""
Device requests of a pod in normal form, the devices of a machine, and which part of them is free.

Sets of devices are bits by their position in ``DeviceMachine.devices``. Free is total minus held, at least 0. An unhealthy
device has nothing free. A device that vanished from the Device object is not allocated, and its holders keep it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final

from koord_numa.core.cpuset import members
from koord_numa.core.objects.devices import (
    FPGA,
    GPU,
    NO_HINT,
    RDMA,
    AllocateStrategy,
    DeviceExclusive,
    DeviceGrants,
    DeviceHint,
    DeviceInventory,
    DeviceKey,
    DeviceSpec,
    NodeDevice,
    Partition,
    Partitions,
    PartitionSpec,
)
from koord_numa.core.objects.request import PodRequest, once_per_request
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import ResourceList
from koord_numa.core.state.ledger import Holding, Ledger
from koord_numa.core.value_objects import ValueObject, set_worked_out, value_field

# Normal form of a pod's device requests.
#
# As `GetPodDeviceRequests` and `calcDesiredRequestsAndCountForGPU` of Koordinator's deviceshare plugin: every spelling of a
# request becomes, by device type, the amounts on each device and the number of devices. Amounts that do not divide evenly
# are rounded up.

CORE: Final = "koordinator.sh/gpu-core"
MEMORY: Final = "koordinator.sh/gpu-memory"
RATIO: Final = "koordinator.sh/gpu-memory-ratio"
SHARED: Final = "koordinator.sh/gpu.shared"
PERCENT_OF_GPU: Final = "koordinator.sh/gpu"
RDMA_SHARE: Final = "koordinator.sh/rdma"
FPGA_SHARE: Final = "koordinator.sh/fpga"
NPU_CORE: Final = "huawei.com/npu-core"
NPU_CPU: Final = "huawei.com/npu-cpu"
NPU_DVPP: Final = "huawei.com/npu-dvpp"
WHOLE_GPUS: Final = frozenset({"nvidia.com/gpu", "amd.com/gpu", "dcu.com/gpu"})
FULL: Final = 100
"""Percentage of a whole device."""

_GPU_NAMES: Final = WHOLE_GPUS | {PERCENT_OF_GPU, SHARED, CORE, MEMORY, RATIO, NPU_CORE, NPU_CPU, NPU_DVPP}

TYPE_OF: Final[Mapping[str, str]] = {**dict.fromkeys(_GPU_NAMES, GPU), RDMA_SHARE: RDMA, FPGA_SHARE: FPGA}
"""Device type by resource name."""

_SHAREABLE: Final[Mapping[str, str]] = {RDMA: RDMA_SHARE, FPGA: FPGA_SHARE}

COUNTED_DEVICES: Final[Mapping[str, int]] = {
    **dict.fromkeys(WHOLE_GPUS, 1),
    **dict.fromkeys((PERCENT_OF_GPU, RDMA_SHARE, FPGA_SHARE), FULL),
}
"""Amount of a whole device by resource, for resources that need no other resource."""

NO_TEMPLATE: Final = "no matched GPU shared resource template"


class TypeDemand(ValueObject, gc=False):
    """
    Demand for devices of one type: ``amounts`` of each of ``count`` devices, or of every matching device if ``count`` is 0.

    ``partial``: other pods may use the rest of the device.
    """

    type: str
    amounts: tuple[tuple[str, int], ...]
    count: int
    partial: bool
    hint: DeviceHint = NO_HINT


class DeviceDemand(ValueObject, eq=False):
    """
    All device requests of a pod. Equal demands are one object, so that results are cached by identity.

    ``joint`` has at least two of the requested types, or none. ``spec_matters``: the annotations demand something that
    only a node with a Device object can satisfy.
    """

    types: tuple[TypeDemand, ...]
    joint: tuple[str, ...] = ()
    same_pcie: bool = False
    partition: PartitionSpec | None = None
    names: frozenset[str] = frozenset()  # the requested resources
    spec_matters: bool = False

    def of(self, kind: str) -> TypeDemand:
        """Return the demand for a requested type."""
        return next(each for each in self.types if each.type == kind)


@once_per_request
def device_demand(request: PodRequest) -> DeviceDemand | str | None:
    """Return the device requests of a pod in normal form, the reason why they are invalid, or ``None`` without requests."""
    amounts = {name: amount for name, amount in effective_requests(request).items() if name in TYPE_OF}
    if not amounts:
        return None
    return normal_form(amounts, request.devices)


def normal_form(amounts: ResourceList, spec: DeviceSpec) -> DeviceDemand | str:
    """Return the normal form of these amounts, none of which is 0, or the reason why they are invalid."""
    found = []
    for kind in (GPU, RDMA, FPGA):
        wanted = {name: amount for name, amount in amounts.items() if TYPE_OF[name] == kind}
        if not wanted:
            continue
        if reason := _invalid(wanted):
            return reason
        demand = _gpus(wanted, spec) if kind == GPU else _shares(kind, wanted[_SHAREABLE[kind]], spec.hint(kind))
        if isinstance(demand, str):
            return demand
        found.append(demand)
    # As upstream: types that are not requested, or whose every matching device is requested, are not allocated jointly.
    asked = {each.type for each in found if each.hint.strategy is not AllocateStrategy.APPLY_FOR_ALL}
    joint = tuple(kind for kind in dict.fromkeys(spec.joint) if kind in asked)
    demanding = (
        spec.partition is not None
        or len(joint) > 1
        or any(
            hint.selector is not None
            or hint.function_selector is not None
            or hint.scope is not None
            or hint.exclusive is not DeviceExclusive.NONE
            for hint in (each.hint for each in found)
        )
    )
    together = len(joint) > 1
    return _demand(
        tuple(found),
        joint if together else (),
        spec.same_pcie and together,
        spec.partition,
        frozenset(amounts),
        demanding,
    )


_demand = lru_cache(maxsize=4096)(DeviceDemand)


def _is_unit(amount: int) -> bool:
    return amount <= FULL or amount % FULL == 0


def _by_percent(wanted: ResourceList) -> bool:
    return all(_is_unit(wanted[name]) for name in (CORE, RATIO) if name in wanted)


def _by_share(wanted: ResourceList) -> bool:
    devices = wanted[SHARED]
    parts = [wanted[name] for name in (CORE, RATIO) if name in wanted]
    return all(amount % devices == 0 and amount // devices <= FULL for amount in parts)


def _by_npu_share(wanted: ResourceList) -> bool:
    return wanted[SHARED] == 1 and wanted.get(NPU_DVPP, 0) <= FULL


def _always(_wanted: ResourceList) -> bool:
    return True


_COMBINATIONS: Final[Mapping[frozenset[str], Callable[[ResourceList], bool]]] = {
    **{frozenset({name}): _always for name in (*WHOLE_GPUS, PERCENT_OF_GPU, RDMA_SHARE, FPGA_SHARE)},
    **{
        frozenset(names): _by_percent
        for names in ((MEMORY,), (RATIO,), (CORE, MEMORY), (CORE, RATIO), (NPU_CORE, RATIO))
    },
    **{frozenset((SHARED, *names)): _by_share for names in ((MEMORY,), (RATIO,), (CORE, MEMORY), (CORE, RATIO))},
    **{frozenset((SHARED, NPU_CORE, NPU_CPU, *names)): _by_npu_share for names in ((MEMORY,), (NPU_DVPP, MEMORY))},
}
"""Resources that may be requested together, with the check of their amounts (`ValidDeviceResourceCombinations`)."""


def _invalid(wanted: ResourceList) -> str:
    """Return why the requests for one type are invalid (`ValidateDeviceRequest`), empty if they are valid."""
    for name in (PERCENT_OF_GPU, FPGA_SHARE, RDMA_SHARE):
        if not _is_unit(wanted.get(name, 0)):
            return f"invalid resource unit {name}: {wanted[name]}: a percentage above 100 must be a multiple of 100"
    check = _COMBINATIONS.get(frozenset(wanted))
    listed = " ".join(f"{name}: {wanted[name]}" for name in sorted(wanted))
    if check is None:
        return f"invalid resource device requests: [{listed}]: these resources cannot be combined"
    if not check(wanted):
        rule = "with gpu.shared, at most 100 % of each device, the same on each" if SHARED in wanted else _UNIT_RULE
        return f"invalid resource device requests: [{listed}]: {rule}"
    return ""


_UNIT_RULE: Final = "a percentage above 100 must be a multiple of 100"


def _gpus(wanted: ResourceList, spec: DeviceSpec) -> TypeDemand | str:
    converted = dict(wanted)
    for name in (PERCENT_OF_GPU, *WHOLE_GPUS):
        if (amount := converted.pop(name, 0)) > 0:
            percent = amount if name == PERCENT_OF_GPU else amount * FULL
            converted[CORE] = converted[RATIO] = percent
    ratio = converted.get(RATIO, 0)
    count = converted.pop(SHARED, 0) or (ratio // FULL if ratio > FULL else 1)
    each = {name: -(-amount // count) for name, amount in converted.items()}
    partial = each.get(RATIO, 0) < FULL
    if partial and not each.keys().isdisjoint((NPU_CORE, NPU_CPU, NPU_DVPP)):
        return f"{NO_TEMPLATE}: koord-numa does not support templates of shared NPUs"
    hint = spec.hint(GPU)
    # As for other types: a request for several devices has its number, whatever the strategy.
    if hint.strategy is AllocateStrategy.APPLY_FOR_ALL and count == 1:
        count = 0
    return TypeDemand(GPU, tuple(sorted(each.items())), count, partial, hint)


def _shares(kind: str, amount: int, hint: DeviceHint) -> TypeDemand:
    name = _SHAREABLE[kind]
    if amount > FULL:
        return TypeDemand(kind, ((name, FULL),), amount // FULL, partial=False, hint=hint)
    if hint.strategy is AllocateStrategy.REQUESTS_AS_COUNT:
        each = FULL if hint.exclusive is DeviceExclusive.DEVICE else 1
        return TypeDemand(kind, ((name, each),), amount, partial=each < FULL, hint=hint)
    count = 0 if hint.strategy is AllocateStrategy.APPLY_FOR_ALL else 1
    return TypeDemand(kind, ((name, amount),), count, partial=amount < FULL, hint=hint)


_HOPPER: Final = frozenset({"H100", "H800", "H20"})
"""GPU models with a built-in partition table, as in Koordinator's allocator_gpu_helper.go."""

_EIGHT: Final = tuple(range(8))
BUILT_IN: Final[Partitions] = tuple(
    (size, tuple(Partition(_EIGHT[first : first + size]) for first in range(0, 8, size))) for size in (1, 2, 4, 8)
)
"""Partition table of Hopper machines with eight GPUs."""

WORTH: Final = ((8, 10_000), (4, 100), (2, 1))
"""Value of a free partition by its least number of GPUs (`selectPartitionByBinPack`)."""


class DeviceMachine(ValueObject, eq=False):
    """
    Devices and partitions of a machine. Equal machines are one object, so that results are cached by identity.

    ``by_type`` are the devices of a type, ``by_root`` those of a PCIe switch, ``by_numa`` those of a NUMA node. A device
    of no NUMA node is in ``anywhere``. ``groups`` are the sets of GPUs that are worth keeping free, with their value.
    """

    devices: tuple[NodeDevice, ...]
    partitions: Partitions | None
    honors_partitions: bool
    position: Mapping[DeviceKey, int] = value_field(default_factory=dict)
    totals: tuple[ResourceList, ...] = ()
    by_type: Mapping[str, int] = value_field(default_factory=dict)
    by_root: Mapping[tuple[int, str], int] = value_field(default_factory=dict)
    by_numa: Mapping[int, int] = value_field(default_factory=dict)
    located: int = 0
    anywhere: int = 0
    groups: tuple[tuple[int, int], ...] = ()
    numa_of_type: Mapping[str, int] = value_field(default_factory=dict)  # the NUMA nodes of the devices of a type

    def root_of(self, position: int) -> tuple[int, str] | None:
        """Return the PCIe switch of a device, ``None`` if it is not known."""
        topology = self.devices[position].topology
        return None if topology is None or not topology.pcie else (_numa(topology.numa), topology.pcie)

    def numa_of(self, devices: int) -> int:
        """Return the mask of the NUMA nodes of these devices."""
        mask = 0
        for numa, there in self.by_numa.items():
            if there & devices:
                mask |= 1 << numa
        return mask

    def positions(self, kind: str, minors: Iterable[int]) -> int:
        """Return the set of devices with these minors, 0 if one of them does not exist."""
        found = 0
        for minor in minors:
            position = self.position.get((kind, minor))
            if position is None:
                return 0
            found |= 1 << position
        return found


_NO_NUMA: Final = -1


def _numa(numa: int | None) -> int:
    return _NO_NUMA if numa is None else numa


def device_machine(inventory: DeviceInventory, model: str = "", *, honors_partitions: bool = False) -> DeviceMachine:
    """Return the machine of a Device object. ``model`` and ``honors_partitions`` are those of the Node's labels."""
    honors = inventory.honors_partitions or honors_partitions
    return _machine(inventory.devices, inventory.partitions, inventory.model or model, honors)


@lru_cache(maxsize=1024)
def _machine(
    devices: tuple[NodeDevice, ...], partitions: Partitions | None, model: str, honors_partitions: bool
) -> DeviceMachine:
    by_type: dict[str, int] = {}
    by_root: dict[tuple[int, str], int] = {}
    by_numa: dict[int, int] = {}
    located = anywhere = 0
    for position, device in enumerate(devices):
        bit = 1 << position
        by_type[device.type] = by_type.get(device.type, 0) | bit
        if (topology := device.topology) is None:
            continue
        located |= bit
        if topology.pcie:
            root = _numa(topology.numa), topology.pcie
            by_root[root] = by_root.get(root, 0) | bit
        if topology.numa is None:
            anywhere |= bit
        else:
            by_numa[topology.numa] = by_numa.get(topology.numa, 0) | bit
    minors = tuple(device.minor for device in devices if device.type == GPU)
    if partitions is None and minors == _EIGHT and not _HOPPER.isdisjoint(model.replace("_", "-").split("-")):
        partitions = BUILT_IN
    machine = DeviceMachine(
        devices=devices,
        partitions=partitions,
        honors_partitions=honors_partitions,
        position={device.key: position for position, device in enumerate(devices)},
        totals=tuple(dict(device.resources) for device in devices),
        by_type=by_type,
        by_root=dict(sorted(by_root.items())),
        by_numa=dict(sorted(by_numa.items())),
        located=located,
        anywhere=anywhere,
    )
    set_worked_out(machine, "groups", tuple(_groups(machine)))
    set_worked_out(machine, "numa_of_type", {kind: machine.numa_of(bits) for kind, bits in by_type.items()})
    return machine


def _groups(machine: DeviceMachine) -> Iterator[tuple[int, int]]:
    """Yield the sets of at least two GPUs that are worth keeping free: partitions, else PCIe switches, NUMA nodes and the node."""
    if machine.partitions is not None:
        for _, partitions in machine.partitions:
            for partition in partitions:
                if (worth := _worth(len(partition.minors))) and (bits := machine.positions(GPU, partition.minors)):
                    yield bits, worth * max(1, partition.score)
        return
    gpus = machine.by_type.get(GPU, 0)
    scopes = [*machine.by_root.values(), *machine.by_numa.values(), gpus]
    for bits in dict.fromkeys(scope & gpus for scope in scopes):
        if worth := _worth(bits.bit_count()):
            yield bits, worth


def _worth(size: int) -> int:
    return next((worth for least, worth in WORTH if size >= least), 0)


class DeviceHolding(ValueObject, gc=False):
    """Holdings of a device by pods. ``exclusive`` is the strictest exclusivity that a holder demands for it."""

    type: str
    minor: int
    amounts: tuple[tuple[str, int], ...]
    functions: tuple[str, ...] = ()  # bus ids, sorted; an id that two pods hold occurs twice
    exclusive: DeviceExclusive = DeviceExclusive.NONE


class DeviceUse(ValueObject, eq=False):
    """Holdings of the devices of a node by pods, ascending by type and minor. Equal uses are one object, as machines."""

    usages: tuple[DeviceHolding, ...] = ()


UNUSED: Final = DeviceUse()

Key = tuple[str, int, tuple[tuple[str, int], ...], tuple[str, ...], str]
"""The fields of a usage. Enumerations have slow hashes."""


@lru_cache(maxsize=16384)
def _use(keys: tuple[Key, ...]) -> DeviceUse:
    return DeviceUse(
        tuple(
            [
                DeviceHolding(kind, minor, amounts, ids, DeviceExclusive(word))
                for kind, minor, amounts, ids, word in keys
            ]
        )
    )


_HELD: Final = "devices"
"""Key of the running sum of a ledger."""


_Part = tuple[str, DeviceGrants, DeviceExclusive]
"""Part of a device that a pod holds: the pod, its grants of the device, and its exclusivity."""

_NO_PART: Final[_Part] = ("", (), DeviceExclusive.NONE)

Observed = Mapping[str, DeviceGrants]
"""Devices that pods hold by their kubelet, by ``namespace/name``."""

NOT_OBSERVED: Final[Observed] = {}


class HeldDevices:
    """
    Running sum of the holdings of the devices of a machine by the pods of a ledger.

    A pod that its kubelet has reported (``observed``) holds the reported devices, regardless of its annotation. Only the
    devices of a pod that was added or removed are summed again.
    """

    __slots__ = ("_holders", "_keys", "_stale", "_use", "machine", "observed")

    def __init__(self, ledger: Ledger, machine: DeviceMachine, observed: Observed) -> None:
        self.machine = machine
        self.observed = observed
        self._holders: dict[DeviceKey, dict[str, _Part]] = {}
        self._keys: dict[DeviceKey, Key] = {}
        self._stale: set[DeviceKey] = set()
        self._use = UNUSED
        for holding in ledger:
            self.count(holding, 1)

    def count(self, holding: Holding, sign: int) -> None:
        """Add or remove a pod."""
        grants = holding.devices
        if self.observed:
            grants = self.observed.get(str(holding.pod), grants)
        if not grants:
            return
        if sign > 0:
            self._put(holding.pod.uid, str(holding.pod), grants, holding.request)
        else:
            self._drop(holding.pod.uid, grants)

    def _put(self, uid: str, pod: str, grants: DeviceGrants, request: PodRequest | None) -> None:
        hints = () if request is None else request.devices.hints
        for grant in grants:
            key = grant.type, grant.minor
            holders = self._holders.get(key)
            if holders is None:
                holders = self._holders[key] = {}
            exclusive = request.devices.hint(grant.type).exclusive if request and hints else DeviceExclusive.NONE
            _, before, _ = holders.get(uid, _NO_PART)
            holders[uid] = pod, (*before, grant), exclusive
            self._stale.add(key)

    def _drop(self, uid: str, grants: DeviceGrants) -> None:
        for grant in grants:
            key = grant.type, grant.minor
            holders = self._holders.get(key, {})
            holders.pop(uid, None)
            if not holders:
                self._holders.pop(key, None)
                self._keys.pop(key, None)
            self._stale.add(key)

    def holders(self, key: DeviceKey) -> list[str]:
        """Return the pods that hold a part of a device, sorted."""
        return sorted([pod for pod, _, _ in self._holders.get(key, {}).values()])

    @property
    def use(self) -> DeviceUse:
        """The holdings of the pods, ascending by type and minor."""
        if self._stale:
            for key in self._stale & self._holders.keys():
                self._keys[key] = self._key(key)
            self._stale.clear()
            self._use = _use(tuple(sorted(self._keys.values()))) if self._keys else UNUSED
        return self._use

    def _key(self, key: DeviceKey) -> Key:
        holders = self._holders[key].values()
        parts = [grant for _, grants, _ in holders for grant in grants]
        amounts = filled(parts[0].resources, self.machine, key)
        if len(parts) > 1:
            amounts = dict(amounts)
            for grant in parts[1:]:
                for name, amount in filled(grant.resources, self.machine, key).items():
                    amounts[name] = amounts.get(name, 0) + amount
        functions = sorted([function.bus_id for grant in parts for function in grant.functions])
        exclusive = _strictest([strictness for _, _, strictness in holders])
        return *key, tuple(sorted(amounts.items())), tuple(functions), exclusive.value


def held_devices(ledger: Ledger, machine: DeviceMachine, observed: Observed = NOT_OBSERVED) -> HeldDevices:
    """Return the holdings of the devices by the pods of the ledger."""
    held = ledger.sums.get(_HELD)
    if not isinstance(held, HeldDevices) or held.machine is not machine or held.observed is not observed:
        held = ledger.sums[_HELD] = HeldDevices(ledger, machine, observed)
    return held


def device_use(ledger: Ledger, machine: DeviceMachine, observed: Observed = NOT_OBSERVED) -> DeviceUse:
    """Return the use of the devices by the pods of the ledger."""
    return held_devices(ledger, machine, observed).use


def _strictest(found: list[DeviceExclusive]) -> DeviceExclusive:
    if DeviceExclusive.PCIE in found:
        return DeviceExclusive.PCIE
    return DeviceExclusive.DEVICE if DeviceExclusive.DEVICE in found else DeviceExclusive.NONE


def filled(amounts: ResourceList, machine: DeviceMachine, key: DeviceKey) -> ResourceList:
    """Add the missing one of GPU memory and its percentage, computed from the other (``fillGPUTotalMem`` in Koordinator)."""
    if key[0] != GPU or (MEMORY in amounts) == (RATIO in amounts):
        return amounts
    position = machine.position.get(key)
    memory = 0 if position is None else machine.totals[position].get(MEMORY, 0)
    if not memory:
        return amounts
    if MEMORY in amounts:
        return {**amounts, RATIO: amounts[MEMORY] * FULL // memory}
    return {**amounts, MEMORY: amounts[RATIO] * memory // FULL}


class FreeDevices(ValueObject):
    """
    The free part of each device, by position. ``used`` are the devices that pods hold a part of.

    ``closed`` are devices that a holder shares with nobody. Pods hold more than there is of the ``overheld`` ones.
    """

    amounts: tuple[ResourceList, ...]
    functions: tuple[frozenset[str], ...]  # held bus ids
    used: int
    healthy: int
    closed: int
    overheld: int


@lru_cache(maxsize=4096)
def free_devices(machine: DeviceMachine, use: DeviceUse) -> FreeDevices:
    """Return the free part of the devices. Cached: a decision evaluates several sets of NUMA nodes."""
    amounts: list[ResourceList] = [
        total if device.healthy else {} for device, total in zip(machine.devices, machine.totals, strict=True)
    ]
    functions: list[frozenset[str]] = [frozenset()] * len(amounts)
    healthy = sum(1 << position for position, device in enumerate(machine.devices) if device.healthy)
    used = closed = overheld = 0
    for usage in use.usages:
        position = machine.position.get((usage.type, usage.minor))
        if position is None:
            continue  # vanished
        used |= 1 << position
        functions[position] = held_functions = frozenset(usage.functions)
        held, total = dict(usage.amounts), machine.totals[position]
        amounts[position] = {name: max(0, left - held.get(name, 0)) for name, left in amounts[position].items()}
        if len(held_functions) < len(usage.functions) or any(
            amount > total.get(name, 0) > 0 for name, amount in usage.amounts
        ):
            overheld |= 1 << position
        if usage.exclusive is not DeviceExclusive.NONE:
            closed |= 1 << position
        if usage.exclusive is DeviceExclusive.PCIE:
            closed |= neighbours(machine, position)
    return FreeDevices(tuple(amounts), tuple(functions), used, healthy, closed, overheld)


def neighbours(machine: DeviceMachine, position: int) -> int:
    """Return the devices of the same type on the same PCIe switch, or only the device if its switch is not known."""
    root = machine.root_of(position)
    return 1 << position if root is None else machine.by_root[root] & machine.by_type[machine.devices[position].type]


def free_value(machine: DeviceMachine, taken: int) -> int:
    """Return the value of the groups of GPUs none of which is taken or unhealthy."""
    return sum(worth for bits, worth in machine.groups if not bits & taken)


@lru_cache(maxsize=4096)
def free_partitions(machine: DeviceMachine, use: DeviceUse) -> Mapping[int, int]:
    """Return the number of free groups of GPUs by size, ascending, for metrics and the page. Cached for scrapes."""
    free = free_devices(machine, use)
    taken = free.used | (machine.by_type.get(GPU, 0) & ~free.healthy)
    counts: dict[int, int] = {}
    gpus = machine.by_type.get(GPU, 0)
    sets = [*(1 << position for position in members(gpus)), *(bits for bits, _ in machine.groups)]
    for bits in sets:
        counts.setdefault(bits.bit_count(), 0)
        counts[bits.bit_count()] += not bits & taken
    return dict(sorted(counts.items()))


def double_holds(ledger: Ledger, machine: DeviceMachine) -> str:
    """Return a sentence about the first device of which pods hold more than there is, empty if there is none."""
    held = held_devices(ledger, machine)
    overheld = free_devices(machine, held.use).overheld
    for usage in held.use.usages if overheld else ():
        position = machine.position.get((usage.type, usage.minor))
        if position is None or not overheld >> position & 1:
            continue
        total = machine.totals[position]
        over = next((name for name, amount in usage.amounts if amount > total.get(name, 0) > 0), "")
        if over:
            what = f"{dict(usage.amounts)[over]} of {total[over]} {over}"
        else:
            pairs = zip(usage.functions, usage.functions[1:], strict=False)
            what = f"virtual function {next(one for one, other in pairs if one == other)}"
        holders = held.holders((usage.type, usage.minor))
        return f"{what} of {usage.type} {usage.minor} is held by {', '.join(holders[:4])}"
    return ""
