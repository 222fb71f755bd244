"""Simulated drivers, the claim controller and kubelets: claims come and go with pods, and what a driver would refuse is refused."""

from pathlib import Path
from typing import Any

import pytest

from koord_numa.sandbox.apiserver import ApiError, ApiServer, DeleteOptions, DirectStore
from koord_numa.sandbox.controllers import CLAIMS
from koord_numa.sandbox.devices import SimulatedDevices, published
from koord_numa.sandbox.machines.description import read_descriptions

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


def extended(store: DirectStore, node: str) -> Json:
    """A bound pod whose status names a claim for extended resources, which is reserved for it, and the claim."""
    spec = {"containers": [{"name": "c", "image": "none"}]}
    metadata = {"name": "p", "namespace": "default"}
    uid = store.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": True}
    claim = store.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "name": "made",
                "namespace": "default",
                "ownerReferences": [owner],
                "finalizers": ["resource.kubernetes.io/delete-protection"],
            },
            "spec": {"devices": {"requests": [{"name": "cpu", "exactly": {"deviceClassName": "dra.cpu"}}]}},
        }
    )
    status = {
        "allocation": allocation(node, "0-1"),
        "reservedFor": [{"resource": "pods", "name": "p", "uid": uid}],
    }
    store.update({**claim, "status": status}, "status")
    named = {"extendedResourceClaimStatus": {"resourceClaimName": "made", "requestMappings": []}}
    store.patch("pods", "p", {"status": named}, "default", "status")
    store.bind("default", "p", {"target": {"name": node}})
    return store.get(CLAIMS, "made", "default")


async def test_a_claim_for_extended_resources_leaves_with_its_pod(tmp_path: Path) -> None:
    async with ApiServer() as server:
        store = server.store
        (node,) = read_descriptions(MACHINES, tmp_path)
        devices = SimulatedDevices(store, [node])
        devices.start()
        claim = extended(store, node.name)
        assert (devices.kubelets.refusals, list(devices.kubelets.prepared)) == ([], [claim["metadata"]["uid"]])
        store.patch("pods", "p", {"status": {"phase": "Succeeded"}}, "default", "status")
        assert "allocation" not in store.get(CLAIMS, "made", "default")["status"]
        assert devices.kubelets.prepared == {}
        store.delete("pods", "p", "default", DeleteOptions(grace=0))
        assert store.list(CLAIMS) == []
        devices.stop()


async def test_a_claim_created_after_its_pod_left_is_collected(tmp_path: Path) -> None:
    async with ApiServer() as server:
        store = server.store
        (node,) = read_descriptions(MACHINES, tmp_path)
        devices = SimulatedDevices(store, [node])
        devices.start()
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "gone", "uid": "uid-gone", "controller": True}
        metadata = {"name": "late", "namespace": "default", "ownerReferences": [owner]}
        store.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": metadata,
                "spec": {"devices": {"requests": []}},
            }
        )
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


async def test_a_finished_pod_is_not_reserved_for_again() -> None:
    """k/k#141276: a finished pod of a shared claim loses its reservation for good."""
    async with ApiServer() as server:
        store = server.store
        devices = SimulatedDevices(store, [])
        devices.start()
        made(store, "ResourceClaim", "shared", {"devices": {"requests": []}})
        for name in ("done", "runs"):
            metadata = {"name": name, "namespace": "default"}
            spec = {
                "nodeName": "m",
                "containers": [{"name": "c", "image": "none"}],
                "resourceClaims": [{"name": "c", "resourceClaimName": "shared"}],
            }
            store.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        claim = store.find(CLAIMS, "shared", "default")
        assert claim is not None
        store.update({**claim, "status": {"allocation": {"devices": {"results": []}}}}, "status")
        store.patch("pods", "done", {"status": {"phase": "Succeeded"}}, "default", "status")
        store.patch("pods", "runs", {"status": {"phase": "Running"}}, "default", "status")
        devices.stop()
        claim = store.find(CLAIMS, "shared", "default")
    assert claim is not None
    assert [it["name"] for it in claim["status"]["reservedFor"]] == ["runs"]
