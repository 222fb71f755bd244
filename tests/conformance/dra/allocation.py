"""
Structured allocation of kube-scheduler 1.36: claims of one pod on one node, against its recorded answers.

``dra-table`` records tests of upstream with some gates off; the answer with the default gates is recorded too, and is the one that counts.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from koord_numa.core.cel.program import CelDevice, compile_selector
from koord_numa.core.cel.values import parse_semver
from koord_numa.core.claims.allocator import INVALID_POOLS, Allocated, NotAllocated, allocate
from koord_numa.core.claims.inventory import ResourceSlice
from koord_numa.core.claims.pools import NodeDevices, gather_pools, own_name
from koord_numa.core.objects.claims import ClaimToAllocate, DeviceClass, DeviceId, DeviceUsage, Features, PoolId
from koord_numa.core.resources import parse_quantity
from koord_numa.wire.errors import FieldPath
from koord_numa.wire.resource_claims import allocation_json, parse_device_class, parse_resource_claim
from koord_numa.wire.resource_slices import nano, parse_resource_slice
from tests.conformance.deviations import Deviation
from tests.conformance.vectors import Case, Oracle

SHARE = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"
PLACE = FieldPath("case")


@dataclass(frozen=True)
class Question:
    """One case in our types."""

    claims: tuple[ClaimToAllocate, ...]
    classes: Mapping[str, DeviceClass]
    node: NodeDevices
    usage: DeviceUsage


def load(case: Case) -> Question:
    """Slices of the cluster become the node's pools, in whatever order they come."""
    slices = [facts.parts for obj in case["slices"] if (facts := parse_resource_slice(obj)).parts is not None]
    pools: dict[PoolId, list[ResourceSlice]] = {}
    for each in slices:
        pools.setdefault(each.pool, []).append(each)
    metadata = case["node"]["metadata"]
    name, labels = metadata["name"], metadata.get("labels") or {}
    claims = tuple(parse_resource_claim(obj).to_allocate() for obj in _namespaced(case["claims"]))
    classes = {it.name: it for it in map(parse_device_class, case["deviceClasses"])}
    node = NodeDevices(name, labels, gather_pools(slices, name, labels, pools), _features(case))
    return Question(claims, classes, node, _usage(case["allocatedState"]))


def _lists(case: Case) -> bool:
    """Return true if the case enables the gate of list attributes, which is off by default."""
    return bool((case.get("features") or {}).get("DRAListTypeAttributes"))


def _features(case: Case) -> Features:
    """Gates of the random cases. The table records the default gates' answers as well: those are asked for, but with list attributes."""
    gates = {} if "expectDefaultGates" in case and not _lists(case) else case.get("features") or {}
    return Features(
        admin_access=gates.get("DRAAdminAccess", True),
        binding_conditions=gates.get("DRADeviceBindingConditions+DRAResourceClaimDeviceStatus", True),
        consumable_capacity=gates.get("DRAConsumableCapacity", True),
        device_taints=gates.get("DRADeviceTaints", True),
        partitionable_devices=gates.get("DRAPartitionableDevices", True),
        prioritized_list=gates.get("DRAPrioritizedList", True),
    )


