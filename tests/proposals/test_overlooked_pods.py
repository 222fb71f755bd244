"""Running pods are a lower bound of use, whatever an exporter publishes."""

from typing import Any

import pytest

from koord_numa.view.documents import node_entry
from koord_numa.wire.pods import parse_pod
from tests.proposals.cluster import Cluster, Json, cluster, guaranteed, kubelet_nrt, node, pod, zone

GPU = "nvidia.com/gpu"


def running(there: Cluster, *pods: Json) -> None:
    """Pods that were there before the topologies were made."""
    for obj in pods:
        obj["spec"] |= {"nodeName": "n"}
        obj["status"] = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
        there.world.engine.handlers.bound_pods.observe("ADDED", parse_pod(obj))


def vm(name: str, cpus: int) -> Json:
    """A Guaranteed pod with a fractional helper, which NFD leaves out."""
    return pod(name, guaranteed(str(cpus), "2Gi"), guaranteed("15m", "60Mi"))


def trust(there: Cluster) -> tuple[str, str]:
    found = node_entry(there.world.engine.cache.nodes["n"])
    assert found is not None
    return found["state"], found["why"]


def seen(zones: list[Json], *pods: Json, **attributes: str) -> Cluster:
    there = cluster(node("n", 32, gpus=8))
    running(there, *pods)
    there.nrt(kubelet_nrt("n", zones, "single-numa-node", **attributes))
    there.world.clock.now += 200  # every exporter has seen pods by now that run for so long
    there.world.engine.cache.expire_unreported()
    assert not there.world.engine.cache.nodes["n"].unpublished
    return there


@pytest.mark.parametrize("known", [{}, {"cpuManagerPolicyOptions": "full-pcpus-only=false"}])
async def test_use_that_is_not_published_is_charged_to_every_numa_node(known: dict[str, str]) -> None:
    """12 CPUs run, none is published: 16 and 16 free may be 4 and 16, and 10 CPUs fit only where 6 are left over."""
    there = seen([zone(0, {"cpu": "16"}), zone(1, {"cpu": "16"})], vm("vm", 12), **known)
    await there.create(pod("large", guaranteed("6")), pod("small", guaranteed("4")))
    assert there.node_of("large") == ""
    assert there.node_of("small") == "n"
    assert trust(there) == ("uncertain", "the exporter overlooks 12 CPUs of running pods: default/vm")


@pytest.mark.parametrize(("cpus", "fits"), [(4, True), (5, False)])
async def test_any_numa_node_may_hold_the_largest_container(cpus: int, fits: bool) -> None:
    """Pods of 12 and 6 CPUs are overlooked, so 16 and 16 free CPUs may be 4 and 10, or 10 and 4."""
    there = seen([zone(0, {"cpu": "16"}), zone(1, {"cpu": "16"})], vm("a", 12), vm("b", 6))
    await there.create(pod("p", guaranteed(str(cpus))))
    assert (there.node_of("p") == "n") == fits


async def test_containers_tied_to_a_numa_node_leave_the_rest_free() -> None:
    """As reported: 30 and 30 CPUs are overlooked beside 10 published ones of 52 on each NUMA node: 12 and 22 are free."""
    there = cluster(node("n", 104, memory=250))
    running(there, pod("web", guaranteed("10")), vm("a", 30), vm("b", 30))
    zones = [zone(0, {"cpu": "42"}, cpu="52"), zone(1, {"cpu": "52"})]
    there.nrt(kubelet_nrt("n", zones, "single-numa-node"))
    there.world.clock.now += 200
    there.world.engine.cache.expire_unreported()
    await there.create(pod("large", guaranteed("26")), pod("small", guaranteed("20")))
    assert [there.node_of(name) for name in ("large", "small")] == ["", "n"]
    assert trust(there)[0] == "uncertain"


async def test_a_part_of_the_overlooked_use_is_hidden_by_unknown_pods() -> None:
    """Four VMs of 12 CPUs on NUMA nodes of 32 are two on each, however much of their use 2 + 2 CPUs of unknown pods hide."""
    there = cluster(node("n", 64))
    running(there, *(vm(f"vm-{index}", 12) for index in range(4)))
    zones = [zone(numa, {"cpu": "30"}, cpu="32") for numa in range(2)]
    there.nrt(kubelet_nrt("n", zones, "single-numa-node", cpuManagerPolicyOptions=""))
    there.world.clock.now += 200
    there.world.engine.cache.expire_unreported()
    await there.create(pod("large", guaranteed("8")), pod("small", guaranteed("6")))
    assert [there.node_of(name) for name in ("large", "small")] == ["", "n"]


