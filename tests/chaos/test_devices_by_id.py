"""Pods with mixed device requests on an embedded server, through faults, a fail-over, a kill and a GPU that fails."""

import json
from pathlib import Path
from signal import SIGKILL, SIGTERM

import pytest

from koord_numa.sandbox.apiserver import Effect, Fault
from tests.cluster.objects import until
from tests.e2e.world import CRDS, JsonObject, ended, pinned, world

pytestmark = [pytest.mark.chaos, pytest.mark.e2e]

MOST_PODS, MACHINES = 200, 20
"""The size of a run of ``make chaos``; a run of the suite has a fifth of it."""
DEVICES = CRDS[0].parent / "optional" / "devices-koordinator.yaml"
RACK: JsonObject = {
    "sockets": 2,
    "numa": 1,
    "cores": 32,
    "threads": 2,
    "memory": "256Gi",
    "devicesById": {"gpu": ["0a", "0a", "0b", "0b", "1c", "1c", "1d", "1d"], "rdma": ["0a", "0b", "1c", "1d"]},
}
JOINT = {"deviceTypes": ["gpu", "rdma"]}
SAME = {**JOINT, "requiredScope": "SamePCIe"}
KOORD, SCHEDULING = "koordinator.sh/", "scheduling.koordinator.sh/"
KINDS: tuple[tuple[dict[str, str], dict[str, object], str], ...] = (
    ({KOORD + "gpu": "100"}, {}, ""),
    ({KOORD + "gpu": "50"}, {}, ""),
    ({KOORD + "gpu.shared": "2", KOORD + "gpu-memory-ratio": "60"}, {}, ""),
    (
        {KOORD + "gpu-memory": "20Gi", KOORD + "gpu-core": "25"},
        {"device-allocate-hint": {"gpu": {"requiredTopologyScope": "PCIe"}}},
        "",
    ),
    ({KOORD + "gpu": "200", KOORD + "rdma": "1"}, {"device-joint-allocate": SAME}, ""),
    ({KOORD + "rdma": "1"}, {"device-allocate-hint": {"rdma": {"vfSelector": {}}}}, ""),
    ({KOORD + "gpu": "100", KOORD + "rdma": "1"}, {"device-joint-allocate": JOINT}, "SingleNUMANode"),
    ({"nvidia.com/gpu": "1"}, {}, "SingleNUMANode"),
    ({KOORD + "rdma": "2"}, {"device-allocate-hint": {"rdma": {"allocateStrategy": "RequestsAsCount"}}}, "Restricted"),
    ({}, {}, ""),
)


def asking(number: int) -> JsonObject:
    """A pod of one of ten kinds."""
    amounts, annotations, policy = KINDS[number % len(KINDS)]
    pod = pinned(f"pod-{number:03}", 1 + number % 3, policy=policy)
    for part in pod["spec"]["containers"][0]["resources"].values():
        part |= amounts
    texts = {SCHEDULING + name: json.dumps(value) for name, value in annotations.items()}
    pod["metadata"]["annotations"] = {**pod["metadata"].get("annotations", {}), **texts}
    return pod


async def test_devices_are_held_once_through_fail_over_and_restart(chaos_pods: int, tmp_path: Path) -> None:
    pods = MOST_PODS if chaos_pods >= 1000 else MOST_PODS // 5
    machines = {"machines": [{"name": "gpu", "count": MACHINES * pods // MOST_PODS, **RACK}]}
    async with world(tmp_path, machines, crds=(*CRDS, DEVICES)) as cluster:
        faults = cluster.server.faults
        for seed, (effect, status) in enumerate(((Effect.ERROR, 429), (Effect.ERROR, 503), (Effect.LOSE_ANSWER, 500))):
            faults.add(
                Fault(effect=effect, status=status, resource="pods", subresource="binding", probability=0.05, seed=seed)
            )
        stops = [
            faults.add(
                Fault(effect=Effect.DELAY, resource="pods", subresource="binding", skip=skip, count=1, seconds=1.0)
            )
            for skip in (pods // 4, pods // 2)
        ]
        first = await cluster.schedule()
        standby = await cluster.schedule(KOORD_NUMA_IDENTITY="standby")
        # A GPU that fails stays with its pods and is given to nobody else.
        broken = cluster.rack.nodes["gpu-0"].devices
        for number in range(pods):
            cluster.server.store.create(asking(number))
        await until(lambda: faults.hits(stops[0]) > 0)
        broken.unhealthy.add(("gpu", 7))
        cluster.rack.nodes["gpu-0"].publish_devices()
        await ended(first, SIGTERM)
        await until(lambda: faults.hits(stops[1]) > 0)
        await ended(standby, SIGKILL)
        await cluster.schedule(KOORD_NUMA_IDENTITY="standby")
        await until(lambda: not cluster.unbound())
        assert cluster.complaints() == []
        held = {node.name: node.devices.held for node in cluster.rack.nodes.values()}
        assert sum(len(grants) > 0 for pods_there in held.values() for grants in pods_there.values()) == pods * 9 // 10
