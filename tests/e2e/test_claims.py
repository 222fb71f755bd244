"""Pods with claims on simulated machines: every driver's and kubelet's check passes, and what is deleted is given back."""

import functools
from collections import Counter
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.sandbox.apiserver import ApiServer, DeleteOptions, Effect, Fault
from koord_numa.sandbox.apiserver.rules import claim_causes
from koord_numa.sandbox.devices import ClaimController, ClaimKubelets, device_classes, published, slices_of
from koord_numa.sandbox.machines.description import read_descriptions
from tests.cluster.objects import until
from tests.e2e.world import JsonObject, World, ended, world

pytestmark = pytest.mark.e2e

CLAIMS = "resourceclaims.resource.k8s.io"
PODS = 120
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
            "claimedDevices": {"nvidia.com/gpu": [0, 0, 1, 1], "example.com/nic": [0, 1]},
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
    template("all-gpus", request("gpu", "gpu.example.com", allocationMode="All")),
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

    def __init__(
        self, server: ApiServer, folder: Path, machines: JsonObject = MACHINES, *, claims_cpus: bool = True
    ) -> None:
        self.store = server.store
        self.controller = ClaimController(self.store)
        self.kubelets = ClaimKubelets(self.store)
        for each in (*device_classes(), *TEMPLATES):
            self.store.create(each)
        for node in read_descriptions(machines, folder):
            for slice_ in slices_of(node) if claims_cpus else published(node):
                self.store.create(slice_)
        self.controller.start()
        self.kubelets.start()

    def results(self) -> list[JsonObject]:
        """Every allocated device."""
        claims = [claim.get("status", {}).get("allocation") for claim in self.store.list(CLAIMS)]
        return [result for allocation in claims if allocation for result in allocation["devices"]["results"]]

    def complaints(self) -> list[str]:
        """Return forbidden events: rejections by kubelets and drivers, and devices or CPUs that are held twice."""
        exclusive = Counter((it["pool"], it["device"]) for it in self.results() if not it.get("shareID"))
        twice = [f"{device} is held {count} times" for device, count in exclusive.items() if count > 1]
        return [*self.kubelets.refusals, *twice, *self._cpus_twice()]

    def leaks(self) -> list[str]:
        """Claims whose devices no bound pod uses, and pods whose claims are not reserved for them."""
        pods = {it["metadata"]["uid"]: it for it in self.store.list("pods") if it["spec"].get("nodeName")}
        found = []
        for claim in self.store.list(CLAIMS):
            status = claim.get("status") or {}
            users = [it["uid"] for it in status.get("reservedFor") or ()]
            found += [f"{claim['metadata']['name']} is reserved for {uid}" for uid in users if uid not in pods]
            if status.get("allocation") and not users:
                found.append(f"{claim['metadata']['name']} is allocated for no pod")
            found += validation_errors(claim)
        return found

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


def validation_errors(claim: JsonObject) -> list[str]:
    """Return the errors of the API server's validation of a claim (resource/validation, 1.36)."""
    return [f"{claim['metadata']['name']}: {cause}" for cause in claim_causes(claim)]


async def bound(cluster: World) -> None:
    """Wait until every pod has a node."""
    await until(lambda: not cluster.unbound())


async def test_pods_with_claims_pass_every_check_of_their_drivers(tmp_path: Path) -> None:
    async with world(tmp_path, MACHINES) as cluster:
        devices = Devices(cluster.server, tmp_path)
        kinds = ("pair", "gpu", "cpus", "cpus", "gpu-cpus", "cpus", "cpus", "cpus", "cpus", "cpus")
        cluster.create([pod(f"pod-{number:03}", kinds[number % len(kinds)]) for number in range(PODS)])
        await cluster.schedule()
        await bound(cluster)
        assert devices.complaints() == []
        assert len(devices.kubelets.prepared) == PODS
        assert devices.leaks() == []
        for each in cluster.server.store.list("pods")[: PODS // 2]:
            cluster.server.store.delete("pods", each["metadata"]["name"], "default", DeleteOptions(grace=0))
        cluster.create([pod(f"new-{number:03}", kinds[number % len(kinds)]) for number in range(PODS // 2)])
        await bound(cluster)
        assert devices.complaints() == []
        assert len(cluster.server.store.list(CLAIMS)) == PODS


CALLS = {"resource": "resourceclaims,pods", "namespace": "default"}
"""Of a binding cycle; only the scheduler comes over HTTP."""


@pytest.mark.parametrize(
    ("effect", "verbs"),
    # To be killed after a read is to be killed before the next call.
    [(Effect.DELAY, "get,update,create"), (Effect.SLOW_ANSWER, "update,create")],
    ids=["before it has effect", "after it had effect"],
)
async def test_killed_at_any_call_of_a_binding_cycle_nothing_leaks(tmp_path: Path, effect: Effect, verbs: str) -> None:
    """
    One node, and pods that need all its GPUs: a device or reservation that leaks would keep the next pod waiting for ever.

    The first pod is killed at the first call of its binding cycle, the second at the second, until a pod is bound before it comes to that
    many. A call that is held back has its effect seconds after the kill, in the middle of the recovery.
    """
    machines: JsonObject = {"machines": [{**MACHINES["machines"][0], "count": 1}]}
    async with world(tmp_path, machines) as cluster:
        devices = Devices(cluster.server, tmp_path)
        faults = cluster.server.faults
        process = await cluster.schedule()
        for skipped in range(40):
            name, since = f"pod-{skipped:02}", len(cluster.server.requests)
            number = faults.add(Fault(effect=effect, verb=verbs, **CALLS, skip=skipped, count=1, seconds=1.0))
            cluster.create([greedy(name)])
            await until(functools.partial(_struck_or_bound, cluster, number))
            if not faults.hits(number):
                break
            await ended(process, SIGKILL)
            faults.remove(number)
            process = await cluster.schedule()
            await bound(cluster)
            await until(lambda: devices.leaks() == [])
            assert devices.complaints() == []
            assert cluster.binds().get(name, 1) == 1  # a bind whose answer has no reader is not logged
            cluster.server.store.delete("pods", name, "default", DeleteOptions(grace=0))
            assert devices.results() == []
        calls = Fault(verb=verbs, **CALLS)
        undisturbed = [it for it in list(cluster.server.requests)[since:] if calls.matches(it)]
        steps = [(it.verb, it.resource, it.subresource) for it in undisturbed]
    assert skipped >= len(steps)  # killed at each of them
    claim = [("get", "resourceclaims", ""), ("update", "resourceclaims", ""), ("update", "resourceclaims", "status")]
    expected = [step for step in (*claim, *claim, ("create", "pods", "binding")) if step[0] in verbs.split(",")]
    assert steps[: len(expected)] == expected


def _struck_or_bound(cluster: World, fault: int) -> bool:
    return cluster.server.faults.hits(fault) > 0 or not cluster.unbound()


def greedy(name: str) -> JsonObject:
    """A pod with two claims: all four GPUs of a node, and some of its CPUs."""
    made = pod(name, "all-gpus")
    made["spec"]["resourceClaims"].append({"name": "cpus", "resourceClaimTemplateName": "cpus"})
    return made
