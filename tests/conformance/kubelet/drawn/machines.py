"""Nodes drawn after recorded ones: the machine and what is reserved are recorded, options and devices are drawn."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from random import Random
from typing import Any, Final

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.fingerprint import fingerprint
from tests.conformance.vectors import Case

JsonObject = dict[str, Any]

GPU: Final = "nvidia.com/gpu"
NIC: Final = "vendor.com/nic"

POLICIES: Final = {"restricted": 4, "best-effort": 4, "single-numa-node": 3, "none": 2}
NFD_NAMES: Final = {"best-effort": "BestEffort", "restricted": "Restricted", "single-numa-node": "SingleNUMANode"}

PLAIN: Final = ((), ("full-pcpus-only",), ("strict-cpu-reservation",), ("full-pcpus-only", "strict-cpu-reservation"))
SPREADING: Final = (("distribute-cpus-across-cores",),)
DEALING: Final = tuple(("distribute-cpus-across-numa", *more) for more in ((), *((one,) for (one,) in PLAIN[1:3])))
BY_SOCKET: Final = (("align-by-socket",), ("align-by-socket", "full-pcpus-only"))
BY_CACHE: Final = (("prefer-align-cpus-by-uncorecache",), ("full-pcpus-only", "prefer-align-cpus-by-uncorecache"))

MOST_DEALT: Final = 4
"""The kubelet's code deals CPUs over no more NUMA nodes without a defect, see the vectors' README."""

WITH_CACHES: Final = 5
"""So many numbers describe a CPU where its uncore cache is among them."""


def drawn_node(dice: Random, recorded: Case) -> JsonObject:
    """The node of a sequence."""
    node: JsonObject = deepcopy(dict(recorded["node"]))
    if dice.random() < 1 / 30:
        node["cpu_manager"] = "none"
    node["memory_manager"] = dice.choice(("None", "Static"))
    node["tm_policy"] = dice.choices([*POLICIES], [*POLICIES.values()])[0]
    node["tm_scope"] = dice.choice(("container", "pod"))
    closest = node["tm_policy"] != "none" and dice.random() < 1 / 5
    node["tm_options"] = {"prefer-closest-numa-nodes": "true"} if closest else {}
    node["cpu_options"] = dict.fromkeys(dice.choice([*_options(node)]), "true")
    node["devices"] = dict(_devices(dice, len(node["numa_nodes"])))
    for name in (GPU, NIC):
        node["allocatable"].pop(name, None)
    node["allocatable"] |= {name: str(len(rows)) for name, rows in node["devices"].items()}
    return node


def _options(node: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """The options with which a kubelet would start there."""
    if node["cpu_manager"] == "none":
        yield ()
        return
    if len(node["cpus"][0]) == WITH_CACHES:
        yield from BY_CACHE
        return
    yield from (*PLAIN, *SPREADING)
    if len(node["numa_nodes"]) <= MOST_DEALT:
        yield from DEALING
    if node["tm_policy"] in ("best-effort", "restricted"):
        yield from BY_SOCKET


def _devices(dice: Random, numas: int) -> Iterator[tuple[str, list[list[Any]]]]:
    if dice.random() < 1 / 4:
        return
    near = dice.choice(("one", "one", "one", "two", "two", "none"))
    count = numas * dice.choice((1, 2)) if numas <= MOST_DEALT else numas
    if near == "one":
        places: list[Any] = [place * numas // count for place in range(count)]
    elif near == "two":
        places = [sorted((place % numas, (place + 1) % numas)) for place in range(0, numas, dice.choice((1, 2)))]
    else:
        places = [None] * count
    yield GPU, [[f"gpu{number}", place] for number, place in enumerate(places)]
    if dice.random() < 1 / 3:
        yield NIC, [[f"nic{number}", dice.randrange(numas)] for number in range(dice.choice((2, 4)))]


def first_topology(
    node: Mapping[str, Any], reserved: str, exporter: str, *, published: bool, method: str
) -> JsonObject:
    """Return the exporter's topology of the empty node."""
    policy, scope = node["tm_policy"], node["tm_scope"]
    zones = [*_zones(node, CpuSet.parse(reserved))]
    if exporter == "rte":
        empty = fingerprint(())
        told = {"nodeTopologyPodsFingerprint": empty, "nodeTopologyPodsFingerprintMethod": method}
        told |= {"topologyManagerScope": scope, "topologyManagerPolicy": policy}
        more: JsonObject = {"annotations": {"topology.node.k8s.io/fingerprint": empty}}
    else:
        told = {"topologyManagerPolicy": policy, "topologyManagerScope": scope}
        name = f"{NFD_NAMES[policy]}{scope.capitalize()}Level" if policy in NFD_NAMES else "None"
        more = {"topologyPolicies": [name]}
    if published:
        told |= dict(_published(node))
    return {**more, "attributes": [{"name": name, "value": value} for name, value in told.items()], "zones": zones}


def _published(node: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "cpuManagerPolicy", node["cpu_manager"]
    if node["cpu_options"]:
        yield "cpuManagerPolicyOptions", ",".join(f"{name}=true" for name in sorted(node["cpu_options"]))
    yield "memoryManagerPolicy", node["memory_manager"]
    if "reserved_cpus" in node:
        yield "reservedCPUs", node["reserved_cpus"]
    if node["tm_options"]:
        yield "topologyManagerOptionPreferClosestNumaNodes", "true"


def _zones(node: Mapping[str, Any], reserved: CpuSet) -> Iterator[JsonObject]:
    for place, numa in enumerate(node["numa_nodes"]):
        cpus = [cpu[0] for cpu in node["cpus"] if cpu[3] == numa]
        rows: dict[str, tuple[int, int]] = {}  # capacity and allocatable
        if node["cpu_manager"] == "static":
            rows["cpu"] = (len(cpus), sum(1 for cpu in cpus if cpu not in reserved))
        if node["memory_manager"] == "Static":
            rows["memory"] = (node["memory"][place], node["memory"][place] - node["reserved_memory"][place])
        for name, devices in sorted(node["devices"].items()):
            if near := sum(1 for device in devices if numa in _near(device)):
                rows[name] = (near, near)
        yield {
            "name": f"node-{numa}",
            "type": "Node",
            "costs": [
                {"name": f"node-{other}", "value": cost}
                for other, cost in zip(node["numa_nodes"], node["distances"][place], strict=True)
            ],
            "resources": [
                {"name": name, "capacity": str(capacity), "allocatable": str(left), "available": str(left)}
                for name, (capacity, left) in (rows or {"cpu": (len(cpus), 0)}).items()
            ],
        }


def _near(device: list[Any]) -> list[int]:
    near = device[1]
    return near if isinstance(near, list) else [] if near is None else [near]
