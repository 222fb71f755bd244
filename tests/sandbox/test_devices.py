"""Simulated drivers, the claim controller and kubelets: claims come and go with pods, and what a driver would refuse is refused."""

from pathlib import Path
from typing import Any

import pytest

from koord_numa.sandbox.apiserver import ApiError, ApiServer, DeleteOptions, DirectStore
from koord_numa.sandbox.devices import SimulatedDevices
from koord_numa.sandbox.devices.claim_controller import CLAIMS
from koord_numa.sandbox.devices.simulated_devices import published
from koord_numa.sandbox.machines.hardware.descriptions import read_descriptions

Json = dict[str, Any]
MACHINES = {
    "machines": [
        {
            "name": "m",
            "style": "kubelet",
            "sockets": 1,
            "numa": 1,
            "cores": 4,
            "threads": 2,
            "memory": "8Gi",
            "kubelet": {"cpuPolicy": "none"},
        }
    ]
}


def made(store: DirectStore, kind: str, name: str, spec: Json) -> Json:
    """An object of resource.k8s.io."""
    metadata = {"name": name, "namespace": "default"}
    return store.create({"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec})


def pod(store: DirectStore) -> Json:
    """A pod with a claim from the template."""
    spec = {
        "containers": [{"name": "c", "image": "none"}],
        "resourceClaims": [{"name": "c", "resourceClaimTemplateName": "t"}],
    }
    return store.create(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"}, "spec": spec}
    )


def allocation(node: str, cpuset: str) -> Json:
    """Two CPUs with this cpuset."""
    result: Json = {"request": "cpu", "driver": "dra.cpu", "pool": node, "device": "cpudevmachine"}
    result |= {"shareID": "00000000-0000-4000-8000-000000000001", "consumedCapacity": {"dra.cpu/cpu": "2"}}
    opaque = {"driver": "dra.cpu", "parameters": {"apiVersion": "v1alpha1", "cpuConfig": {"cpuset": cpuset}}}
    return {
        "devices": {"results": [result], "config": [{"source": "FromClaim", "requests": ["cpu"], "opaque": opaque}]}
    }


async def test_a_claim_lives_as_long_as_its_pod(tmp_path: Path) -> None:
    async with ApiServer() as server:
        store = server.store
        (node,) = read_descriptions(MACHINES, tmp_path)
        devices = SimulatedDevices(store, [node])
        devices.start()
        made(
            store,
            "ResourceClaimTemplate",
            "t",
            {"spec": {"devices": {"requests": [{"name": "cpu", "exactly": {"deviceClassName": "dra.cpu"}}]}}},
        )
        uid = pod(store)["metadata"]["uid"]
        (claim,) = store.list(CLAIMS)
        named = store.get("pods", "p", "default")["status"]["resourceClaimStatuses"]
        assert named == [{"name": "c", "resourceClaimName": claim["metadata"]["name"]}]
        kept = {**claim, "metadata": {**claim["metadata"], "finalizers": ["resource.kubernetes.io/delete-protection"]}}
        status = {
            "allocation": allocation(node.name, "0"),
            "reservedFor": [{"resource": "pods", "name": "p", "uid": uid}],
        }
        store.update({**store.update(kept), "status": status}, "status")
        changed = {**store.get(CLAIMS, claim["metadata"]["name"], "default")}
        changed["status"] = {**changed["status"], "allocation": allocation(node.name, "1")}
        with pytest.raises(ApiError, match="immutable"):
            store.update(changed, "status")
        store.bind("default", "p", {"target": {"name": node.name}})
        assert devices.kubelets.refusals == [
            "p: Failed to prepare dynamic resources: opaque cpuset size 1 does not match the request total of 2 CPUs"
        ]
        store.delete("pods", "p", "default", DeleteOptions(grace=0))
        assert store.list(CLAIMS) == []
        devices.stop()


@pytest.mark.parametrize(
    ("style", "driver", "known"),
    [("kubelet", "auto", True), ("koordinator", "auto", None), ("koordinator", "count", False)],
)
def test_what_the_cpu_driver_publishes(style: str, driver: str, known: bool | None, tmp_path: Path) -> None:
    """Both states of the driver: with CPU ids and siblings, or only with how many CPUs there are."""
    machine = {**MACHINES["machines"][0], "style": style, "cpuDriver": driver}
    (node,) = read_descriptions({"machines": [machine]}, tmp_path)
    cpus = [each for each in published(node) if each["spec"]["driver"] == "dra.cpu"]
    found = ["dra.cpu/cpuIDs" in each["spec"]["devices"][0]["attributes"] for each in cpus]
    assert found == ([] if known is None else [known])
