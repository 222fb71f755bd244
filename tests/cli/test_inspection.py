"""Output about a live cluster: nodes, one node, a waiting pod, and a pod that does not exist yet."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from koord_numa.cli import main
from koord_numa.cli.cluster.objects import ClusterObjects
from koord_numa.cli.cluster.snapshot import snapshot_of
from koord_numa.cli.demo.sandbox_cluster import sandbox_cluster
from koord_numa.sandbox.machines import read_descriptions
from koord_numa.settings import Settings
from tests.cli.small import SHAPE, ask, pod, small_cluster
from tests.engine.world import make_node

BY_OBJECTS = "  From the API objects, not from a running scheduler."
RUNNING = pod("runs", 4, node="own", cpus="0-1,8-9")


def test_evaluations_are_finished_at_once() -> None:
    # No loop runs that would continue them.
    snapshot = snapshot_of(Settings(), ClusterObjects(nodes=[make_node("a")]))
    assert snapshot.scheduler.cache.nodes["a"].explore_later is None


async def test_nodes(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, RUNNING) as cluster:
        answer = await ask(cluster, "nodes")
    assert answer.exit_code == 0
    assert answer.output.splitlines() == [
        "NODE    OWNER      POLICY            SCOPE      NUMA  FREE-CPU  LARGEST     STATUS",
        "own     scheduler  -                 pod        2     4/8,8/8   8 CPU 16Gi  ok",
        "theirs  kubelet    single-numa-node  container  2     8/8,8/8   8 CPU 16Gi  ok",
    ]


async def test_pods_without_numa_nodes_count(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, RUNNING, pod("somewhere", 6, node="own")) as cluster:
        answer = await ask(cluster, "nodes", "own", "--no-headers")
        document = json.loads((await ask(cluster, "nodes", "own", "-o", "json")).output)["items"][0]
        summary = json.loads((await ask(cluster, "top", "-l", "kind=own", "-o", "json")).output)["summary"]
    assert answer.output.split()[:6] == ["own", "scheduler", "-", "pod", "2", "0-4/8,2-6/8"]
    assert (document["cpus"], document["freeCPUs"]) == (16, 6)
    assert document["free"] == {"memory": 30 << 30}  # two pods of 1 GiB, of which one is on a known NUMA node
    assert (summary["cpus"], summary["freeCPUs"]) == (16, 6)


async def test_one_node(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, RUNNING) as cluster:
        answer = await ask(cluster, "node", "own")
    assert answer.output.splitlines() == [
        "NODE  OWNER      POLICY  SCOPE  NUMA  FREE-CPU  LARGEST     STATUS",
        "own   scheduler  -       pod    2     4/8,8/8   8 CPU 16Gi  ok",
        "",
        "NUMA  RESOURCE  FREE  OF",
        "0     cpu       4     8",
        "0     memory    15Gi  16Gi",
        "1     cpu       8     8",
        "1     memory    16Gi  16Gi",
        "",
        "NUMA 0  socket 0  4 of 8 CPUs free",
        "  cpu   0",
        "  t0    A A · ·",
        "  t1    A A · ·",
        "NUMA 1  socket 1  8 of 8 CPUs free",
        "  cpu   4",
        "  t0    · · · ·",
        "  t1    · · · ·",
        "  A runs  0-1,8-9",
        "  · free   t0, t1: threads of a core",
        "",
        "POD           QOS  REQUESTS   POLICY  NUMA  CPUS",
        "default/runs  LSR  4 CPU 1Gi  -       0     0-1,8-9",
    ]


async def test_two_owners_of_a_cpu_show_in_the_column_of_trust(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, RUNNING) as cluster:
        topology = cluster.server.store.get("noderesourcetopologies.topology.node.k8s.io", "own")
        allocs = '[{"namespace":"default","name":"other","uid":"u","cpuset":"8","managedByKubelet":true}]'
        annotations = {"node.koordinator.sh/pod-cpu-allocs": allocs}
        kind = "noderesourcetopologies.topology.node.k8s.io"
        cluster.server.store.patch(kind, topology["metadata"]["name"], {"metadata": {"annotations": annotations}})
        answer = await ask(cluster, "nodes")
    assert "CPUs 8 belong to default/runs by its resource-status" in answer.output


async def test_a_waiting_pod_and_what_every_node_says_to_it(tmp_path: Path) -> None:
    wide = pod("wide", 10, numa="SingleNUMANode", kind="own")
    async with small_cluster(tmp_path, RUNNING, wide) as cluster:
        answer = await ask(cluster, "explain", "wide")
    assert answer.exit_code == 0
    assert answer.output.splitlines() == [
        "default/wide  10 CPU 1Gi  SingleNUMANode",
        "  0/2 nodes are available: 1 node(s) cannot meet NUMA policy SingleNUMANode, 1 node(s) didn't match",
        "    Pod's node affinity/selector.",
        "",
        "  own: no: cannot meet NUMA policy SingleNUMANode: NUMA 0 has 4 of 8 CPUs free, NUMA 1 has 8 of 8;",
        "    needs 10 CPUs, 1Gi memory in one NUMA node; the largest that fits is 8 CPUs, 1Gi memory",
        "  theirs: no: didn't match Pod's node affinity/selector: the node lacks kind=own",
        "",
        "  What would make it fit:",
        "  - container c with 8 CPUs instead of 10 fits on own, NUMA 1",
        "  - with numaTopologyPolicy Restricted instead of SingleNUMANode it fits on own, NUMA 0,1",
        "  The largest request that one NUMA node could serve now: 8 CPU 16Gi on own",
        BY_OBJECTS,
    ]


async def test_a_pod_that_is_not_placed_yet(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, RUNNING, pod("new", 4, kind="own")) as cluster:
        answer = await ask(cluster, "explain", "new")
    assert "  would go to own, NUMA 0, CPUs 2-3,10-11" in answer.output.splitlines()


async def test_a_bound_pod(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, RUNNING) as cluster:
        answer = await ask(cluster, "explain", "runs")
    assert answer.output.splitlines() == [
        "default/runs  4 CPU 1Gi  -",
        "  is bound to own, phase Running",
        "  NUMA 0, CPUs 0-1,8-9",
        BY_OBJECTS,
    ]


async def test_a_bound_pod_that_runs_elsewhere(tmp_path: Path) -> None:
    told = (
        '{"default/runs": {"decided": "0-1,8-9", "observed": "0-15", "why": "no agent applies cpusets on this node"}}'
    )
    sentence = "decided 0-1,8-9, runs on 0-15: no agent applies cpusets on this node"
    async with small_cluster(tmp_path, RUNNING) as cluster:
        annotations = {"metadata": {"annotations": {"koord-numa/cpuset-differences": told}}}
        cluster.server.store.patch("noderesourcetopologies.topology.node.k8s.io", "own", annotations)
        explained = await ask(cluster, "explain", "runs")
        node = await ask(cluster, "node", "own")
        pinning = {
            "metadata": {"annotations": {"koord-numa/pinning": '{"through":"NRI","containers":3,"seconds":0.0}'}}
        }
        cluster.server.store.patch("noderesourcetopologies.topology.node.k8s.io", "own", pinning)
        pinned = await ask(cluster, "node", "own")
    assert "3 containers pinned through NRI, at most 0 s unpinned" in pinned.output.splitlines()
    assert explained.output.splitlines()[-2] == f"  {sentence}"
    assert node.output.splitlines()[-1].split(maxsplit=1) == ["default/runs", sentence]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        pytest.param(("explain", "absent"), "there is no pod default/absent", id="pod"),
        pytest.param(("node", "nowhere"), "there is no node nowhere", id="node"),
    ],
)
async def test_what_is_not_there(tmp_path: Path, command: tuple[str, ...], message: str) -> None:
    async with small_cluster(tmp_path) as cluster:
        answer = await ask(cluster, *command)
    assert (answer.exit_code, answer.output) == (1, f"Error: {message}\n")


async def test_pods_of_a_manifest_go_one_after_another(tmp_path: Path) -> None:
    template = pod("", 8, numa="SingleNUMANode", kind="own")
    workload = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "eights"},
        "spec": {"replicas": 2, "template": {key: template[key] for key in ("metadata", "spec")}},
    }
    manifest = yaml.safe_dump_all([pod("first", 2, kind="own"), workload])
    async with small_cluster(tmp_path) as cluster:
        before = cluster.server.revision
        answer = await ask(cluster, "simulate", "-f", "-", text=manifest)
        assert cluster.server.revision == before
    assert answer.exit_code == 1
    assert answer.output.splitlines() == [
        "default/first  2 CPU 1Gi  -",
        "  own, NUMA 0, CPUs 0,8",
        "default/eights-1  8 CPU 1Gi  SingleNUMANode",
        "  own, NUMA 1, CPUs 4-7,12-15",
        "default/eights-2  8 CPU 1Gi  SingleNUMANode",
        "  0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't match Pod's node affinity/selector.",
        "  own: needs 8 CPUs, 6 of 16 free",
        "",
        "2 of 3 pods would be placed.",
    ]


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        pytest.param("{", "the manifest is not YAML", id="not-yaml"),
        pytest.param("", "the manifest makes no pods", id="empty"),
        pytest.param("kind: DaemonSet\nspec: {template: {}}", "a pod for every node", id="daemon-set"),
        pytest.param("kind: PersistentVolume", "PersistentVolume: metadata", id="no-name-of-a-volume"),
        pytest.param(
            "kind: Pod\nmetadata: {name: p}\nspec: {priorityClassName: x}", "no PriorityClass x", id="priority"
        ),
        pytest.param("- 1", "not a Kubernetes object", id="a-list"),
        pytest.param("kind: ConfigMap", "the manifest makes no pods: it has 1 ConfigMap", id="no-pods"),
        pytest.param("kind: Job\nspec: {parallelism: -1, template: {}}", "replicas must be a number", id="negative"),
        pytest.param("kind: Pod\nmetadata: {}", "metadata.name", id="no-name"),
        pytest.param("kind: Pod\nmetadata: {name: p}\nspec: {nodeName: own}", "names its node", id="bound"),
    ],
)
async def test_manifests_that_cannot_be_simulated(tmp_path: Path, manifest: str, message: str) -> None:
    async with small_cluster(tmp_path) as cluster:
        answer = await ask(cluster, "simulate", "-f", "-", text=manifest)
    assert answer.exit_code == 1
    assert message in answer.output


async def test_without_a_cluster(tmp_path: Path) -> None:
    async with small_cluster(tmp_path) as cluster:
        pass
    answer = await ask(cluster, "nodes")
    assert answer.exit_code == 1
    assert answer.output.startswith("Error: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("profiles: []", "has none of Node, NodeResourceTopology, Pod,", id="nothing-of-interest"),
        pytest.param("machines: [{name: n}]", "koord-numa sandbox --machines", id="machines-of-a-sandbox"),
        pytest.param("kind: Pod\nmetadata: {name: p, uid: u}", "there are no nodes", id="no-nodes"),
        pytest.param("kind: Node\nmetadata: {}", "Node: metadata.name", id="no-name"),
        pytest.param("a: [", "is not YAML", id="not-yaml"),
        pytest.param("- 1", "not a Kubernetes object", id="a-list"),
    ],
)
def test_files_that_are_no_cluster(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    answer = CliRunner().invoke(main, ["nodes", "--from", str(file)])
    assert answer.exit_code == 1
    assert message in answer.output


async def test_room_that_is_kept_shows_on_its_node(tmp_path: Path) -> None:
    foreign = pod("foreign", 4)
    foreign["spec"]["schedulerName"] = "default-scheduler"
    async with small_cluster(tmp_path, RUNNING, foreign) as cluster:
        cluster.server.store.patch("pods", "foreign", {"status": {"nominatedNodeName": "own"}}, "default", "status")
        answer = await ask(cluster, "node", "own")
    assert answer.output.splitlines()[-1] == "default/foreign  LSR  4 CPU 1Gi  -       -     kept free for it"


async def test_nodes_that_say_the_same_say_it_once(tmp_path: Path) -> None:
    machines = [{"name": f"n{number}", **SHAPE} for number in range(9)]
    async with sandbox_cluster(read_descriptions({"machines": machines}, tmp_path), tmp_path / "kubeconfig") as cluster:
        cluster.server.store.create(pod("p", 2, kind="none"))
        answer = await ask(cluster, "explain", "p")
    assert "  n0, n1, n2, n3, n4, n5 and 3 more: no: didn't match Pod's node affinity/selector: the node lacks" in (
        answer.output.splitlines()
    )
