"""Machines with topologies and the pods that are placed on them, for figures of our own."""

from collections.abc import Callable, Mapping
from typing import Any, Final

JsonObject = dict[str, Any]

KINDS: Final = (("LSR", "2", ""), ("LS", "1", ""), ("LSR", "4", "SingleNUMANode"), ("LS", "500m", ""), ("LSE", "2", ""))
"""QoS class, CPUs and NUMA policy of the pods, in turn."""

QOS: Final = "koordinator.sh/qosClass"
NUMA_SPEC: Final = "scheduling.koordinator.sh/numa-topology-spec"


def _machines(**more: Any) -> Callable[[int], JsonObject]:
    """So many machines of two sockets with 32 CPUs each."""
    shape = {"sockets": 2, "numa": 1, "cores": 16, "threads": 2, "memory": "128Gi", **more}
    return lambda count: {"machines": [{"name": "node", "count": count, **shape}]}


def _exporting(count: int) -> JsonObject:
    """
    Machines whose topologies are as large as real ones: 64 CPUs, four GPUs, huge pages.

    Of two machines one is followed by Koordinator's agent (8 KB with every CPU listed), one by an exporter beside its kubelet (2 KB).
    """
    gpus = {"nvidia.com/gpu": [0, 0, 1, 1]}
    kubelet = {"topologyPolicy": "single-numa-node", "cpuPolicy": "static", "memoryPolicy": "Static"}
    shape = {"sockets": 2, "numa": 1, "cores": 16, "threads": 2, "memory": "256Gi", "pods": 250, "devices": gpus}
    # Odd and even in turn, so that pods by number meet both kinds.
    odd = [{"name": f"node-{number}", **shape, "style": "kubelet", "kubelet": kubelet} for number in range(1, count, 2)]
    even = [{"name": f"node-{number}", **shape} for number in range(0, count, 2)]
    return {"machines": [*even, *odd]}


MACHINES: Final[Mapping[str, Callable[[int], JsonObject]]] = {
    "scheduler": _machines(),
    "kubelet": _machines(style="kubelet", kubelet={"topologyPolicy": "single-numa-node", "cpuPolicy": "static"}),
    "exporting": _exporting,
}
"""By who chooses CPUs; ``exporting`` has both kinds."""


def pod(number: int, **spec: Any) -> JsonObject:
    """One of five kinds of pods, small enough that ten of them fit on a machine."""
    qos, cpu, policy = KINDS[number % len(KINDS)]
    return numa_pod(f"pod-{number:06}", qos, cpu, policy, **spec)


def numa_pod(name: str, qos: str, cpu: str, policy: str = "", **spec: Any) -> JsonObject:
    """A pod of one container that requests what it is limited to."""
    amounts = {"cpu": cpu, "memory": "1Gi"}
    metadata: JsonObject = {"name": name, "namespace": "default", "labels": {QOS: qos} if qos else {}}
    if policy:
        metadata["annotations"] = {NUMA_SPEC: f'{{"numaTopologyPolicy":"{policy}"}}'}
    container = {"name": "main", "image": "none", "resources": {"requests": amounts, "limits": amounts}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"schedulerName": "koord-numa", "containers": [container], **spec},
    }


def running(made: JsonObject) -> JsonObject:
    """The status that a kubelet has written of a pod with one container when it runs and is ready, as large as real ones."""
    container = made["spec"]["containers"][0]
    since = "2026-01-01T00:00:00Z"
    true = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    status = {
        "name": container["name"],
        "image": container["image"],
        "imageID": f"{container['image']}@sha256:{'0' * 64}",
        "containerID": f"containerd://{'0' * 64}",
        "ready": True,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": since}},
        "lastState": {},
        "allocatedResources": container["resources"]["requests"],
        "resources": container["resources"],
    }
    return {
        "phase": "Running",
        "conditions": [
            {"type": name, "status": "True", "lastProbeTime": None, "lastTransitionTime": since} for name in true
        ],
        "hostIP": "10.0.0.1",
        "hostIPs": [{"ip": "10.0.0.1"}],
        "podIP": "10.1.0.1",
        "podIPs": [{"ip": "10.1.0.1"}],
        "startTime": since,
        "containerStatuses": [status],
    }
