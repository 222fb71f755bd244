"""Devices that drivers publish in ResourceSlices, with the taints of DeviceTaintRules."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Final, NamedTuple

from koord_numa.core.cel import CelDevice, CelError
from koord_numa.core.cpu_topology import MAX_NUMA_ID
from koord_numa.core.numa import mask_of
from koord_numa.core.objects.claims import Amounts, DeviceId, DeviceTaint, PoolId
from koord_numa.core.objects.constraints import Labels, NodeTerm, matches_term
from koord_numa.core.value_objects import ValueObject, replace


class Attribute(NamedTuple):
    """
    A device attribute of kind ``int``, ``bool``, ``string`` or ``version``.

    Versions are strings. A scalar has one value. The kind is empty for an unknown type. Such an attribute has no
    values.
    """

    kind: str
    values: tuple[int | bool | str, ...]
    listed: bool = False

    @property
    def scalar(self) -> int | bool | str | None:
        """The value of a scalar, or None for a list."""
        return self.values[0] if len(self.values) == 1 and not self.listed else None

    @property
    def set(self) -> frozenset[tuple[str, int | bool | str]]:
        """The values as a set, for constraints. The kind distinguishes ``true`` from 1, and versions from strings."""
        return frozenset((self.kind, value) for value in self.values)


class CapacityRange(ValueObject):
    """The permitted range of requests, in 10^-9 units. ``step`` rounds requests up from ``minimum``."""

    minimum: int
    maximum: int | None = None
    step: int | None = None


class CapacityPolicy(ValueObject):
    """Rounding and bounds for requests of a consumable capacity, in 10^-9 units."""

    default: int | None = None
    valid_values: tuple[int, ...] = ()
    valid_range: CapacityRange | None = None


class Capacity(ValueObject):
    """The amount of one capacity of a device, in 10^-9 units."""

    value: int
    policy: CapacityPolicy | None = None


class NodeAllocatable(ValueObject):
    """
    The amount of one node resource that a device consumes (KEP-5517), in 10^-9 units.

    ``multiplier`` applies to each unit of the consumed capacity ``capacity_key``, or to the device if the key is empty.
    """

    resource: str
    capacity_key: str = ""
    multiplier: int | None = None  # None without a mapping
    per_pod: int | None = None
    per_container: int | None = None


class NodeChoice(ValueObject):
    """The nodes that can use a slice or device: one node by name, all nodes, or the nodes that match a selector."""

    name: str = ""
    everywhere: bool = False
    term: NodeTerm | None = None

    def includes(self, node: str, labels: Labels) -> bool:
        """Return whether the node can use the slice or device."""
        if self.name:
            return self.name == node
        if self.everywhere:
            return True
        return self.term is not None and matches_term(self.term, node, labels)


NOWHERE: Final = NodeChoice()

_MOST_MEMORIES: Final = 64

NUMA_ATTRIBUTES: Final = ("resource.kubernetes.io/numaNode", "dra.cpu/numaNodeID", "dra.net/numaNode")
"""Attributes for the NUMA node of a device: the standard attribute, then older names of drivers."""

BARE_NUMA_ATTRIBUTES: Final = ("numaNode", "numaNodeID", "numa")
"""Attribute names in the driver's own domain."""

PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"

NumaByRoot = Mapping[str, int]
"""NUMA node by PCIe root, as published by the node agent."""


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """
    One device. ``nodes`` is its own node selection where the slice leaves the selection to its devices.

    ``consumes`` are amounts by counter set. ``memory`` caches the results of selectors. A device never changes: a new
    generation of a slice has new device objects.
    """

    id: DeviceId
    attributes: Mapping[str, Attribute]
    cel: CelDevice
    capacity: Mapping[str, Capacity] = field(default_factory=dict)
    consumes: tuple[tuple[str, Amounts], ...] = ()
    taints: tuple[DeviceTaint, ...] = ()
    nodes: NodeChoice = NOWHERE
    shared: bool = False  # allowMultipleAllocations
    binds_to_node: bool = False
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    allocatable: tuple[NodeAllocatable, ...] = ()
    memory: dict[str, bool | CelError] = field(default_factory=dict, repr=False)
    own_numa: tuple[int, ...] = field(init=False)  # published by the driver, the physical NUMA node first
    own_mask: int = field(init=False)  # the same as a set, 0 if the driver publishes none
    pcie_roots: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "own_numa", self._own_numa())
        object.__setattr__(self, "own_mask", mask_of(self.own_numa))
        roots = self.attribute(PCIE_ROOT)
        names = roots.values if roots is not None and roots.kind == "string" else ()
        object.__setattr__(self, "pcie_roots", tuple(map(str, names)))

    def _own_numa(self) -> tuple[int, ...]:
        for name in (*NUMA_ATTRIBUTES, *(f"{self.id.driver}/{bare}" for bare in BARE_NUMA_ATTRIBUTES)):
            value = self.attribute(name)
            if value is not None and value.kind == "int":
                # sysfs uses -1 for "no NUMA node". Ids above the maximum of Linux cannot be represented in a mask.
                return tuple(int(numa) for numa in value.values if 0 <= int(numa) <= MAX_NUMA_ID)
        return ()

    def numas(self, roots: NumaByRoot) -> tuple[int, ...]:
        """
        Return the NUMA nodes near the device, the physical NUMA node first. Empty when unknown.

        The driver's attribute has priority (KEP-6072), then the NUMA nodes of the device's PCIe roots.
        """
        return self.own_numa or tuple(dict.fromkeys(roots[root] for root in self.pcie_roots if root in roots))

    def numa(self, roots: NumaByRoot) -> int | None:
        """Return the physical NUMA node, or None when it is unknown."""
        return next(iter(self.numas(roots)), None)

    def attribute(self, name: str) -> Attribute | None:
        """
        Return an attribute by its full name.

        An attribute without a domain belongs to the driver's domain (allocator, ``lookupAttribute``).
        """
        found = self.attributes.get(name)
        if found is None:
            domain, _, bare = name.partition("/")
            # A name in the driver's domain may be written with or without the domain.
            if domain == self.id.driver:
                found = self.attributes.get(bare)
        return found

    def remember(self, expression: str, answer: bool | CelError) -> None:
        """Cache the result of one selector. The cache is cleared when it is full."""
        # Cleared as a whole: LRU order would cost more than 64 new evaluations.
        if len(self.memory) >= _MOST_MEMORIES:
            self.memory.clear()
        self.memory[expression] = answer


