"""Extended resources that DeviceClasses serve by claim: every container gets its devices, and what is deleted is given back."""

import functools
from itertools import dropwhile
from pathlib import Path
from signal import SIGKILL

import pytest

from koord_numa.sandbox.apiserver import DeleteOptions, Effect, Fault
from tests.cluster.objects import until
from tests.e2e.extended import ANNOTATION, CLAIMS, GPU, container, gpu_class, pod, sidecar, unserved
from tests.e2e.test_claims import Devices, bound
from tests.e2e.world import JsonObject, World, ended, world

pytestmark = pytest.mark.e2e

AT_ONCE = DeleteOptions(grace=0)
SIZE: JsonObject = {"sockets": 2, "numa": 1, "cores": 16, "threads": 2, "memory": "64Gi"}
BY_CLAIM: JsonObject = {**SIZE, "claimedDevices": {"nvidia.com/gpu": [0, 0, 1, 1], "example.com/nic": [0, 1]}}
MACHINES: JsonObject = {
    "machines": [
        {"name": "claims", "count": 4, **BY_CLAIM},
        {"name": "plugin", "count": 2, **SIZE, "devices": {GPU: [0, 1]}},
    ]
}
PLUGIN = frozenset({"plugin-0", "plugin-1"})


def mixed_pods() -> list[JsonObject]:
    """Twenty GPUs in all: sixteen by claim and four by a device plugin; the NICs are by claim only."""
    both = pod("both", container("main", gpu=1))
    both["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimTemplateName": "gpu"}]
    init = [container("load", gpu=2), sidecar(container("log", nic=1))]
    return [
        *(pod(f"one-{number}") for number in range(8)),
        pod("two", container("main", gpu=1), container("second", gpu=1, nic=1)),
        pod("init", container("main", gpu=1), initContainers=init),
        pod("nic", container("main", nic=2)),
        both,
    ]


async def test_every_container_has_the_devices_that_it_asks_for(tmp_path: Path) -> None:
    async with world(tmp_path, MACHINES) as cluster:
        devices, store = Devices(cluster.server, tmp_path, MACHINES), cluster.server.store
        store.create(gpu_class())
        cluster.create(mixed_pods())
        await cluster.schedule()
        await bound(cluster)
        assert [*unserved(store, PLUGIN), *devices.complaints(), *devices.leaks()] == []
        # The class serves no pod where the kubelet advertises the resource.
        at_plugin = [it["metadata"]["name"] for it in store.list("pods") if it["spec"]["nodeName"] in PLUGIN]
        made = [it for it in store.list(CLAIMS) if ANNOTATION in it["metadata"].get("annotations", {})]
        assert len(made) == len(mixed_pods()) - len(at_plugin)
        assert len(devices.kubelets.prepared) == len(store.list(CLAIMS))
        owners = {it["metadata"]["ownerReferences"][0]["name"] for it in made}
        assert owners == {it["metadata"]["name"] for it in mixed_pods()} - set(at_plugin)
        for each in store.list("pods"):
            store.delete("pods", each["metadata"]["name"], "default", AT_ONCE)
        await until(lambda: store.list(CLAIMS) == [])


CALLS = {"resource": "resourceclaims,pods", "namespace": "default"}
WRITES = "update,create,patch,delete"


