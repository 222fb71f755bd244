"""The stories under ``examples/stories``: applied to an embedded API server with the real operator, and what each README claims."""

import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from koord_numa.core.cpuset import CpuSet
from koord_numa.sandbox import definitions
from koord_numa.sandbox.apiserver import DirectStore
from koord_numa.sandbox.controllers import JobController
from koord_numa.sandbox.devices import SimulatedDevices
from koord_numa.settings import Settings, load_settings
from tests.cluster.objects import until
from tests.e2e.world import World, world
from tests.operator.operating import SETTINGS, operating

pytestmark = pytest.mark.e2e

STORIES: Final = Path(__file__).parents[2] / "examples" / "stories"
MACHINES: Final = yaml.safe_load((STORIES / "machines.yaml").read_text())
Pods = Mapping[str, dict[str, Any]]


class Seen:
    """The pods of a story once nothing changes any more."""

    def __init__(self, cluster: World) -> None:
        self.pods: Pods = {pod["metadata"]["name"]: pod for pod in cluster.server.store.list("pods")}
        self.rebinds = cluster.server.store.list("rebindresources.scheduling.koordinator.sh")
        self.refusals = cluster.rack.refusals
        self.claims = cluster.server.store.list("resourceclaims.resource.k8s.io")
        self.machine = cluster.rack.nodes["own-0"].description.hardware.machine  # those of all nodes are alike

    def node(self, name: str) -> str:
        return str(self.pods[name]["spec"].get("nodeName") or "")

    def status(self, name: str) -> dict[str, Any]:
        text = self.pods[name]["metadata"].get("annotations", {}).get("scheduling.koordinator.sh/resource-status", "{}")
        found: dict[str, Any] = json.loads(text)
        return found

    def cpus(self, name: str) -> CpuSet:
        return CpuSet.parse(self.status(name).get("cpuset", ""))

    def numa(self, name: str) -> list[int]:
        return [entry["node"] for entry in self.status(name).get("numaNodeResources", ())]

    def cores(self, name: str) -> set[int]:
        return {self.machine.core_bits[cpu] for cpu in self.cpus(name)}

    def why(self, name: str) -> str:
        conditions = self.pods[name]["status"].get("conditions", ())
        return next((str(one.get("message", "")) for one in conditions if one["type"] == "PodScheduled"), "")


def full_cores(seen: Seen) -> None:
    assert len(seen.cores("engine")) == 2
    assert len(seen.cpus("engine")) == 4
    assert seen.node("odd") == ""
    assert "5" in seen.why("odd")


def spread(seen: Seen) -> None:
    assert len(seen.cpus("batch")) == len(seen.cores("batch")) == 4


def exclusive(seen: Seen) -> None:
    assert len(seen.cores("left") | seen.cores("right")) == 4


def single_numa(seen: Seen) -> None:
    assert len(seen.numa("database")) == 1
    assert len(seen.cpus("database")) == 12
    assert seen.node("too-wide") == ""
    assert "the largest that fits is 16 CPUs" in seen.why("too-wide")


def restricted(seen: Seen) -> None:
    assert len(seen.numa("wide")) == 2
    assert len(seen.numa("narrow")) == 1


def gpu_and_cpu(seen: Seen) -> None:
    trainers = [f"trainer-{number}" for number in range(4)]
    assert {seen.node(name) for name in trainers} == {"gpu"}
    assert sorted(numa for name in trainers for numa in seen.numa(name)) == [0, 0, 1, 1]
    for name in trainers:
        [entry] = seen.status(name)["numaNodeResources"]
        assert entry["resources"]["example.com/gpu"] == "1"
        assert seen.machine.numa_of(seen.cpus(name)) == 1 << entry["node"]


def shared_pool(seen: Seen) -> None:
    assert len(seen.cpus("pinned")) == 4
    assert seen.node("web") == "own-0"
    assert not seen.cpus("web")
    assert len(seen.numa("web")) == 1


