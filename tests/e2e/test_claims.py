"""Pods with claims on simulated machines: every driver's and kubelet's check passes, and what is deleted is given back."""

import asyncio
import functools
from collections import Counter
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.sandbox.apiserver import ApiServer, DeleteOptions
from koord_numa.sandbox.devices import ClaimController, ClaimKubelets, device_classes, slices_of
from koord_numa.sandbox.machines.hardware.descriptions import read_descriptions
from tests.cluster.objects import until
from tests.e2e.world import JsonObject, World, ended, world

pytestmark = pytest.mark.e2e

CLAIMS = "resourceclaims.resource.k8s.io"
PODS = 200
MACHINES: JsonObject = {
    "machines": [
        {
            "name": "gpu",
            "count": 20,
            "sockets": 2,
            "numa": 1,
            "cores": 16,
            "threads": 2,
            "memory": "64Gi",
            "devices": {"nvidia.com/gpu": [0, 0, 1, 1], "example.com/nic": [0, 1]},
        },
    ]
}


def template(name: str, *requests: JsonObject, **more: Any) -> JsonObject:
    """A template of claims."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"spec": {"devices": {"requests": list(requests), **more}}},
    }


def request(name: str, device_class: str, **more: Any) -> JsonObject:
    """A request of one device."""
    return {"name": name, "exactly": {"deviceClassName": device_class, **more}}


def cpus(count: int) -> JsonObject:
    """A request of CPUs."""
    return request("cpu", "dra.cpu", capacity={"requests": {"dra.cpu/cpu": str(count)}})


TEMPLATES = (
    template("gpu", request("gpu", "gpu.example.com")),
    template(
        "pair",
        request("gpu", "gpu.example.com"),
        request("nic", "nic.example.com"),
        constraints=[{"matchAttribute": "resource.kubernetes.io/numaNode"}],
    ),
    template("cpus", cpus(4)),
    template("gpu-cpus", request("gpu", "gpu.example.com"), cpus(2)),
)


def pod(name: str, kind: str) -> JsonObject:
    """A pod with one claim from a template."""
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "100m"}, "claims": [{"name": "c"}]}}
    claims = [{"name": "c", "resourceClaimTemplateName": kind}]
    spec = {"schedulerName": "koord-numa", "resourceClaims": claims, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


class Devices:
    """Drivers, the claim controller and the kubelets' side of claims, beside a world's machines."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self.store = server.store
        self.controller = ClaimController(self.store)
        self.kubelets = ClaimKubelets(self.store)
        for each in (*device_classes(), *TEMPLATES):
            self.store.create(each)
        for node in read_descriptions(MACHINES, folder):
            for slice_ in slices_of(node):
                self.store.create(slice_)
        self.controller.start()
        self.kubelets.start()

    def results(self) -> list[JsonObject]:
        """Every allocated device."""
        claims = [claim.get("status", {}).get("allocation") for claim in self.store.list(CLAIMS)]
        return [result for allocation in claims if allocation for result in allocation["devices"]["results"]]

    def complaints(self) -> list[str]:
        """What no run may bring about: refusals of kubelets and drivers, and devices or CPUs that are held twice."""
        exclusive = Counter((it["pool"], it["device"]) for it in self.results() if not it.get("shareID"))
        twice = [f"{device} is held {count} times" for device, count in exclusive.items() if count > 1]
        return [*self.kubelets.refusals, *twice, *self._cpus_twice()]

    def _cpus_twice(self) -> list[str]:
        held: dict[str, CpuSet] = {}
        found = []
        for claim in self.store.list(CLAIMS):
            allocation = claim.get("status", {}).get("allocation") or {"devices": {"results": []}}
            for config in allocation["devices"].get("config") or ():
                pool = allocation["devices"]["results"][0]["pool"]
                given = CpuSet.parse(config["opaque"]["parameters"]["cpuConfig"]["cpuset"])
                if given & held.get(pool, CpuSet()):
                    found.append(f"CPUs {given} of {pool} are held twice")
                held[pool] = held.get(pool, CpuSet()) | given
        return found


async def bound(cluster: World, seconds: float) -> None:
    """Wait until every pod has a node. Looked at seldom: the server runs in this process too."""
    async with asyncio.timeout(seconds):
        while cluster.unbound():  # noqa: ASYNC110  (what is awaited is a condition of the whole system)
            await asyncio.sleep(0.5)


def writes(cluster: World) -> int:
    """Requests about single claims so far."""
    return sum(asked.resource == "resourceclaims" and bool(asked.name) for asked in cluster.server.requests)


async def test_pods_with_claims_pass_every_check_of_their_drivers(tmp_path: Path) -> None:
    async with world(tmp_path, MACHINES) as cluster:
        devices = Devices(cluster.server, tmp_path)
        kinds = ("pair", "gpu", "cpus", "cpus", "gpu-cpus", "cpus", "cpus", "cpus", "cpus", "cpus")
        cluster.create([pod(f"pod-{number:03}", kinds[number % len(kinds)]) for number in range(PODS)])
        await cluster.schedule()
        await bound(cluster, 90)
        assert devices.complaints() == []
        assert len(devices.kubelets.prepared) == PODS
        assert all(claim["status"]["reservedFor"] for claim in cluster.server.store.list(CLAIMS))
        for each in cluster.server.store.list("pods")[: PODS // 2]:
            cluster.server.store.delete("pods", each["metadata"]["name"], "default", DeleteOptions(grace=0))
        cluster.create([pod(f"new-{number:03}", kinds[number % len(kinds)]) for number in range(PODS // 2)])
        await bound(cluster, 90)
        assert devices.complaints() == []
        assert len(cluster.server.store.list(CLAIMS)) == PODS


async def test_a_scheduler_that_is_killed_at_every_write_leaks_nothing(tmp_path: Path) -> None:
    machines: JsonObject = {"machines": [{**MACHINES["machines"][0], "count": 3}]}
    async with world(tmp_path, machines) as cluster:
        devices = Devices(cluster.server, tmp_path)
        # Twelve GPUs: every one is needed, so a single leaked device would keep a pod waiting.
        cluster.create([pod(f"pod-{number:02}", "gpu") for number in range(12)])
        for calls in range(1, 7):  # get, update and update of the status of one claim, then of the next one
            process = await cluster.schedule()
            target = writes(cluster) + calls
            await until(functools.partial(_reached, cluster, target), seconds=30)
            await ended(process, SIGKILL)
        await cluster.schedule()
        await bound(cluster, 60)
        assert devices.complaints() == []
        assert len(devices.results()) == 12


def _reached(cluster: World, target: int) -> bool:
    return writes(cluster) >= target or not cluster.unbound()
