"""Objects of a chaotic cluster with claims, and checks that no device, CPU, capacity or counter is allocated twice."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from koord_numa.core.claims.cpus import cpus_of
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.claims import DeviceUsage, ResourceClaim
from koord_numa.core.resources import parse_quantity
from koord_numa.sandbox.apiserver import DirectStore
from koord_numa.sandbox.apiserver.rules import claim_causes
from koord_numa.sandbox.controllers import CLAIMS
from koord_numa.sandbox.devices import SimulatedDevices
from koord_numa.sandbox.machines import NodeDescription
from koord_numa.wire.resource_claims import parse_resource_claim
from tests.e2e.extended import GPU as GPU_RESOURCE
from tests.e2e.extended import container, gpu_class, sidecar, unserved
from tests.e2e.world import PAIR, JsonObject, shared

MACHINES: Final = {
    "machines": [
        {
            "name": "claims",
            "count": 8,
            "style": "kubelet",
            **PAIR,
            "claimedDevices": {"nvidia.com/gpu": [0, 0, 1, 1], "example.com/nic": [0, 1]},
            "kubelet": {"cpuPolicy": "none"},
        },
        {
            "name": "ours",
            "count": 4,
            "sockets": 2,
            "numa": 1,
            "cores": 8,
            "threads": 2,
            "memory": "64Gi",
            "claimedDevices": {"nvidia.com/gpu": [0, 1], "example.com/nic": [0, 1]},
        },
        {
            "name": "plugin",
            "count": 2,
            "style": "kubelet",
            **PAIR,
            "devices": {GPU_RESOURCE: [0, 1]},
            "kubelet": {"cpuPolicy": "none"},
        },
    ]
}

PLUGIN: Final = frozenset({"plugin-0", "plugin-1"})
"""Nodes whose kubelets advertise GPUs."""

BANDWIDTH: Final = 100
PARTITIONS: Final = {
    "full": 8,
    "half-0": 4,
    "half-1": 4,
    "quarter-0": 2,
    "quarter-1": 2,
    "quarter-2": 2,
    "quarter-3": 2,
}
"""A card's partitions and the units of its counter that each consumes; it has eight."""


def more_slices(node: str) -> Iterator[JsonObject]:
    """A link whose bandwidth is shared, and a card that is partitioned, on every machine."""
    link = {"name": "link", "allowMultipleAllocations": True, "capacity": {"bandwidth": {"value": str(BANDWIDTH)}}}
    yield _slice(node, "link.example.com", devices=[link])
    partitions = [
        {"name": name, "consumesCounters": [{"counterSet": "card", "counters": {"units": {"value": str(units)}}}]}
        for name, units in PARTITIONS.items()
    ]
    yield _slice(node, "mig.example.com", 2, devices=partitions)
    counters = [{"name": "card", "counters": {"units": {"value": "8"}}}]
    yield _slice(node, "mig.example.com", 2, sharedCounters=counters)


def _slice(node: str, driver: str, count: int = 1, **content: Any) -> JsonObject:
    pool = {"name": node, "generation": 1, "resourceSliceCount": count}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{driver}-{'-'.join(content).lower()}"},
        "spec": {"driver": driver, "nodeName": node, "pool": pool, **content},
    }


def _request(name: str, device_class: str, **more: Any) -> JsonObject:
    return {"name": name, "exactly": {"deviceClassName": device_class, **more}}


def _either() -> JsonObject:
    quarter: JsonObject = {"cel": {"expression": 'device.driver == "mig.example.com"'}}
    subs: list[JsonObject] = [
        {"name": "gpu", "deviceClassName": "gpu.example.com"},
        {"name": "card", "deviceClassName": "mig.example.com", "selectors": [quarter]},
    ]
    return {"name": "any", "firstAvailable": subs}


def _capacity(name: str, device_class: str, capacity: str, amount: int) -> JsonObject:
    return _request(name, device_class, capacity={"requests": {capacity: str(amount)}})


GPU: Final = _request("gpu", "gpu.example.com")
NIC: Final = _request("nic", "nic.example.com")
NUMA: Final = [{"matchAttribute": "resource.kubernetes.io/numaNode"}]

TEMPLATES: Final[dict[str, JsonObject]] = {
    "gpu": {"requests": [GPU]},
    "two-gpus": {"requests": [_request("gpu", "gpu.example.com", count=2)]},
    "pair": {"requests": [GPU, NIC], "constraints": NUMA},
    "cpus": {"requests": [_capacity("cpu", "dra.cpu", "dra.cpu/cpu", 4)]},
    "gpu-cpus": {"requests": [GPU, _capacity("cpu", "dra.cpu", "dra.cpu/cpu", 3)]},
    "link": {"requests": [_capacity("link", "link.example.com", "bandwidth", 30)]},
    "card": {"requests": [_request("card", "mig.example.com")]},
    "either": {"requests": [_either()]},
    "all": {"requests": [_request("nic", "nic.example.com", allocationMode="All")]},
}

SHARED: Final = tuple(f"shared-{number}" for number in range(4))
"""Claims that several pods name."""


PRIORITIES: Final = {"low": 1, "high": 1000}
"""One pod in ten may preempt the others."""


