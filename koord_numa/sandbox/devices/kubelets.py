"""The DRA manager of kubelets.

It fetches the claims of bound pods, checks reservations and allocations, and prepares the devices, with all checks of
the kubelet and of dra-driver-cpu. A pod that would hang in ContainerCreating is recorded with the message of its
event.
"""

import json
from dataclasses import dataclass, field
from typing import Any, Final

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.sandbox.apiserver import DirectStore, Subscription
from koord_numa.sandbox.devices.claim_controller import CLAIMS, claim_names, extended_claim_of
from koord_numa.sandbox.devices.drivers import CPU_DRIVER

Json = dict[str, Any]

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
            allowed = self._allowed(results[0])
            # Drivers older than `cpuIDs` do not publish CPU ids, so there is nothing to check.
            if allowed is not None and not cpus <= allowed:
                raise PrepareError(f"opaque cpuset {cpus} has offline, unmanaged or reserved CPUs {cpus - allowed}")
            if cpus & used:
                raise PrepareError(f"opaque cpuset {cpus}: CPUs are used by another request of the claim")
            used |= cpus
        held = self._held(node)
        if used & held:
            raise PrepareError(f"cpuset {used}: conflict with already allocated claims: {used & held}")

    def _allowed(self, result: Json) -> CpuSet | None:
        found = self._device(result)
        text = (found[0].get("attributes") or {}).get("dra.cpu/cpuIDs") if found else None
        return CpuSet.parse(text["string"]) if text else None

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
