"""Pods that ask for extended resources which a DeviceClass serves, and what must be true of those that are bound."""

from collections.abc import Iterator
from typing import Any, Final

from koord_numa.sandbox.apiserver import DirectStore

JsonObject = dict[str, Any]

GPU: Final = "example.com/gpu"
NIC: Final = "deviceclass.resource.kubernetes.io/nic.example.com"
"""Implicit extended resource of the device class."""

CLAIMS: Final = "resourceclaims.resource.k8s.io"
ANNOTATION: Final = "resource.kubernetes.io/extended-resource-claim"


def gpu_class(name: str = "gpu-by-name", resource: str = GPU) -> JsonObject:
    """A class of the GPUs that simulated drivers publish, which serves an extended resource."""
    selectors = [{"cel": {"expression": 'device.driver == "gpu.example.com"'}}]
    spec = {"selectors": selectors, "extendedResourceName": resource}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def container(name: str, cpu: str = "100m", **resources: int) -> JsonObject:
    """A container; ``gpu`` and ``nic`` are how many it wants."""
    amounts: JsonObject = {"gpu": GPU, "nic": NIC}
    wanted = {amounts[key]: str(count) for key, count in resources.items()}
    return {"name": name, "image": "none", "resources": {"requests": {"cpu": cpu, **wanted}, "limits": wanted}}


def pod(name: str, *containers: JsonObject, **spec: Any) -> JsonObject:
    """A pod of these containers."""
    made = {"schedulerName": "koord-numa", "containers": list(containers) or [container("main", gpu=1)], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": made}


def sidecar(made: JsonObject) -> JsonObject:
    """An init container that stays."""
    return {**made, "restartPolicy": "Always"}


def unserved(store: DirectStore, advertised: frozenset[str] = frozenset()) -> Iterator[str]:
    """
    Containers of bound pods that have fewer devices than they ask for, and claims that nothing names. ``advertised`` are nodes whose
    kubelets have GPUs of their own.
    """
    named = set()
    for each in store.list("pods"):
        node, status = each["spec"].get("nodeName"), each["status"].get("extendedResourceClaimStatus") or {}
        if not node:
            continue
        named.add(status.get("resourceClaimName"))
        for one in (*each["spec"].get("initContainers", ()), *each["spec"]["containers"]):
            for resource in (GPU, NIC):
                wanted = int(one.get("resources", {}).get("requests", {}).get(resource, 0))
                by_claim = wanted if resource != GPU or node not in advertised else 0
                given = len(set(devices_of(store, status, one["name"], resource)))
                if given < by_claim or (given and not by_claim):
                    yield f"{each['metadata']['name']} on {node}: {one['name']} has {given} of {wanted} {resource}"
    for claim in store.list(CLAIMS):
        if ANNOTATION in claim["metadata"].get("annotations", {}) and claim["metadata"]["name"] not in named:
            yield f"claim {claim['metadata']['name']} is of no bound pod"


def devices_of(store: DirectStore, status: JsonObject, name: str, resource: str) -> Iterator[str]:
    """The devices that a container has for a resource, as its pod's status says."""
    claim = store.find(CLAIMS, status.get("resourceClaimName", ""), "default")
    results = ((claim or {}).get("status") or {}).get("allocation", {}).get("devices", {}).get("results", ())
    requests = [
        it["requestName"]
        for it in status.get("requestMappings", ())
        if (it["containerName"], it["resourceName"]) == (name, resource)
    ]
    for result in results:
        if result["request"] in requests:
            yield f"{result['pool']}/{result['device']}"