def objects() -> Iterator[JsonObject]:
    """Classes, templates and shared claims."""
    for driver in ("link.example.com", "mig.example.com"):
        spec = {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]}
        yield {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": driver}, "spec": spec}
    yield gpu_class()
    for name, value in PRIORITIES.items():
        metadata = {"name": name}
        yield {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": metadata, "value": value}
    for name, devices in TEMPLATES.items():
        yield _object("ResourceClaimTemplate", name, {"spec": {"devices": devices}})
    for name in SHARED:
        yield _object("ResourceClaim", name, {"devices": TEMPLATES["gpu"]})


def _object(kind: str, name: str, spec: JsonObject) -> JsonObject:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec}


def any_claimant(name: str, dice: Random) -> JsonObject:
    """A pod with one or two claims, of templates or shared, or with extended resources by claim; some have both."""
    pod = shared(name, "250m")
    pod["spec"]["priorityClassName"] = "high" if dice.random() < 0.1 else "low"
    if dice.random() < 0.3:
        _ask_for_devices(pod["spec"], dice)
        if dice.random() < 0.7:
            return pod
    chosen = dice.sample(sorted(TEMPLATES), dice.choice((1, 1, 1, 2)))
    entries: list[JsonObject] = [{"name": it, "resourceClaimTemplateName": it} for it in chosen]
    if dice.random() < 0.15:
        entries = [{"name": "shared", "resourceClaimName": dice.choice(SHARED)}]
    pod["spec"]["resourceClaims"] = entries
    policy = dice.choice(("", "", "", "BestEffort", "SingleNUMANode"))
    if policy:
        key = "scheduling.koordinator.sh/numa-topology-spec"
        pod["metadata"]["annotations"] = {key: f'{{"numaTopologyPolicy":"{policy}"}}'}
    return pod


def _ask_for_devices(spec: JsonObject, dice: Random) -> None:
    """Extended resources for one or two containers, an init container and a sidecar, in any combination."""
    gpus, nics = dice.choice((1, 1, 2)), int(dice.random() < 0.2)
    wanted = container("main", gpu=gpus, nic=nics) if nics else container("main", gpu=gpus)
    spec["containers"][0]["resources"] = wanted["resources"]
    if dice.random() < 0.3:
        spec["containers"].append(container("second", gpu=1))
    init = []
    if dice.random() < 0.3:
        init.append(container("load", gpu=dice.choice((1, 2, 3))))
    if dice.random() < 0.2:
        init.append(sidecar(container("log", gpu=1)))
    if init:
        spec["initContainers"] = init


@dataclass(slots=True)
class ClaimLaws:
    """Looks at every claim as it changes; ``broken`` has what may happen at no moment."""

    store: DirectStore
    nodes: list[NodeDescription]
    broken: list[str] = field(default_factory=list)
    allocated: int = 0  # how often a claim came to be allocated
    _claims: dict[str, ResourceClaim] = field(default_factory=dict)  # by uid

    def start(self) -> SimulatedDevices:
        """Publish devices, make claims from templates and prepare them, and watch."""
        devices = SimulatedDevices(self.store, self.nodes)
        for each in (*objects(), *(it for node in self.nodes for it in more_slices(node.name))):
            self.store.create(each)
        devices.start()
        self.store.subscribe(CLAIMS, self._observe)
        return devices

    def _observe(self, event: str, raw: JsonObject) -> None:
        claim = parse_resource_claim(raw)
        before = self._claims.pop(claim.uid, None)
        if event == "DELETED":
            return
        self._claims[claim.uid] = claim
        self.broken += [f"{claim}: {cause}" for cause in claim_causes(raw)]
        if claim.allocation is None or (before is not None and before.allocation is not None):
            return
        self.allocated += 1
        self.broken += [f"{claim}: {why}" for why in self.overdrawn()]

    def overdrawn(self) -> list[str]:
        """Devices, capacity, counters and CPUs that are given out more than once now."""
        allocations = [it.allocation for it in self._claims.values() if it.allocation is not None]
        usage = self.usage()
        found = [f"{device} is held {count} times" for device, count in usage.exclusive.items() if count > 1]
        found += [f"{device} is exclusive and shared" for device in usage.exclusive if device in usage.shares]
        for device, amounts in usage.consumed.items():
            if device.driver == "link.example.com" and amounts["bandwidth"] > parse_quantity(str(BANDWIDTH)) * 10**9:
                found.append(f"{device}: {amounts} is more than there is")
        cards: Counter[str] = Counter()
        for device in usage.exclusive:
            cards[device.pool] += PARTITIONS.get(device.device, 0)
        found += [f"the card of {pool} gives {units} of 8 units" for pool, units in cards.items() if units > 8]
        held: dict[str, CpuSet] = {}
        for allocation in allocations:
            cpus = cpus_of(allocation)
            pool = allocation.results[0].device.pool if allocation.results else ""
            if cpus & held.get(pool, EMPTY):
                found.append(f"CPUs {cpus & held[pool]} of {pool} are held twice")
            held[pool] = held.get(pool, EMPTY) | cpus
        return found

    def usage(self) -> DeviceUsage:
        """The devices and CPUs in use according to the claims."""
        usage = DeviceUsage()
        for claim in self._claims.values():
            if claim.allocation is not None:
                usage.add(claim.allocation)
        return usage

    def leaks(self) -> list[str]:
        """Claims that are allocated for no pod, or reserved for one that is not bound, and containers without their devices."""
        bound = {it["metadata"]["uid"] for it in self.store.list("pods") if it["spec"].get("nodeName")}
        found = [
            f"{claim} is reserved for {uid}"
            for claim in self._claims.values()
            for uid in claim.reserved_for
            if uid not in bound
        ]
        return (
            found
            + [
                f"{claim} is allocated for no pod"
                for claim in self._claims.values()
                if claim.allocation and not claim.reserved_for
            ]
            + [*unserved(self.store, PLUGIN)]
        )
