"""
A StatefulSet whose claims wait for their first consumer, through the whole program: claims are bound for the node that was chosen, and
whatever is interrupted or fails on the way, every pod ends up where its volume is.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from typing import Final

import pytest

from koord_numa.sandbox.apiserver import DeleteOptions
from tests.cluster.objects import until
from tests.e2e.volume_controller import SELECTED_NODE, VolumeController
from tests.e2e.world import LEASE, JsonObject, World, ended, pinned, world
from tests.preloaded import Running

pytestmark = pytest.mark.e2e

MACHINES: Final = {
    "machines": [
        {"name": "pair", "count": 3, "sockets": 2, "numa": 1, "cores": 8, "threads": 2, "memory": "64Gi"},
    ]
}
MADE: Final = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "made"},
    "provisioner": "csi.example.com",
    "volumeBindingMode": "WaitForFirstConsumer",
}
LOCAL: Final = {**MADE, "metadata": {"name": "local"}, "provisioner": "kubernetes.io/no-provisioner"}


def claim(name: str, storage_class: str) -> JsonObject:
    """A claim of 10Gi."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": "10Gi"}},
        },
    }


def local_volume(name: str, node: str) -> JsonObject:
    """A disk of 20Gi on one node."""
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "20Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "local",
            "local": {"path": "/disk"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        },
    }


def replica(number: int, storage_class: str = "made", cpus: int = 4) -> list[JsonObject]:
    """A pod of a StatefulSet and its claim."""
    pod = pinned(f"db-{number}", cpus, policy="SingleNUMANode")
    pod["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": f"data-db-{number}"}}]
    return [claim(f"data-db-{number}", storage_class), pod]


def configure(cluster: World, timeout: float) -> None:
    """A claim may take so many seconds to be bound."""
    cluster.configuration.write_text(
        "apiVersion: koord-numa.io/v1alpha1\nkind: KoordNumaConfiguration\n"
        f"{LEASE}\nvolumeBindTimeoutSeconds: {timeout}\n"
    )


def node_of(cluster: World, name: str) -> str:
    """Return the node of a pod."""
    return str(cluster.server.store.get("pods", name, "default")["spec"].get("nodeName") or "")


def selected(cluster: World, number: int) -> str:
    """The node that was selected for a claim."""
    found = cluster.server.store.get("persistentvolumeclaims", f"data-db-{number}", "default")
    return str((found["metadata"].get("annotations") or {}).get(SELECTED_NODE, ""))


def events(cluster: World, name: str) -> list[str]:
    """Return the events of a pod."""
    found = cluster.server.store.list("events.events.k8s.io")
    return [str(event.get("note")) for event in found if (event.get("regarding") or {}).get("name") == name]


def check(cluster: World) -> None:
    """Every placed pod runs where its volume is, and its node honoured what was promised."""
    store = cluster.server.store
    for pod in store.list("pods"):
        node = pod["spec"].get("nodeName")
        if not node:
            continue
        bound = store.get("persistentvolumeclaims", f"data-{pod['metadata']['name']}", "default")
        volume = store.get("persistentvolumes", bound["spec"]["volumeName"])
        terms = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        assert terms[0]["matchExpressions"][0]["values"] == [node]
        assert bound["status"]["phase"] == "Bound"
    assert cluster.complaints() == []


async def test_a_statefulset_gets_volumes_on_the_nodes_of_its_pods(tmp_path: Path) -> None:
    async with world(tmp_path, MACHINES) as cluster:
        cluster.server.store.create(MADE)
        controller = VolumeController(cluster.server.store)
        controller.start()
        await cluster.schedule()
        for number in range(5):  # one after the other, as a StatefulSet does
            cluster.create(replica(number))
            await until(lambda: bool(node_of(cluster, f"db-{number}")))  # noqa: B023  (awaited before the next turn)
        assert len(controller.made) == 5
        check(cluster)


async def test_local_volumes_and_numa_nodes_are_honoured_together(tmp_path: Path) -> None:
    """Only pair-1 and pair-2 have disks, and on pair-1 no NUMA node has room for the CPUs."""
    async with world(tmp_path, MACHINES) as cluster:
        store = cluster.server.store
        store.create(LOCAL)
        controller = VolumeController(store)
        controller.start()
        for number in range(2):
            filler = pinned(f"filler-{number}", 8)
            filler["spec"]["nodeName"] = "pair-1"
            cpus = ("0-3,16-19", "8-11,24-27")[number]
            filler["metadata"]["annotations"]["scheduling.koordinator.sh/resource-status"] = f'{{"cpuset":"{cpus}"}}'
            store.create(filler)
        for node in ("pair-1", "pair-2"):
            store.create(local_volume(f"disk-{node}", node))
        await cluster.schedule()
        cluster.create(replica(0, "local", cpus=12))
        await until(lambda: node_of(cluster, "db-0") == "pair-2")
        cluster.create(replica(1, "local", cpus=12))
        await until(lambda: any("persistent volumes to bind" in text for text in events(cluster, "db-1")))
        store.create(local_volume("disk-late", "pair-0"))
        await until(lambda: node_of(cluster, "db-1") == "pair-0")