@dataclass(frozen=True, slots=True, eq=False)
class ResourceSlice:
    """One slice of a pool. With ``per_device`` each device has its own node selection."""

    name: str
    pool: PoolId
    generation: int
    slice_count: int  # number of slices of the pool in this generation
    nodes: NodeChoice = NOWHERE
    per_device: bool = False
    devices: tuple[Device, ...] = ()
    counters: tuple[tuple[str, Amounts], ...] = ()  # counter sets with their amounts
    problem: str = ""  # reason why the slice is unusable. It then counts only for the completeness of the pool
    plain: bool = field(init=False)  # whether it belongs to one node and has no counters and no duplicate names
    binds_late: bool = field(init=False)  # whether any device has binding conditions

    def __post_init__(self) -> None:
        names = {device.id.device for device in self.devices}
        draws = bool(self.counters) or any(device.consumes for device in self.devices)
        plain = bool(self.nodes.name) and not (self.per_device or draws or self.problem)
        # A plain slice with unique names cannot contradict itself.
        object.__setattr__(self, "plain", plain and len(names) == len(self.devices))
        object.__setattr__(self, "binds_late", any(device.binding_conditions for device in self.devices))

    def reaches(self, node: str, labels: Labels) -> bool:
        """Return whether the slice offers devices to the node."""
        if not self.per_device:
            return self.nodes.includes(node, labels)
        return any(device.nodes.includes(node, labels) for device in self.devices)


class DeviceTaintRule(ValueObject):
    """
    A taint for the devices that match driver, pool and device name.

    None matches every value (resource/v1 ``DeviceTaintSelector``). ``selects`` is false for a rule without a selector,
    which taints no device.
    """

    name: str
    taint: DeviceTaint
    driver: str | None = None
    pool: str | None = None
    device: str | None = None
    selects: bool = True


class TaintRules:
    """All DeviceTaintRules of the cluster, by driver and pool, with a cache of the tainted slices."""

    def __init__(self) -> None:
        self._rules: dict[str, DeviceTaintRule] = {}
        self._by_pool: dict[tuple[str | None, str | None], dict[str, DeviceTaintRule]] = {}
        self._tainted: dict[str, tuple[ResourceSlice, tuple[DeviceTaintRule, ...], ResourceSlice]] = {}

    def __iter__(self) -> Iterator[DeviceTaintRule]:
        """Iterate over all rules."""
        return iter(self._rules.values())

    def put(self, rule: DeviceTaintRule) -> DeviceTaintRule | None:
        """Add or replace a rule. Return the previous rule with the name."""
        former = self.remove(rule.name)
        self._rules[rule.name] = rule
        if rule.selects:
            self._by_pool.setdefault((rule.driver, rule.pool), {})[rule.name] = rule
        return former

    def remove(self, name: str) -> DeviceTaintRule | None:
        """Delete a rule. Return the rule, or None if it does not exist."""
        rule = self._rules.pop(name, None)
        if rule is not None and rule.selects:
            key = (rule.driver, rule.pool)
            del self._by_pool[key][name]
            if not self._by_pool[key]:
                del self._by_pool[key]
        return rule

    def forget_slices(self, names: Iterable[str]) -> None:
        """Drop cached slices that no longer exist."""
        for name in names:
            self._tainted.pop(name, None)

    def tainted(self, published: ResourceSlice) -> ResourceSlice:
        """Return the slice with the taints of all rules for its devices, after the taints that the driver publishes."""
        if not self._by_pool:
            return published
        # The rules that may match devices of the slice.
        driver, pool = published.pool
        found = [rule for key in product((driver, None), (pool, None)) for rule in self._by_pool.get(key, {}).values()]
        rules = tuple(sorted(found, key=lambda rule: rule.name))
        if not rules:
            return published
        known = self._tainted.get(published.name)
        if known is not None and known[0] is published and known[1] == rules:
            return known[2]
        devices = []
        for device in published.devices:
            taints = tuple(rule.taint for rule in rules if rule.device in (None, device.id.device))
            devices.append(replace(device, taints=device.taints + taints) if taints else device)
        # The rules may match only other devices of the driver or pool.
        same = all(device is former for device, former in zip(devices, published.devices, strict=True))
        changed = published if same else replace(published, devices=tuple(devices))
        self._tainted[published.name] = (published, rules, changed)
        return changed