def kubelet_owned(seen: Seen) -> None:
    assert seen.node("guaranteed") == "kubelet"
    assert seen.node("odd") == ""
    assert "kubelet" in seen.why("odd")


def preemption(seen: Seen) -> None:
    assert seen.node("urgent") == "own-0"
    assert len({"filler", "other"} & seen.pods.keys()) == 1
    assert len(seen.numa("urgent")) == 1


def freed_devices(seen: Seen) -> None:
    assert seen.node("urgent").startswith("claimed")
    assert len({"trainer-0", "trainer-1"} & seen.pods.keys()) == 1
    held = [it["status"]["allocation"]["devices"]["results"][0]["device"] for it in seen.claims]
    assert sorted(held) == ["gpu-0", "gpu-1"]


def automatic_rebind(seen: Seen) -> None:
    assert seen.node("database") == "own-0"
    assert len(seen.numa("database")) == 1
    for name in ("left", "right"):
        assert len(seen.cpus(name)) == 8
        assert seen.machine.numa_of(seen.cpus(name)).bit_count() == 1
    [rebind] = seen.rebinds
    assert rebind["spec"]["nodeName"] == "own-0"
    assert "database" in rebind["metadata"]["annotations"]["koord-numa/rebind-reason"]
    assert rebind["status"]["phase"] == "Succeed"


def two_schedulers(seen: Seen) -> None:
    assert sorted(bool(seen.node(name)) for name in ("ours", "too-many")) == [False, True]


def statefulset_local_volumes(seen: Seen) -> None:
    assert [seen.node(f"db-{number}") for number in range(2)] == ["own-0", "own-1"]
    assert all(len(seen.numa(f"db-{number}")) == 1 for number in range(2))


def claims(seen: Seen) -> None:
    placed = sorted(name for name in seen.pods if seen.node(name))
    assert placed == ["trainer-0", "trainer-1"]
    sides = []
    for name in placed:
        [claim] = [one for one in seen.claims if one["metadata"]["ownerReferences"][0]["name"] == name]
        devices = claim["status"]["allocation"]["devices"]
        [gpu] = [one["device"] for one in devices["results"] if one["driver"] == "gpu.example.com"]
        [config] = devices["config"]
        cpus = CpuSet.parse(config["opaque"]["parameters"]["cpuConfig"]["cpuset"])
        assert len(cpus) == 4
        assert seen.machine.numa_of(cpus) == 1 << seen.numa(name)[0]
        assert gpu == f"gpu-{seen.numa(name)[0]}"
        sides += seen.numa(name)
    assert sorted(sides) == [0, 1]


def extended_resources(seen: Seen) -> None:
    placed = {name: seen.node(name) for name in seen.pods if seen.node(name)}
    by_claim = {name for name, node in placed.items() if node.startswith("claimed")}
    assert (len(placed), len(by_claim)) == (6, 2)
    for name, pod in seen.pods.items():
        named = pod["status"].get("extendedResourceClaimStatus", {}).get("resourceClaimName")
        claims = [it for it in seen.claims if it["metadata"]["ownerReferences"][0]["name"] == name]
        assert [it["metadata"]["name"] for it in claims] == ([named] if name in by_claim else [])
    held = [it["status"]["allocation"]["devices"]["results"][0]["device"] for it in seen.claims]
    assert sorted(held) == ["gpu-0", "gpu-1"]
    (waiting,) = seen.pods.keys() - placed.keys()
    assert "example.com/gpu of container main: 1 wanted, 2 of 2 devices match, 0 free" in seen.why(waiting)


def gangs(seen: Seen) -> None:
    trainers = [f"train-{number}" for number in range(4)]
    assert len({(seen.node(name), *seen.numa(name)) for name in trainers}) == 4
    assert {seen.node(f"rival-{number}") for number in range(5)} == {""}
    assert "gang default/rival: minCount (5) cannot be satisfied" in seen.why("rival-1")
    assert "own-0: needs 12 CPUs" in seen.why("rival-1")