def _namespaced(claims: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Upstream's own tests have claims without a namespace, which an API server never stores."""
    return [{**claim, "metadata": {"namespace": "default", **claim["metadata"]}} for claim in claims]


def _usage(state: Mapping[str, Any]) -> DeviceUsage:
    usage = DeviceUsage()
    for device in state["devices"]:
        usage.exclusive[_device(device)] = 1
    for device in state["sharedDevices"]:
        usage.shares[_device(device)] = usage.shares.get(_device(device), 0) + 1
    for row in state["aggregatedCapacity"]:
        usage.consumed[_device(row)] = {name: nano(value, PLACE) for name, value in row["capacity"].items()}
    return usage


def _device(row: Mapping[str, Any]) -> DeviceId:
    return DeviceId(row["driver"], row["pool"], row["device"])


def answer(given: Question) -> Allocated | NotAllocated:
    """Decide."""
    return allocate(given.claims, given.classes, given.node, given.usage)


def agrees(case: Case, ours: Allocated | NotAllocated) -> str | None:
    """The recorded answer of a corrected allocator counts where there is one."""
    recorded = case.get("withoutUpstreamBug") or _with_gates(case)
    accepted = [recorded, *(case["expect"].get("accept") or ())]
    said = _said(ours)
    if any(said == _recorded(each) for each in accepted):
        return None
    return f"{said}, recorded {_recorded(recorded)}"


def _with_gates(case: Case) -> Mapping[str, Any]:
    recorded: Mapping[str, Any] = case["expect"]
    return recorded if _lists(case) else case.get("expectDefaultGates") or recorded


def _said(ours: Allocated | NotAllocated) -> tuple[str, object]:
    if isinstance(ours, Allocated):
        return "ok", ([_canonical(allocation_json(it)) for it in ours.allocations], ours.score)
    return ("error" if ours.error else "none"), _text(ours.message) if ours.error else ""


def _recorded(expect: Mapping[str, Any]) -> tuple[str, object]:
    status = expect["status"]
    if status == "ok":
        return "ok", ([_canonical(it) for it in expect["result"]], expect["score"])
    if status == "none":
        return "none", ""
    return "error", _text(expect.get("error", ""))


def _text(error: str) -> str:
    """Texts of expressions are compared up to their kind; ``default`` is the namespace that this module adds."""
    text = error.replace("claim default/", "claim ")
    for kind in ("CEL runtime error:", "CEL compile error:"):
        if kind in text:
            return text[: text.index(kind) + len(kind)]
    return text


def _canonical(allocation: Mapping[str, Any]) -> object:
    devices = allocation.get("devices") or {}
    return {
        "results": [_result(it) for it in devices.get("results") or ()],
        "config": devices.get("config") or [],
        "nodes": [_term(it) for it in (allocation.get("nodeSelector") or {}).get("nodeSelectorTerms") or ()],
    }


def _result(result: Mapping[str, Any]) -> dict[str, Any]:
    shared = {"shareID": SHARE} if result.get("shareID") else {}
    amounts = {name: parse_quantity(value) for name, value in (result.get("consumedCapacity") or {}).items()}
    return {**{key: value for key, value in result.items() if value}, **shared, "consumedCapacity": amounts}


def _term(term: Mapping[str, Any]) -> object:
    return {
        kind: sorted((it["key"], it["operator"], tuple(sorted(it.get("values") or ()))) for it in requirements)
        for kind, requirements in term.items()
    }


def _foreign(case: Case, ours: Allocated | NotAllocated) -> bool:
    """
    Return true if upstream names a pool that the request cannot use: its class excludes the driver, or all its slices are for other nodes.

    Where no other request can draw from it either, ours must be the answer that is given when the cluster has no such pool.
    """
    text = _with_gates(case).get("error", "")
    blamed = re.search(r"request (\S+): asks for all devices, but resource pool (\S+) is currently", text)
    if blamed is not None:
        pools = {PoolId(*blamed[2].split("/", 1))}
        if not all(_serves_nothing(case, pool, blamed[1]) for pool in pools):
            return False
    elif text == INVALID_POOLS:
        pools = {pool.id for pool in load(case).node.pools if pool.invalid}
    else:
        return False
    if not all(_serves_nothing(case, pool) for pool in pools):
        return blamed is not None
    kept = [it for it in case["slices"] if PoolId(it["spec"]["driver"], it["spec"]["pool"]["name"]) not in pools]
    return _said(ours) == _said(answer(load({**case, "slices": kept})))


def _serves_nothing(case: Case, pool: PoolId, request: str = "") -> bool:
    slices = [it["spec"] for it in case["slices"] if (it["spec"]["driver"], it["spec"]["pool"]["name"]) == pool]
    elsewhere = all(it.get("nodeName", "") not in ("", case["node"]["metadata"]["name"]) for it in slices)
    return elsewhere or all(_rules_out(each, pool.driver) for each in _classes_asked_for(case, request))


def _classes_asked_for(case: Case, name: str) -> list[dict[str, Any]]:
    """The classes of all requests, or alternatives, of this name; of all without one."""
    requests = [it for claim in case["claims"] for it in claim["spec"]["devices"]["requests"]]
    demands = [
        it
        for request in requests
        for it in request.get("firstAvailable") or [{**request["exactly"], "name": request["name"]}]
    ]
    wanted = {it["deviceClassName"] for it in demands if name in ("", it["name"])}
    return [it for it in case["deviceClasses"] if it["metadata"]["name"] in wanted]


def _rules_out(device_class: Mapping[str, Any], driver: str) -> bool:
    """Return true if the first selector reads only the driver's name and is false for every device of the driver."""
    first = next(iter(device_class["spec"].get("selectors") or ()), None)
    expression = "true" if first is None else first["cel"]["expression"]
    looks_further = re.search(r"device\.(?!driver\b)", expression)
    return looks_further is None and not compile_selector(expression).matches(CelDevice(driver))


def _unreadable(case: Case, ours: Allocated | NotAllocated) -> bool:
    """
    Return true if an attribute that upstream cannot read fails every expression on its device.

    Lists are such attributes while their gate is off. Ours must be the answer without the attributes, or the error of reading one.
    """
    if not re.search(UNREADABLE, _with_gates(case).get("error", "")):
        return False
    if isinstance(ours, NotAllocated) and re.search(UNREADABLE, ours.message):
        return True
    stripped = json.loads(json.dumps(case["slices"]))
    for each in stripped:
        for device in each["spec"].get("devices") or ():
            attributes = device.get("attributes") or {}
            device["attributes"] = {name: value for name, value in attributes.items() if not _is_unreadable(value)}
    if _lists_are_read(case):
        return not re.search(UNREADABLE, ours.message) if isinstance(ours, NotAllocated) else True
    return _said(ours) == _said(answer(load({**case, "slices": stripped})))


def _capacity_names(case: Case, _ours: Allocated | NotAllocated) -> bool:
    """
    Return true if request and device name a capacity differently, with and without the driver's domain. Kubernetes 1.36 rejects such
    devices.

    The recorded answer must be ours where the capacities of these devices have names that no request knows.
    """
    requests = [it for claim in case["claims"] for it in claim["spec"]["devices"]["requests"]]
    demands = [it for each in requests for it in each.get("firstAvailable") or [each.get("exactly") or {}]]
    asked = {name for it in demands for name in ((it.get("capacity") or {}).get("requests") or {})}
    stripped = json.loads(json.dumps(case["slices"]))
    renamed = False
    for each in stripped:
        for device in each["spec"].get("devices") or ():
            capacity = device.get("capacity") or {}
            for name in asked - capacity.keys():
                other = own_name(name, each["spec"]["driver"], capacity)
                if other != name:
                    capacity[f"other.example.com/{len(capacity)}"] = capacity.pop(other)
                    renamed = True
    return renamed and agrees(case, answer(load({**case, "slices": stripped}))) is None


UNREADABLE = "unsupported attribute value|parse semantic version"


def _is_unreadable(value: Mapping[str, Any]) -> bool:
    return not value.keys() & {"int", "bool", "string", "version"} or not _is_version(value.get("version", "0.0.0"))


def _is_version(text: str) -> bool:
    try:
        parse_semver(text)
    except ValueError:
        return False
    return True


def _lists_are_read(case: Case) -> bool:
    """Return true if a constraint or an expression of the case names an attribute that is a list."""
    names = {
        name.rpartition("/")[2]
        for each in case["slices"]
        for device in each["spec"].get("devices") or ()
        for name, value in (device.get("attributes") or {}).items()
        if value.keys() & {"ints", "bools", "strings", "versions"}
    }
    texts = json.dumps([case["claims"], case["deviceClasses"]])
    return any(name in texts for name in names)


ORACLE = Oracle(
    "dra",
    load,
    answer,
    agrees,
    (
        Deviation("foreign-pools", _foreign),
        Deviation("unreadable-attributes", _unreadable),
        Deviation("capacity-names", _capacity_names),
    ),
)
