"""Parse the zones of a NodeResourceTopology: NUMA nodes with their resources and distances."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import orjson

from koord_numa.core.cpu_topology import MAX_NUMA
from koord_numa.core.cpuset import MAX_CPU
from koord_numa.core.objects.node import Zone
from koord_numa.core.resources import CPU, EPHEMERAL_STORAGE, MEMORY, MILLI, is_hugepages
from koord_numa.wire.errors import FieldPath, quoted
from koord_numa.wire.names import ZONE_TYPE_NUMA
from koord_numa.wire.parsing import Id, ParsedCache, Quantity, Strict, below_zero, current_name, read, supply
from koord_numa.wire.pod.pod_annotations import numa_id

MOST_DEVICES: Final = 16_384
"""Maximum devices of a resource on a NUMA node. Devices are kept one by one. Bytes and CPUs have limits of their own."""

REMEMBERED_TEXT: Final = 16 << 20
"""Characters of JSON in the cache of zones. A zone has about two thousand."""

MOST_RESOURCES: Final = 512
"""Maximum resources of a NUMA node."""

# NFD and the exporters write node-0. Koordinator's scheduler also accepts x-node-0.
_ZONE_NAME: Final = re.compile(r"(?:.{0,200}[-_])?node-(\d{1,9})", re.ASCII)
_LONGEST_NAME: Final = 215  # the longest name that the expression matches


class ResourceModel(Strict):
    """A resource of a zone. v1alpha1 may omit the available amount."""

    name: str
    capacity: Quantity | None = None
    allocatable: Quantity | None = None
    available: Quantity | None = None


class CostModel(Strict):
    """The cost of access to another zone."""

    name: str
    value: Id


class AttributeModel(Strict):
    """An attribute of a zone or of the whole object."""

    name: str
    value: str


class ZoneTypeModel(Strict):
    """The type of a zone, which decides whether the rest is parsed."""

    type: str


class ZoneModel(Strict):
    """A zone. Zones of type ``Node`` are NUMA nodes."""

    name: str
    type: str
    costs: list[CostModel] | None = None
    resources: list[ResourceModel] | None = None


Distances = dict[tuple[int, int], int]
"""Cost of access from the first NUMA node to the second."""


@dataclass(frozen=True, slots=True)
class ReadZone:
    """A NUMA node with the costs of access to others by NUMA id. ``zone`` is ``None`` for a zone of another type."""

    zone: Zone | None = None
    costs: tuple[tuple[int, int], ...] = ()
    type: str = ZONE_TYPE_NUMA


@dataclass(frozen=True, slots=True)
class ReadZones:
    """The NUMA nodes of a topology in ascending order, the costs between them, and the types of other zones in order."""

    zones: tuple[Zone, ...]
    distances: Distances
    other_types: tuple[str, ...]


def read_zones(listed: Iterable[object], path: FieldPath) -> ReadZones:
    """
    Parse the zones of a topology. Zones of types other than ``Node`` (sockets, pools of NRI plugins) are not parsed.

    ``path`` is the path of the object. Zones are cached by their JSON: most updates change one zone, and nodes are
    alike.
    """
    found: dict[int, Zone] = {}
    costs: Distances = {}
    others: dict[str, None] = {}
    for number, raw in enumerate(listed):
        read_zone = _read_zone(raw, number, path)
        zone = read_zone.zone
        if zone is None:
            others[read_zone.type] = None
            continue
        if zone.numa in found:
            raise path.at("zones").error(f"NUMA node {zone.numa} is listed twice")
        found[zone.numa] = zone
        if len(found) > MAX_NUMA:
            raise path.at("zones").error(
                f"more than {MAX_NUMA} NUMA nodes are listed, at most {MAX_NUMA} are supported"
            )
        # Costs to unlisted zones are kept. Only pairs of listed zones are used.
        costs.update(((zone.numa, end), value) for end, value in read_zone.costs)
    cpus = sum(zone.capacity.get(CPU, 0) for zone in found.values()) // MILLI
    # More CPUs than the largest id allows: a machine of that size cannot be built.
    if cpus > MAX_CPU + 1:
        raise path.at("zones").error(f"{cpus} CPUs are too many, at most {MAX_CPU + 1} are supported")
    return ReadZones(tuple(found[numa] for numa in sorted(found)), dict(sorted(costs.items())), tuple(others))


_ZONES: Final[ParsedCache[bytes, ReadZone]] = ParsedCache(REMEMBERED_TEXT)


def _read_zone(raw: object, number: int, path: FieldPath) -> ReadZone:
    try:
        # The whole JSON is the key: equal zones of different nodes share one value.
        key = orjson.dumps(raw)
    except orjson.JSONEncodeError:  # integers beyond 64 bits: the model reports them
        return _parse(raw, number, path)
    known = _ZONES.get(key)
    if known is None:
        known = _ZONES.put(key, _parse(raw, number, path), 2 * len(key))
    return known


def _parse(raw: object, number: int, path: FieldPath) -> ReadZone:
    place = path.at(f"zones[{number}]")
    kind = read(ZoneTypeModel, raw, place).type
    if kind != ZONE_TYPE_NUMA:
        return ReadZone(type=kind)
    model, path = read(ZoneModel, raw, place), path.at("zones")
    numa = _numa_of(model.name)
    if numa is None:
        raise path.error(f"{quoted(model.name)} is not a name of a NUMA node such as node-0")
    ends = ((_numa_of(cost.name), cost.value) for cost in model.costs or ())
    costs = tuple((end, value) for end, value in ends if end is not None)  # other zones do not matter
    return ReadZone(_parse_zone(numa_id(numa, path), model, path.at(model.name)), costs)


def _numa_of(name: str) -> int | None:
    return _numa_of_short(name) if len(name) <= _LONGEST_NAME else None


@lru_cache(maxsize=1024)
def _numa_of_short(name: str) -> int | None:
    match = _ZONE_NAME.fullmatch(name)
    return int(match.group(1)) if match else None


def _parse_zone(numa: int, model: ZoneModel, path: FieldPath) -> Zone:
    capacity: dict[str, int] = {}
    allocatable: dict[str, int] = {}
    available: dict[str, int] = {}
    overdrawn: dict[str, int] = {}
    resources = model.resources or ()
    if len(resources) > MOST_RESOURCES:
        raise path.error(f"{len(resources)} resources are too many, at most {MOST_RESOURCES} are supported")
    for resource in resources:
        name = current_name(resource.name)
        if name == EPHEMERAL_STORAGE:
            continue  # not aligned by the kubelet; the Node object has the amount
        if name in capacity:
            raise path.at(name).error("is listed twice")
        # The first amount present replaces missing ones, since v1alpha1 exporters omit some.
        known = [value for value in (resource.capacity, resource.allocatable, resource.available) if value is not None]
        if not known:
            raise path.at(name).error("has neither capacity nor allocatable")
        capacity[name] = supply(name, known[0], path)
        allocatable[name] = _or(resource.allocatable, capacity[name], name, path)
        available[name] = _or(resource.available, allocatable[name], name, path)
        if (below := below_zero(name, resource.available, path)) > 0:
            overdrawn[name] = below
        # Devices are kept one by one, so their number needs a limit. Bytes do not.
        if _is_device(name) and max(capacity[name], allocatable[name], available[name]) > MOST_DEVICES:
            raise path.at(name).error(f"{capacity[name]} devices are too many, at most {MOST_DEVICES} are supported")
    return Zone(numa=numa, capacity=capacity, allocatable=allocatable, available=available, overdrawn=overdrawn)


def _is_device(name: str) -> bool:
    return name not in (CPU, MEMORY) and not is_hugepages(name)


def _or(value: Quantity | None, otherwise: int, name: str, path: FieldPath) -> int:
    return otherwise if value is None else supply(name, value, path)