def nvlink(seen: Seen) -> None:
    nodes = sorted(seen.node(f"train-{number}") for number in range(3))
    assert nodes == ["", "own-0", "own-1"]
    consumers = [it["resource"] for claim in seen.claims for it in (claim.get("status") or {}).get("reservedFor") or ()]
    assert sorted(consumers) == ["podgroups", "pods", "pods"]


class FakeKueue:
    """
    Kueue, as far as a Job with a queue name and a required topology can observe it.

    It resumes Jobs with the topology gate in their template. ``ungate`` removes the gate of one pod and adds the node selector of a domain.
    """

    GATE: Final = "kueue.x-k8s.io/topology"
    KEY: Final = "nvidia.com/gpu.clique"

    def __init__(self, store: DirectStore) -> None:
        self.store = store

    def admit(self) -> None:
        """Resume every suspended Job with a queue name."""
        for job in self.store.list("jobs.batch"):
            metadata = job["metadata"]
            if "kueue.x-k8s.io/queue-name" in metadata["labels"] and job["spec"].get("suspend"):
                gated = {"template": {"spec": {"schedulingGates": [{"name": self.GATE}]}}}
                self.store.patch(
                    "jobs.batch", metadata["name"], {"spec": {"suspend": False, **gated}}, metadata["namespace"]
                )

    def gated(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.store.list("pods") if pod["spec"].get("schedulingGates")]

    def ungate(self, name: str) -> None:
        """Assign a pod to its topology domain."""
        selector = {self.KEY: "cluster-a.1"}
        self.store.patch("pods", name, {"spec": {"schedulingGates": [], "nodeSelector": selector}}, "default")


async def behind_kueue(cluster: World) -> None:
    """The Job is admitted, its gates are removed one by one, and later a trainer fails."""
    store = cluster.server.store
    kueue = FakeKueue(store)
    assert store.list("pods") == []
    kueue.admit()
    names = kueue.gated()
    assert len(names) == 4
    for name in names[:-1]:
        kueue.ungate(name)
    await until(lambda: "3 of 4 pods of default/train exist" in Seen(cluster).why(names[0]))
    assert cluster.unbound() == names
    kueue.ungate(names[-1])
    await until(lambda: cluster.unbound() == [])
    store.patch("pods", names[1], {"status": {"phase": "Failed"}}, "default", "status")
    [replacement] = kueue.gated()
    kueue.ungate(replacement)
    await until(lambda: cluster.unbound() == [])


STEPS: Final[Mapping[str, Callable[[World], Awaitable[None]]]] = {"kueue": behind_kueue}
"""Steps after the objects of a story were created."""


def kueue(seen: Seen) -> None:
    [failed] = [name for name, pod in seen.pods.items() if pod["status"]["phase"] == "Failed"]
    index = "batch.kubernetes.io/job-completion-index"
    [replacement] = [
        name
        for name, pod in seen.pods.items()
        if name != failed and pod["metadata"]["labels"][index] == seen.pods[failed]["metadata"]["labels"][index]
    ]
    running = {name: (seen.node(name), *seen.numa(name)) for name in seen.pods if name != failed}
    assert sorted(running.values()) == [("own-0", 0), ("own-0", 1), ("own-1", 0), ("own-1", 1)]
    assert running[replacement] == (seen.node(failed), *seen.numa(failed))