async def placed_elsewhere(cluster: World, controller: VolumeController) -> None:
    """A pod with a volume comes to the one node for which this controller makes volumes."""
    controller.start()
    await cluster.schedule()
    cluster.create(replica(0))
    await until(lambda: node_of(cluster, "db-0") == "pair-2")


async def test_a_provisioner_that_fails_for_a_node_gets_another(tmp_path: Path) -> None:
    async with world(tmp_path, MACHINES) as cluster:
        cluster.server.store.create(MADE)
        await placed_elsewhere(cluster, VolumeController(cluster.server.store, failing={"pair-0", "pair-1"}))
        check(cluster)


async def test_a_silent_provisioner_is_given_up_after_the_timeout(tmp_path: Path) -> None:
    async with world(tmp_path, MACHINES) as cluster:
        configure(cluster, 1.0)
        cluster.server.store.create(MADE)
        await placed_elsewhere(cluster, VolumeController(cluster.server.store, silent={"pair-0", "pair-1"}))
        await until(lambda: any("VolumeBinding" in text for text in events(cluster, "db-0")))
        check(cluster)


@asynccontextmanager
async def with_node_selected(folder: Path, cpus: int = 4) -> AsyncIterator[tuple[World, VolumeController, Running]]:
    """A scheduler that has selected a node for ``db-0``, and a controller that makes no volume there yet."""
    async with world(folder, MACHINES) as cluster:
        cluster.server.store.create(MADE)
        controller = VolumeController(cluster.server.store, silent={"pair-0", "pair-1", "pair-2"})
        controller.start()
        scheduler = await cluster.schedule()
        cluster.create(replica(0, cpus=cpus))
        await until(lambda: bool(selected(cluster, 0)))
        yield cluster, controller, scheduler


async def test_a_node_lost_during_volume_creation_is_given_up(tmp_path: Path) -> None:
    async with with_node_selected(tmp_path) as (cluster, controller, _):
        store = cluster.server.store
        lost = selected(cluster, 0)
        controller.silent.clear()
        store.delete("nodes", lost, options=DeleteOptions(grace=0))
        await until(lambda: bool(node_of(cluster, "db-0")))
        assert node_of(cluster, "db-0") != lost
        check(cluster)


async def test_a_pod_deleted_during_volume_creation_holds_nothing(tmp_path: Path) -> None:
    async with with_node_selected(tmp_path, cpus=14) as (cluster, controller, _):
        store = cluster.server.store
        store.delete("pods", "db-0", "default", DeleteOptions(grace=0))
        await until(lambda: not selected(cluster, 0))
        controller.silent.clear()
        for number in range(1, 7):  # as many as fit when the first one holds nothing: one on each NUMA node
            cluster.create(replica(number, cpus=14))
        await until(lambda: not cluster.unbound())
        check(cluster)


@pytest.mark.parametrize("number", [SIGKILL, SIGTERM], ids=["killed", "stopped"])
@pytest.mark.parametrize("moment", ["selected", "bound"])
async def test_a_new_scheduler_goes_on_where_the_last_one_ended(tmp_path: Path, number: Signals, moment: str) -> None:
    async with with_node_selected(tmp_path) as (cluster, controller, first):
        chosen = selected(cluster, 0)
        if moment == "selected":
            await ended(first, number)
            controller.silent.clear()
            controller.look_again()
        else:
            controller.silent.clear()
            controller.look_again()
            await ended(first, number)
        await cluster.schedule()
        await until(lambda: node_of(cluster, "db-0") == chosen)
        assert len(controller.made) == 1
        check(cluster)


async def test_a_selected_node_without_room_is_given_up_in_time(tmp_path: Path) -> None:
    """The node that an earlier process selected is full: the claim is provisioned on another node in the end."""
    async with world(tmp_path, MACHINES) as cluster:
        configure(cluster, 1.0)
        store = cluster.server.store
        store.create(MADE)
        for number in range(2):
            filler = pinned(f"filler-{number}", 14, policy="SingleNUMANode")
            filler["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "pair-0"}
            store.create(filler)
        await cluster.schedule()
        await until(lambda: not cluster.unbound())
        wanted, pod = replica(0, cpus=8)
        wanted["metadata"]["annotations"] = {SELECTED_NODE: "pair-0"}
        cluster.create([wanted, pod])
        controller = VolumeController(store, silent={"pair-0"})
        controller.start()
        await until(lambda: node_of(cluster, "db-0") in ("pair-1", "pair-2"))