@pytest.mark.parametrize(
    ("effect", "verbs"),
    # To be killed after a read is to be killed before the next call.
    [(Effect.DELAY, f"get,{WRITES}"), (Effect.SLOW_ANSWER, WRITES)],
    ids=["before it has effect", "after it had effect"],
)
async def test_killed_at_any_call_of_a_binding_cycle_nothing_leaks(tmp_path: Path, effect: Effect, verbs: str) -> None:
    """As the test of claims: one node, whose GPUs each pod needs all. A claim that is left over would keep them."""
    machines: JsonObject = {"machines": [{**BY_CLAIM, "name": "claims", "count": 1}]}
    async with world(tmp_path, machines) as cluster:
        devices, store = Devices(cluster.server, tmp_path, machines), cluster.server.store
        store.create(gpu_class())
        faults = cluster.server.faults
        process = await cluster.schedule()
        for skipped in range(40):
            name, since = f"pod-{skipped:02}", len(cluster.server.requests)
            number = faults.add(Fault(effect=effect, verb=verbs, **CALLS, skip=skipped, count=1, seconds=1.0))
            cluster.create([pod(name, container("main", gpu=3), container("second", gpu=1))])
            await until(functools.partial(_struck_or_bound, cluster, number))
            if not faults.hits(number):
                break
            await ended(process, SIGKILL)
            faults.remove(number)
            process = await cluster.schedule()
            await bound(cluster)
            await until(lambda: [*devices.leaks(), *unserved(store)] == [])
            assert devices.complaints() == []
            assert cluster.binds().get(name, 1) == 1  # a bind whose answer has no reader is not logged
            store.delete("pods", name, "default", AT_ONCE)
            await until(lambda: store.list(CLAIMS) == [])
        calls = Fault(verb=verbs, **CALLS)
        undisturbed = [it for it in list(cluster.server.requests)[since:] if calls.matches(it)]
        steps = [(it.verb, it.resource, it.subresource) for it in undisturbed]
    assert skipped >= len(steps)  # killed at each of them
    # Where the pod before is not seen gone yet, its status says first why it waits.
    cycle = [
        ("create", "resourceclaims", ""),
        ("get", "resourceclaims", ""),
        ("update", "resourceclaims", ""),
        ("update", "resourceclaims", "status"),
        ("patch", "pods", "status"),
        ("create", "pods", "binding"),
    ]
    expected = [step for step in cycle if step[0] in verbs.split(",")]
    assert list(dropwhile(("patch", "pods", "status").__eq__, steps))[: len(expected)] == expected


async def test_the_claim_of_a_rejected_bind_is_deleted_and_recreated(tmp_path: Path) -> None:
    machines: JsonObject = {"machines": [{**BY_CLAIM, "name": "claims", "count": 1}]}
    async with world(tmp_path, machines) as cluster:
        devices, store = Devices(cluster.server, tmp_path, machines), cluster.server.store
        store.create(gpu_class())
        refused = Fault(verb="create", resource="pods", subresource="binding", status=422, count=1)
        number = cluster.server.faults.add(refused)
        cluster.create([pod("pod", container("main", gpu=4))])
        await cluster.schedule()
        await bound(cluster)
        assert cluster.server.faults.hits(number) == 1
        asked = [(it.verb, it.status) for it in cluster.server.requests if it.resource == "resourceclaims"]
        writes = [verb for verb, status in asked if verb in ("create", "delete") and status < 300]
        assert writes == ["create", "delete", "create"]
        assert [*unserved(store), *devices.complaints(), *devices.leaks()] == []


async def test_one_eviction_makes_room_for_an_urgent_pod(tmp_path: Path) -> None:
    """On a node with a device plugin the device is free at once; elsewhere the claim of the victim has to be deallocated first."""
    first, second = ({**each, "count": 1} for each in MACHINES["machines"])
    async with world(tmp_path, {"machines": [first, second]}) as cluster:
        devices, store = Devices(cluster.server, tmp_path, {"machines": [first]}), cluster.server.store
        store.create(gpu_class())
        for name, value in (("low", 100), ("high", 1000)):
            store.create(
                {
                    "apiVersion": "scheduling.k8s.io/v1",
                    "kind": "PriorityClass",
                    "metadata": {"name": name},
                    "value": value,
                }
            )
        cluster.create([pod(f"low-{number}", priorityClassName="low") for number in range(6)])
        await cluster.schedule()
        await bound(cluster)
        before = {it["metadata"]["name"]: it["spec"]["nodeName"] for it in store.list("pods")}
        cluster.create([pod("urgent", priorityClassName="high")])
        await until(lambda: bool(store.get("pods", "urgent", "default")["spec"].get("nodeName")))
        left = {it["metadata"]["name"] for it in store.list("pods")} - {"urgent"}
        (victim,) = before.keys() - left
        assert store.get("pods", "urgent", "default")["spec"]["nodeName"] == before[victim]
        plugins = frozenset(node for node in before.values() if node.startswith("plugin"))
        assert [*unserved(store, plugins), *devices.complaints(), *devices.leaks()] == []


def _struck_or_bound(cluster: World, fault: int) -> bool:
    return cluster.server.faults.hits(fault) > 0 or not cluster.unbound()
