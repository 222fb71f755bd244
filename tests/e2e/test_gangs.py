"""Gangs of three dialects on an embedded server, with claims, kubelets that choose CPUs, faults and a scheduler that is killed."""

from collections import defaultdict
from pathlib import Path
from signal import SIGKILL

import pytest

from koord_numa.sandbox.apiserver import Effect, Fault
from tests.cluster.objects import until
from tests.e2e.test_claims import Devices
from tests.e2e.world import CRDS, JsonObject, World, ended, pinned, world

pytestmark = pytest.mark.e2e

MOST_GANGS = 50
"""As many as the machines hold; ``make chaos-round`` runs them, and ``make system`` some of them."""
SIZES = (2, 3, 4)
OPTIONAL = tuple(sorted((CRDS[0].parent / "optional").glob("*.yaml")))
PAIR: JsonObject = {"sockets": 2, "numa": 1, "cores": 8, "threads": 2, "memory": "64Gi"}
STATIC = {"topologyPolicy": "single-numa-node", "cpuPolicy": "static"}
MACHINES: JsonObject = {
    "machines": [
        {"name": "own", "count": 12, **PAIR, "claimedDevices": {"nvidia.com/gpu": [0, 0, 1, 1]}},
        {"name": "kubelet", "count": 10, "style": "kubelet", **PAIR, "kubelet": STATIC},
    ]
}
GANG, GROUP = "gang.scheduling.koordinator.sh/", "pod-group.scheduling.sigs.k8s.io"


def members(number: int) -> list[JsonObject]:
    """The pods of one gang, by a dialect in turn; every fifth gang has claims."""
    name, size, cpus = f"gang-{number:02}", SIZES[number % 3], 1 + number % 5
    made = []
    for index in range(size):
        pod = pinned(f"{name}-{index}", cpus, policy="SingleNUMANode" if number % 2 else "")
        match number % 4:
            case 0:
                pod["spec"]["schedulingGroup"] = {"podGroupName": name}
            case 1:
                pod["metadata"]["labels"][GROUP] = name
            case 2:
                pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] = name
            case _:
                pod["metadata"]["annotations"] |= {GANG + "name": name, GANG + "min-available": str(size)}
        if number % 5 == 0:
            pod["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimTemplateName": "gpu"}]
            pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "c"}]
        made.append(pod)
    return made


def pod_group(number: int) -> list[JsonObject]:
    """The PodGroup of one gang; none where annotations define it."""
    versions = ("scheduling.k8s.io/v1beta1", "scheduling.sigs.k8s.io/v1alpha1", "scheduling.x-k8s.io/v1alpha1")
    kind, size = number % 4, SIZES[number % 3]
    if kind == 3:
        return []
    spec: JsonObject = {"minMember": size} if kind else {"schedulingPolicy": {"gang": {"minCount": size}}}
    metadata = {"name": f"gang-{number:02}", "namespace": "default"}
    return [{"apiVersion": versions[kind], "kind": "PodGroup", "metadata": metadata, "spec": spec}]


def partial(cluster: World) -> dict[str, int]:
    """Gangs of which some members have a node and others have none, with how many have."""
    bound: dict[str, list[bool]] = defaultdict(list)
    for pod in cluster.server.store.list("pods"):
        bound[pod["metadata"]["name"].rpartition("-")[0]].append(bool(pod["spec"].get("nodeName")))
    return {name: sum(nodes) for name, nodes in bound.items() if any(nodes) and not all(nodes)}


def unsaid(cluster: World) -> list[str]:
    """PodGroups whose status does not say that they were scheduled."""
    found = []
    for group in ("scheduling.k8s.io", "scheduling.sigs.k8s.io", "scheduling.x-k8s.io"):
        for each in cluster.server.store.list(f"podgroups.{group}"):
            status = each.get("status") or {}
            conditions = {it["type"]: it["status"] for it in status.get("conditions") or ()}
            if conditions.get("PodGroupInitiallyScheduled") != "True" and status.get("phase") != "Scheduled":
                found.append(each["metadata"]["name"])
    return found


async def test_gangs_of_all_dialects_survive_faults_and_a_kill(chaos_pods: int, tmp_path: Path) -> None:
    gangs = min(MOST_GANGS, chaos_pods // 20)
    async with world(tmp_path, MACHINES, crds=(*CRDS, *OPTIONAL)) as cluster:
        devices = Devices(cluster.server, tmp_path, MACHINES, claims_cpus=False)
        faults = cluster.server.faults
        for seed, (effect, status) in enumerate(((Effect.ERROR, 429), (Effect.ERROR, 503), (Effect.LOSE_ANSWER, 500))):
            faults.add(
                Fault(effect=effect, status=status, resource="pods", subresource="binding", probability=0.05, seed=seed)
            )
        killing = faults.add(
            Fault(effect=Effect.DELAY, resource="pods", subresource="binding", skip=gangs, count=1, seconds=1.0)
        )
        process = await cluster.schedule()
        for number in range(gangs):
            for each in (*pod_group(number), *members(number)):
                cluster.server.store.create(each)
        await until(lambda: faults.hits(killing) > 0)
        await ended(process, SIGKILL)
        await cluster.schedule()
        await until(lambda: not cluster.unbound())
        assert partial(cluster) == {}
        assert cluster.complaints() == []
        assert devices.complaints() == []
        await until(lambda: not unsaid(cluster))


async def test_a_gang_that_never_fits_binds_nothing_beside_others(tmp_path: Path) -> None:
    async with world(
        tmp_path, {"machines": [{**MACHINES["machines"][1], "count": 2}]}, crds=(*CRDS, *OPTIONAL)
    ) as cluster:
        hopeless = [pinned(f"big-{number}", 9) for number in range(5)]  # one fits on each of four NUMA nodes
        for pod in hopeless:
            pod["metadata"]["annotations"] |= {GANG + "name": "big", GANG + "min-available": "5"}
        cluster.create(hopeless)
        cluster.create([pinned(f"small-{number}", 3) for number in range(4)])
        await cluster.schedule()
        await until(lambda: len(cluster.unbound()) == 5 and all(_says(cluster, pod) for pod in hopeless))
        assert partial(cluster) == {}
        assert cluster.complaints() == []


def _says(cluster: World, pod: JsonObject) -> bool:
    current = cluster.server.store.get("pods", pod["metadata"]["name"], "default")
    conditions = (current.get("status") or {}).get("conditions") or ()
    return any("minCount (5) cannot be satisfied" in str(each.get("message")) for each in conditions)
