"""The simulated controller of ResourceClaims."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from koord_numa.sandbox.apiserver import ApiServer, DeleteOptions, DirectStore
from koord_numa.sandbox.controllers import CLAIMS, FINALIZER, ClaimController


@pytest.fixture
async def store() -> AsyncIterator[DirectStore]:
    async with ApiServer() as server:
        ClaimController(server.store).start()
        yield server.store


def reserved_claim(pod: dict[str, Any]) -> dict[str, Any]:
    """A claim that a scheduler created for the extended resources of a pod, and reserved for it."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "pod", "uid": pod["metadata"]["uid"], "controller": True}
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}
    result = {"request": "gpu", "driver": "gpu.example.com", "pool": "node", "device": "gpu-0"}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": "extended",
            "namespace": "default",
            "ownerReferences": [owner],
            "finalizers": [FINALIZER],
        },
        "spec": {"devices": {"requests": [request]}},
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": "pod", "uid": pod["metadata"]["uid"]}],
        },
    }


@pytest.mark.parametrize("claim_first", [True, False], ids=["claim first", "pod first"])
async def test_a_claim_that_its_pod_does_not_name_is_deleted_with_it(store: DirectStore, claim_first: bool) -> None:
    container = {"name": "c", "image": "none"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod", "namespace": "default"}}
    claim = reserved_claim(store.create({**pod, "spec": {"containers": [container]}}))
    status = claim["status"]
    created = store.create(claim)
    store.update({**created, "status": status}, "status")
    if claim_first:
        store.delete(CLAIMS, "extended", "default")
        assert store.find(CLAIMS, "extended", "default") is not None
    store.delete("pods", "pod", "default", DeleteOptions(grace=0))
    assert store.find(CLAIMS, "extended", "default") is None
