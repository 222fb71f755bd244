"""
The kubelet's side of claims: for each pod that was bound, fetch its claims, check that it may use them, and let the drivers prepare them.

Every check of the kubelet and of dra-driver-cpu is made; a pod that would hang in ContainerCreating is on record with the text of
its event.
"""

import json
from dataclasses import dataclass, field
from typing import Any, Final

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.sandbox.apiserver import DirectStore, Subscription
from koord_numa.sandbox.devices.claim_controller import CLAIMS, extended_claim_of
from koord_numa.sandbox.devices.drivers import CPU_DRIVER

Json = dict[str, Any]

SLICES: Final = "resourceslices.resource.k8s.io"


class PrepareError(Exception):
    """A claim cannot be prepared: the text of the event FailedPrepareDynamicResources."""


@dataclass(slots=True)
class ClaimKubelets:
    """All kubelets of a simulated cluster. ``refusals`` are pods that would not start, ``prepared`` claims by uid and node."""

    store: DirectStore
    refusals: list[str] = field(default_factory=list)
    prepared: dict[str, Json] = field(default_factory=dict)  # the claim as prepared, by uid
    # uids of pods that were looked at: a kubelet would try again, and the first failure is what counts here
    _pods: set[str] = field(default_factory=set)
    _subscriptions: list[Subscription] = field(default_factory=list)

    def start(self) -> None:
        """Act on every bound pod from now on."""
        self._subscriptions = [
            self.store.subscribe("pods", self._on_pod),
            self.store.subscribe(CLAIMS, self._on_claim),
        ]

    def stop(self) -> None:
        """Act no more."""
        while self._subscriptions:
            self._subscriptions.pop().cancel()

    def prepared_for(self, pod: str) -> list[Json]:
        """The claims that are prepared and reserved for a pod, which is given by its uid."""
        return [it for it in self.prepared.values() if any(one["uid"] == pod for one in it["status"]["reservedFor"])]

    def _on_claim(self, event: str, claim: Json) -> None:
        # A claim without an allocation has nothing prepared.
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
        made = {
            it["name"]: it.get("resourceClaimName")
            for it in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
        }
        entries = pod["spec"].get("resourceClaims") or ()
        # A claim made from a template has a generated name, known from the pod's status only.
        names = [entry.get("resourceClaimName") or made.get(entry["name"]) for entry in entries]
        # As the kubelet's `claimInfo` code appends it (cm/dra/manager.go, `PrepareResources`).
        if extended := extended_claim_of(pod):
            names.append(extended)
        found: list[Json] = []
        for name in names:
            claim = self.store.find(CLAIMS, name, namespace) if name else None
            if claim is None:
                raise PrepareError(f"fetch ResourceClaim {name}: not found")
            found.append(claim)
        return found

    def _prepare(self, pod: Json, claim: Json) -> None:
        metadata, status = claim["metadata"], claim.get("status") or {}
        who = pod["metadata"]
        if not any(it["uid"] == who["uid"] for it in status.get("reservedFor") or ()):
            raise PrepareError(
                f"pod {who['name']} ({who['uid']}) is not allowed to use ResourceClaim {metadata['name']}"
            )
        if not status.get("allocation"):
            raise PrepareError(f"ResourceClaim {metadata['name']}: not allocated")
        # Two pods may share a claim, and the drivers prepare it once.
        if metadata["uid"] in self.prepared:
            return
        results = status["allocation"]["devices"]["results"]
        for result in results:
            self._check_device(pod, metadata["uid"], result)
        if any(result["driver"] == CPU_DRIVER for result in results):
            self._check_cpus(claim, pod["spec"]["nodeName"])
        self.prepared[metadata["uid"]] = claim

    def _check_device(self, pod: Json, uid: str, result: Json) -> None:
        """The device exists for this node, and no other prepared claim has it."""
        node = pod["spec"]["nodeName"]
        device = self._device(result)
        # Without a node name the slice is of the network: every node reaches its devices.
        if device is None or device[1].get("nodeName") not in (node, None):
            raise PrepareError(f"device {result['device']} of {result['driver']} is not on node {node}")
        key = (result["driver"], result["pool"], result["device"])
        for other, claim in self.prepared.items():
            for held in claim["status"]["allocation"]["devices"]["results"]:
                same = (held["driver"], held["pool"], held["device"]) == key
                # Shares of a device have ids and may stand side by side; its capacity limits them.
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
        """The checks of dra-driver-cpu with an external allocator, in its words."""
        devices = claim["status"]["allocation"]["devices"]
        used = EMPTY
        # Requests in any order: the checks do not depend on it, apart from which text comes first.
        for request in {it["request"] for it in devices["results"] if it["driver"] == CPU_DRIVER}:
            results = [it for it in devices["results"] if it["driver"] == CPU_DRIVER and it["request"] == request]
            cpus = _configured(request, devices.get("config") or ())
            wanted = sum(_whole(result) for result in results)
            if len(cpus) != wanted:
                raise PrepareError(f"opaque cpuset size {len(cpus)} does not match the request total of {wanted} CPUs")
            allowed = self._allowed(results[0])
            # Drivers older than `cpuIDs` publish none, and check nothing of the kind.
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
    """The CPUs that a prepared claim holds by dra.cpu."""
    devices = claim["status"]["allocation"]["devices"]
    requests = {it["request"] for it in devices["results"] if it["driver"] == CPU_DRIVER}
    return CpuSet.of(cpu for request in requests for cpu in _configured(request, devices.get("config") or ()))


def devices_prepared(claim: Json) -> list[str]:
    """The names of the devices of a prepared claim, those that only stand for CPUs left out."""
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
    # A configuration without requests is for all of them (resource/v1 DeviceConfiguration).
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