def gpu_and_nic(seen: Seen) -> None:
    placed = [name for name in seen.pods if seen.node(name)]
    texts = (
        seen.pods[name]["metadata"]["annotations"]["scheduling.koordinator.sh/device-allocated"] for name in placed
    )
    minors = sorted(
        ({kind: [it["minor"] for it in held] for kind, held in json.loads(text).items()} for text in texts), key=str
    )
    assert minors == [{"gpu": [0, 1], "rdma": [0]}, {"gpu": [2, 3], "rdma": [1]}, {"gpu": [4, 5], "rdma": [2]}]
    (waiting,) = seen.pods.keys() - {*placed}
    assert "needs 2 gpu and 1 rdma on the same PCIe switches; the best switch has 2 + 0" in seen.why(waiting)


CLAIMS: Final[Mapping[str, Callable[[Seen], None]]] = {
    "full-cores": full_cores,
    "spread": spread,
    "exclusive": exclusive,
    "single-numa": single_numa,
    "restricted": restricted,
    "gpu-and-cpu": gpu_and_cpu,
    "gpu-and-nic": gpu_and_nic,
    "shared-pool": shared_pool,
    "kubelet-owned": kubelet_owned,
    "preemption": preemption,
    "freed-devices": freed_devices,
    "automatic-rebind": automatic_rebind,
    "claims": claims,
    "extended-resources": extended_resources,
    "gangs": gangs,
    "kueue": kueue,
    "nvlink": nvlink,
    "two-schedulers": two_schedulers,
    "statefulset-local-volumes": statefulset_local_volumes,
}

WAITS: Final[Mapping[str, int]] = {
    "full-cores": 1,
    "single-numa": 1,
    "kubelet-owned": 1,
    "two-schedulers": 1,
    "claims": 1,
    "gpu-and-nic": 1,
    "extended-resources": 1,
    "gangs": 5,
    "nvlink": 1,
}
"""Pods that wait in the end, by story."""


def test_every_story_is_tested_and_listed() -> None:
    folders = {path.name for path in STORIES.iterdir() if path.is_dir()}
    assert folders == CLAIMS.keys()
    listed = (STORIES / "README.md").read_text()
    assert [name for name in folders if f"({name}/README.md)" not in listed] == []


@pytest.mark.parametrize("name", CLAIMS)
async def test_a_story_keeps_its_word(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = list(yaml.safe_load_all((STORIES / name / "objects.yaml").read_text()))
    urgent = [each for each in objects if each["metadata"]["name"] == "urgent"]
    async with world(tmp_path, MACHINES, crds=definitions()) as cluster:
        devices = SimulatedDevices(cluster.server.store, [node.description for node in cluster.rack.nodes.values()])
        devices.start()
        jobs = JobController(cluster.server.store)
        jobs.start()
        cluster.create([each for each in objects if each not in urgent])
        async with operating(cluster.server, tmp_path, monkeypatch, settings_of(name)) as runtime:
            await until(lambda: settled(cluster) and runtime.scheduler.ready)
            if urgent:
                await until(lambda: cluster.unbound() == [])
                cluster.create(urgent)
                await until(lambda: Seen(cluster).node("urgent") != "")
            if name in STEPS:
                await STEPS[name](cluster)
            await until(lambda: len(cluster.unbound()) == WAITS.get(name, 0))
            await until(
                lambda: all((one.get("status") or {}).get("phase") == "Succeed" for one in Seen(cluster).rebinds)
            )
            await until(lambda: all(Seen(cluster).why(pod) for pod in cluster.unbound()))
            seen = Seen(cluster)
        jobs.stop()
        devices.stop()
    assert seen.refusals == []
    assert devices.kubelets.refusals == []
    CLAIMS[name](seen)


def settings_of(story: str) -> Settings:
    """The story's own configuration, if it has one, with the times of the tests' lease."""
    path = STORIES / story / "config.yaml"
    return load_settings(path).model_copy(update={"lease": SETTINGS.lease}) if path.exists() else SETTINGS


def settled(cluster: World) -> bool:
    """Return true if the topologies of the simulated agents show every node."""
    return len(cluster.server.store.list("noderesourcetopologies.topology.node.k8s.io")) == len(cluster.rack.nodes)
