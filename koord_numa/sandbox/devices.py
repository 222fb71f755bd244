"""Simulated dynamic resource allocation: drivers that publish slices, and the DRA manager of kubelets."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.sandbox.apiserver import DirectStore, Subscription
from koord_numa.sandbox.controllers import CLAIMS, ClaimController, claim_names, extended_claim_of
from koord_numa.sandbox.machines.description import CpuDriver, Hardware, NodeDescription, Style

# Drivers of simulated machines, which publish CPUs and the devices that no device plugin advertises.
#
# GPUs and NICs have ``resource.kubernetes.io/numaNode`` and ``pcieRoot``, as current drivers publish them. The CPU
# driver is dra-driver-cpu with ``groupBy: machine`` and an external allocator, with or (like older versions) without
# ``cpuIDs`` and ``smtLayout``.

Json = dict[str, Any]

CPU_DRIVER: Final = "dra.cpu"
CPU_DEVICE: Final = "cpudevmachine"
LONGEST_TEXT: Final = 64
"""Maximum bytes of a string attribute (resource/v1 DeviceAttributeMaxValueLength)."""


def device_classes() -> list[Json]:
    """Return a DeviceClass per driver."""
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": driver},
            "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]},
        }
        for driver in ("gpu.example.com", "nic.example.com", CPU_DRIVER)
    ]


def slices_of(node: NodeDescription, *, layout: bool = True) -> list[Json]:
    """Return the ResourceSlices of a machine. With ``layout`` the CPU driver publishes CPU ids and the SMT layout."""
    made = [_cpu_slice(node, layout)]
    for driver, word in (("gpu.example.com", "gpu"), ("nic.example.com", "nic")):
        devices = [_device(driver, number, it.numa) for number, it in enumerate(_of_kind(node.hardware, word))]
        if devices:
            made.append(_slice(node.name, driver, devices))
    return made


def _of_kind(hardware: Hardware, word: str) -> Iterator[Any]:
    for device in hardware.claimed_devices:
        if word in device.resource or (word == "nic" and "rdma" in device.resource):
            yield device


def _device(driver: str, number: int, numa: int | None) -> Json:
    attributes: Json = {"index": {"int": number}, "model": {"string": "A100" if "gpu" in driver else "CX7"}}
    if numa is not None:
        attributes["resource.kubernetes.io/numaNode"] = {"int": numa}
        attributes["resource.kubernetes.io/pcieRoot"] = {"string": f"pci0000:{numa:02x}"}
    return {"name": f"{driver.partition('.')[0]}-{number}", "attributes": attributes}


def _cpu_slice(node: NodeDescription, layout: bool) -> Json:
    cpus = node.hardware.machine.all - node.reserved
    layout_text = smt_layout(CpuSet(core.bits) for core in node.hardware.machine.cores)
    attributes: Json = {
        "dra.cpu/numCPUs": {"int": len(cpus)},
        "dra.cpu/smtEnabled": {"bool": len(cpus) > 0 and layout_text.find(">") > 0},
    }
    texts = {"dra.cpu/cpuIDs": str(cpus), "dra.cpu/smtLayout": layout_text}
    # The API server rejects longer strings, so the driver omits the layout.
    if layout and all(len(text) <= LONGEST_TEXT for text in texts.values()):
        attributes |= {name: {"string": text} for name, text in texts.items()}
    device = {
        "name": CPU_DEVICE,
        "allowMultipleAllocations": True,
        "attributes": attributes,
        "capacity": {"dra.cpu/cpu": {"value": str(len(cpus))}},
    }
    return _slice(node.name, CPU_DRIVER, [device])


def smt_layout(cores: Iterable[CpuSet]) -> str:
    """Return the SMT layout such as ``0-7>4``: the CPUs of all sibling pairs and the id distance of siblings.

    CPUs without a sibling are last.
    """
    pairs: dict[int, list[int]] = {}
    single: list[int] = []
    for core in cores:
        cpus = sorted(core)
        if len(cpus) == 2:
            pairs.setdefault(cpus[1] - cpus[0], []).extend(cpus)
        else:
            single.extend(cpus)
    entries = [f"{CpuSet.of(cpus)}>{stride}" for stride, cpus in sorted(pairs.items())]
    return ";".join(entries + ([str(CpuSet.of(single))] if single else []))


def _slice(node: str, driver: str, devices: list[Json]) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{driver}"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


# The DRA manager of kubelets.
#
# It fetches the claims of bound pods, checks reservations and allocations, and prepares the devices, with all checks of
# the kubelet and of dra-driver-cpu. A pod that would hang in ContainerCreating is recorded with the message of its
# event.

SLICES: Final = "resourceslices.resource.k8s.io"


class PrepareError(Exception):
    """A claim that cannot be prepared. The text is the message of the event FailedPrepareDynamicResources."""


@dataclass(slots=True)
class ClaimKubelets:
    """All kubelets of a simulated cluster. ``refusals`` are pods that fail to start, ``prepared`` are claims by uid."""

    store: DirectStore
    refusals: list[str] = field(default_factory=list)
    prepared: dict[str, Json] = field(default_factory=dict)  # the claim at its preparation, by uid
    # uids of processed pods: a kubelet retries, but only the first failure matters here
    _pods: set[str] = field(default_factory=set)
    _subscriptions: list[Subscription] = field(default_factory=list)

    def start(self) -> None:
        """Subscribe to pods and claims. Existing pods are processed first."""
        self._subscriptions = [
            self.store.subscribe("pods", self._on_pod),
            self.store.subscribe(CLAIMS, self._on_claim),
        ]

    def stop(self) -> None:
        """Cancel the subscriptions."""
        while self._subscriptions:
            self._subscriptions.pop().cancel()

    def prepared_for(self, pod: str) -> list[Json]:
        """Return the prepared claims that are reserved for the pod with this uid."""
        return [it for it in self.prepared.values() if any(one["uid"] == pod for one in it["status"]["reservedFor"])]

    def _on_claim(self, event: str, claim: Json) -> None:
        # Nothing is prepared for a claim without an allocation.
        if event == "DELETED" or not (claim.get("status") or {}).get("allocation"):
            self.prepared.pop(claim["metadata"]["uid"], None)

    def _on_pod(self, event: str, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        if event == "DELETED":
            self._pods.discard(uid)
            return
        has_claims = pod["spec"].get("resourceClaims") or extended_claim_of(pod)
        if not pod["spec"].get("nodeName") or not has_claims or uid in self._pods:
            return
        self._pods.add(uid)
        try:
            for claim in self._claims_of(pod):
                self._prepare(pod, claim)
        except PrepareError as error:
            text = f"Failed to prepare dynamic resources: {error}"
            self.refusals.append(f"{pod['metadata']['name']}: {text}")
            self.store.create(_event(pod, text))

    def _claims_of(self, pod: Json) -> list[Json]:
        namespace = pod["metadata"]["namespace"]
        found: list[Json] = []
        # Claims from templates have generated names, which only the status of the pod or its PodGroup holds. The claim for extended
        # resources is the last, like in the kubelet (cm/dra/manager.go, `PrepareResources`).
        for name, _ in claim_names(self.store, pod):
            claim = self.store.find(CLAIMS, name, namespace) if name else None
            if claim is None:
                raise PrepareError(f"fetch ResourceClaim {name}: not found")
            found.append(claim)
        return found

    def _prepare(self, pod: Json, claim: Json) -> None:
        metadata, status = claim["metadata"], claim.get("status") or {}
        who = pod["metadata"]
        groups = {group["metadata"]["uid"] for _, group in claim_names(self.store, pod) if group is not None}
        if not any(it["uid"] in {who["uid"], *groups} for it in status.get("reservedFor") or ()):
            raise PrepareError(
                f"pod {who['name']} ({who['uid']}) is not allowed to use ResourceClaim {metadata['name']}"
            )
        if not status.get("allocation"):
            raise PrepareError(f"ResourceClaim {metadata['name']}: not allocated")
        # Pods may share a claim. The drivers prepare it once.
        if metadata["uid"] in self.prepared:
            return
        results = status["allocation"]["devices"]["results"]
        for result in results:
            self._check_device(pod, metadata["uid"], result)
        if any(result["driver"] == CPU_DRIVER for result in results):
            self._check_cpus(claim, pod["spec"]["nodeName"])
        self.prepared[metadata["uid"]] = claim

    def _check_device(self, pod: Json, uid: str, result: Json) -> None:
        """Check that the device exists on this node and that no other prepared claim uses it."""
        node = pod["spec"]["nodeName"]
        device = self._device(result)
        # A slice without a node name describes network-attached devices, which are accessible from every node.
        if device is None or device[1].get("nodeName") not in (node, None):
            raise PrepareError(f"device {result['device']} of {result['driver']} is not on node {node}")
        key = (result["driver"], result["pool"], result["device"])
        for other, claim in self.prepared.items():
            for held in claim["status"]["allocation"]["devices"]["results"]:
                same = (held["driver"], held["pool"], held["device"]) == key
                # Shares of a device have ids and may coexist within the capacity of the device.
                if same and other != uid and not (held.get("shareID") and result.get("shareID")):
                    raise PrepareError(f"device {'/'.join(key)} is prepared for claim {claim['metadata']['name']}")

    def _device(self, result: Json) -> tuple[Json, Json] | None:
        for each in self.store.list(SLICES):
            spec = each["spec"]
            if (spec["driver"], spec["pool"]["name"]) == (result["driver"], result["pool"]):
                for device in spec.get("devices") or ():
                    if device["name"] == result["device"]:
                        return device, spec
        return None

    def _check_cpus(self, claim: Json, node: str) -> None:
        """Make the checks of dra-driver-cpu with an external allocator, with its error messages."""
        devices = claim["status"]["allocation"]["devices"]
        used = EMPTY
        # The order of the requests affects only which error is reported first.
        for request in {it["request"] for it in devices["results"] if it["driver"] == CPU_DRIVER}:
            results = [it for it in devices["results"] if it["driver"] == CPU_DRIVER and it["request"] == request]
            cpus = _configured(request, devices.get("config") or ())
            wanted = sum(_whole(result) for result in results)
            if len(cpus) != wanted:
                raise PrepareError(f"opaque cpuset size {len(cpus)} does not match the request total of {wanted} CPUs")
            found = self._device(results[0])
            text = (found[0].get("attributes") or {}).get("dra.cpu/cpuIDs") if found else None
            allowed = CpuSet.parse(text["string"]) if text else None
            # Drivers older than `cpuIDs` do not publish CPU ids, so there is nothing to check.
            if allowed is not None and not cpus <= allowed:
                raise PrepareError(f"opaque cpuset {cpus} has offline, unmanaged or reserved CPUs {cpus - allowed}")
            if cpus & used:
                raise PrepareError(f"opaque cpuset {cpus}: CPUs are used by another request of the claim")
            used |= cpus
        held = self._held(node)
        if used & held:
            raise PrepareError(f"cpuset {used}: conflict with already allocated claims: {used & held}")

    def _held(self, node: str) -> CpuSet:
        held = EMPTY
        for claim in self.prepared.values():
            results = claim["status"]["allocation"]["devices"]["results"]
            if any(it["driver"] == CPU_DRIVER and it["pool"] == node for it in results):
                held |= cpus_prepared(claim)
        return held


def cpus_prepared(claim: Json) -> CpuSet:
    """Return the CPUs that a prepared claim holds through dra.cpu."""
    devices = claim["status"]["allocation"]["devices"]
    requests = {it["request"] for it in devices["results"] if it["driver"] == CPU_DRIVER}
    return CpuSet.of(cpu for request in requests for cpu in _configured(request, devices.get("config") or ()))


def devices_prepared(claim: Json) -> list[str]:
    """Return the device names of a prepared claim without CPU devices."""
    results = claim["status"]["allocation"]["devices"]["results"]
    return [str(it["device"]) for it in results if it["driver"] != CPU_DRIVER]


def _event(pod: Json, text: str) -> Json:
    about = {key: pod["metadata"][key] for key in ("name", "namespace", "uid")}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{about['name']}.", "namespace": about["namespace"]},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", **about},
        "type": "Warning",
        "reason": "FailedPrepareDynamicResources",
        "message": text,
    }


def _configured(request: str, configs: Any) -> CpuSet:
    ours = [it for it in configs if (it.get("opaque") or {}).get("driver") == CPU_DRIVER]
    if any(it["source"] == "FromClass" for it in ours):
        raise PrepareError("configuration from DeviceClass is not supported")
    # A configuration without requests applies to all requests (resource/v1 DeviceConfiguration).
    found = [it for it in ours if request in (it.get("requests") or (request,))]
    if len(found) != 1:
        raise PrepareError(
            f'opaque config: request "{request}" is targeted by {len(found)} configurations, must be targeted by exactly 1'
        )
    parameters = found[0]["opaque"]["parameters"]
    parameters = json.loads(parameters) if isinstance(parameters, str) else parameters
    if parameters.get("apiVersion") != "v1alpha1":
        raise PrepareError("unsupported opaque config apiVersion")
    text = (parameters.get("cpuConfig") or {}).get("cpuset")
    if not text:
        raise PrepareError("cpuConfig.cpuset is empty or missing")
    try:
        return CpuSet.parse(text)
    except ValueError as error:
        raise PrepareError(f"cpuConfig.cpuset: {error}") from None


def _whole(result: Json) -> int:
    text = (result.get("consumedCapacity") or {}).get("dra.cpu/cpu")
    if text is None:
        raise PrepareError(f'CPU capacity "dra.cpu/cpu" for device {result["device"]} is missing')
    if not str(text).isdigit():
        raise PrepareError("must be a whole number")
    return int(text)


class SimulatedDevices:
    """Dynamic resource allocation in a sandbox: devices, claim controller, and kubelets with drivers, started and stopped together.

    The CPU driver runs on nodes where neither the kubelet nor Koordinator's agent selects CPUs, or where the
    description sets ``cpuDriver``.
    """

    def __init__(self, store: DirectStore, nodes: Sequence[NodeDescription]) -> None:
        """Create the claim controller and the kubelets. Nothing is published before ``start``."""
        self._store = store
        self._nodes = nodes
        self._controller = ClaimController(store)
        self.kubelets = ClaimKubelets(store)

    def start(self) -> None:
        """Publish the devices of the machines and process pods and claims."""
        for document in (*device_classes(), *(each for node in self._nodes for each in published(node))):
            self._store.apply(document)
        self._controller.start()
        self.kubelets.start()

    def stop(self) -> None:
        """Stop processing. Published objects remain."""
        self._controller.stop()
        self.kubelets.stop()


def published(node: NodeDescription) -> list[dict[str, Any]]:
    """Return the ResourceSlices that are published for a machine."""
    # A static kubelet and Koordinator's agent select CPUs themselves: an additional driver would allocate the same CPUs
    # twice.
    by_claim = node.style is Style.KUBELET and node.kubelet.cpu_policy != "static"
    by_claim = by_claim or node.cpu_driver is not CpuDriver.AUTO
    slices = slices_of(node, layout=node.cpu_driver is not CpuDriver.COUNT)
    return [each for each in slices if by_claim or each["spec"]["driver"] != CPU_DRIVER]


__all__ = ["ClaimController", "ClaimKubelets", "PrepareError", "SimulatedDevices", "device_classes", "slices_of"]
