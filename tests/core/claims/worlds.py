"""Small clusters of devices for tests: slices as drivers publish them, claims as users write them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from koord_numa.core.claims.allocator import Allocated, NotAllocated, allocate
from koord_numa.core.claims.inventory import ResourceSlice
from koord_numa.core.claims.pools import NodeDevices, gather_pools
from koord_numa.core.objects.claims import ALL_FEATURES, DeviceClass, DeviceUsage, Features, PoolId
from koord_numa.wire.resource_claims import parse_device_class, parse_resource_claim
from koord_numa.wire.resource_slices import parse_resource_slice

Json = dict[str, Any]
NODE = "node-1"


def device(name: str, **more: Any) -> Json:
    """
    A device; ``attributes`` are plain values, lists of such or whole attributes, ``capacity`` plain quantities, ``consumes`` counters of
    the set ``set``.
    """
    made: Json = {"name": name}
    if attributes := more.pop("attributes", None):
        made["attributes"] = {key: _attribute(value) for key, value in attributes.items()}
    if capacity := more.pop("capacity", None):
        made["capacity"] = {key: {"value": value} for key, value in capacity.items()}
    if consumes := more.pop("consumes", None):
        made["consumesCounters"] = [
            {"counterSet": "set", "counters": {key: {"value": value} for key, value in consumes.items()}}
        ]
    return made | more


def _attribute(value: Any) -> Json:
    kinds = {bool: "bool", int: "int", str: "string"}
    if isinstance(value, dict):
        return value
    return {f"{kinds[type(value[0])]}s": value} if isinstance(value, list) else {kinds[type(value)]: value}


def published(driver: str, devices: Iterable[Json] = (), **more: Any) -> ResourceSlice:
    """A slice of the pool ``pool`` (by default the node's name) of generation 1; ``count`` slices make it whole."""
    pool, count = more.pop("pool", NODE), more.pop("count", 1)
    name = more.pop("name", f"{pool}-{driver}")
    spec: Json = {
        "driver": driver,
        "pool": {"name": pool, "generation": more.pop("generation", 1), "resourceSliceCount": count},
    }
    if counters := more.pop("counters", None):
        spec["sharedCounters"] = [
            {"name": "set", "counters": {key: {"value": value} for key, value in counters.items()}}
        ]
    if not {"nodeSelector", "allNodes", "perDeviceNodeSelection"} & more.keys():
        spec["nodeName"] = NODE
    spec |= {"devices": list(devices)} | more
    parts = parse_resource_slice({"metadata": {"name": name}, "spec": spec}).parts
    assert parts is not None
    return parts


def device_class(name: str, *expressions: str) -> DeviceClass:
    """A class; without expressions it selects the devices of the driver of its own name."""
    selectors = expressions or (f'device.driver == "{name}"',)
    spec = {"selectors": [{"cel": {"expression": expression}} for expression in selectors]}
    return parse_device_class({"metadata": {"name": name}, "spec": spec})


def request(name: str, device_class: str, **more: Any) -> Json:
    """A request of one device."""
    return {
        "name": name,
        "exactly": {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": 1, **more},
    }


def cel(expression: str) -> Json:
    """A selector."""
    return {"cel": {"expression": expression}}


def claim_object(*requests: Json, **more: Any) -> Json:
    """A claim as the API server stores it."""
    name = more.pop("name", "claim")
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"devices": {"requests": list(requests), **more}},
    }


def decide(
    slices: Sequence[ResourceSlice],
    claims: Sequence[Json],
    classes: Iterable[DeviceClass] = (),
    usage: DeviceUsage | None = None,
    labels: Mapping[str, str] | None = None,
    gates: Features = ALL_FEATURES,
) -> Allocated | NotAllocated:
    """The allocator's answer for the node; every driver has a class of its own name."""
    known = {each.pool.driver: device_class(each.pool.driver) for each in slices} | {
        each.name: each for each in classes
    }
    pools: dict[PoolId, list[ResourceSlice]] = {}
    for each in slices:
        pools.setdefault(each.pool, []).append(each)
    node = NodeDevices(NODE, labels or {}, gather_pools(slices, NODE, labels or {}, pools), gates)
    wanted = [parse_resource_claim(each).to_allocate() for each in claims]
    return allocate(wanted, known, node, usage or DeviceUsage())


def devices_of(answer: Allocated | NotAllocated) -> list[str]:
    """The names of all allocated devices, in their order; the message in their place when there are none."""
    if isinstance(answer, NotAllocated):
        return [answer.message]
    return [result.device.device for allocation in answer.allocations for result in allocation.results]