async def test_devices_count_too() -> None:
    """A dead exporter: 3 of 4 GPUs of each NUMA node are in use, and it shows none of them."""
    zones = [zone(numa, {"cpu": "16", GPU: "4"}) for numa in (0, 1)]
    there = seen(zones, *(pod(f"g{at}", guaranteed("2", **{GPU: "3"})) for at in (0, 1)))
    await there.create(pod("g2", guaranteed("2", **{GPU: "2"})))
    assert there.node_of("g2") == ""
    assert "4 CPUs, 6 nvidia.com/gpu of running pods: default/g0, default/g1" in trust(there)[1]


def memory_zones(*available: str, allocatable: str = "32Gi") -> list[Json]:
    return [zone(numa, {"cpu": "16", "memory": free}, memory=allocatable) for numa, free in enumerate(available)]


def large(name: str, memory: str) -> Json:
    """A Guaranteed pod whose memory is bound to a NUMA node, with a fractional helper."""
    return pod(name, guaranteed("2", memory), guaranteed("15m", "60Mi"))


@pytest.mark.parametrize("policy", [{}, {"memoryManagerPolicy": "Static"}])
async def test_unpublished_memory_is_charged_to_every_numa_node(policy: dict[str, str]) -> None:
    """24 and 20 GiB run, none is published: 32 and 32 GiB free are 8 and 12, and 14 GiB fit nowhere although 20 are free in all."""
    there = seen(memory_zones("32Gi", "32Gi"), large("a", "24Gi"), large("b", "20Gi"), **policy)
    await there.create(pod("wide", guaranteed("2", "14Gi")), pod("small", guaranteed("2", "3Gi")))
    assert (there.node_of("wide"), there.node_of("small")) == ("", "n")
    assert "that the exporter overlooks may be on any NUMA node" in there.why("wide")
    assert "4 CPUs, 44.2Gi memory of running pods: default/a, default/b" in trust(there)[1]


async def test_memory_of_one_pod_of_two_is_overlooked() -> None:
    zones = memory_zones("8Gi", "32Gi")
    for each in zones:
        each["resources"] = [one for one in each["resources"] if one["name"] != "cpu"]
    there = seen(zones, pod("a", guaranteed("2", "24Gi")), large("b", "20Gi"), cpuManagerPolicy="none")
    await there.create(pod("wide", guaranteed("2", "13Gi")), pod("small", guaranteed("2", "3Gi")))
    assert (there.node_of("wide"), there.node_of("small")) == ("", "n")
    assert trust(there)[1].startswith("the exporter overlooks 20.1Gi memory of running pods: default/b")


async def test_zones_with_memory_but_no_manager_overlook_nothing() -> None:
    published = [zone(numa, {"cpu": free, "memory": "32Gi"}, cpu="16") for numa, free in enumerate(("14", "16"))]
    assert trust(seen(published, pod("a", guaranteed("2", "24Gi"))))[0] == "ok"


@pytest.mark.parametrize(
    ("available", "pods"),
    [
        pytest.param(("4", "16"), [vm("vm", 12)], id="published-as-it-is"),
        pytest.param(("4", "8"), [vm("vm", 12)], id="more-published-than-known"),
        pytest.param(("16", "16"), [pod("shared", {"requests": {"cpu": "12"}})], id="pods-on-shared-cpus"),
        pytest.param(("16", "16"), [pod("fraction", guaranteed("2500m"))], id="fractions"),
        pytest.param(
            ("14", "16"),
            [pod("init", guaranteed("2"), initContainers=[{"name": "i", "image": "x", "resources": guaranteed("8")}])],
            id="cpus-that-an-init-container-had",
        ),
    ],
)
async def test_nothing_is_overlooked(available: tuple[str, str], pods: list[Any]) -> None:
    zones = [zone(numa, {"cpu": free}, cpu="16") for numa, free in enumerate(available)]
    assert trust(seen(zones, *pods))[0] == "ok"


async def test_a_kubelet_without_exclusive_cpus_overlooks_none() -> None:
    there = seen([zone(0, {"cpu": "16"}), zone(1, {"cpu": "16"})], vm("vm", 12), cpuManagerPolicy="none")
    assert trust(there)[0] == "ok"


async def test_pods_that_end_are_not_missed() -> None:
    ending = vm("vm", 12)
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T01:00:00Z"
    assert trust(seen([zone(0, {"cpu": "16"}), zone(1, {"cpu": "16"})], ending))[0] == "ok"
