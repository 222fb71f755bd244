"""The command line answers as the operator does: with volumes, budgets and priorities, from a cluster and from files."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from koord_numa.cli.cluster.objects import ClusterObjects
from koord_numa.cli.cluster.snapshot import WouldWait, snapshot_of
from koord_numa.sandbox.apiserver.faults import Fault
from koord_numa.settings import Settings
from tests.cli.kinds import Object, budget, claim, priority_class, ranked, storage_class, using, volume
from tests.cli.small import ask, pod, small_cluster
from tests.cluster.objects import until
from tests.e2e.test_rack import reason
from tests.operator.operating import operating

DECIDING = (
    "nodes",
    "noderesourcetopologies.topology.node.k8s.io",
    "pods",
    "namespaces",
    "persistentvolumeclaims",
    "persistentvolumes",
    "storageclasses.storage.k8s.io",
    "poddisruptionbudgets.policy",
    "priorityclasses.scheduling.k8s.io",
    "services",
    "replicationcontrollers",
    "replicasets.apps",
    "statefulsets.apps",
)
"""Every kind that decides where pods go."""

RANKS = (priority_class("low", 1), priority_class("high", 9), priority_class("meek", 9, "Never"))
STORAGE = (
    storage_class("at-once", "Immediate"),
    storage_class("later", "WaitForFirstConsumer"),
    volume("disk", "bound", "own"),
    claim("bound", "disk"),
    claim("unbound", storage_class="at-once"),
    claim("waiting", storage_class="later"),
    volume("single", "single"),
    claim("single", "single", mode="ReadWriteOncePod"),
    claim("lost", "no-such-volume"),
)
FULL = (
    ranked(pod("left", 8, node="own", cpus="0-3,8-11"), "low"),
    ranked(pod("right", 8, node="own", cpus="4-7,12-15"), "low"),
    {**pod("theirs", 14, node="theirs"), "metadata": {"name": "theirs", "namespace": "default"}},
)


@pytest.mark.parametrize(
    ("wanted", "answer"),
    [
        pytest.param(using(pod("p", 2), "bound"), "  would go to own, NUMA 0, CPUs 0,8", id="bound"),
        pytest.param(
            using(pod("p", 2), "unbound"),
            "  0/2 nodes are available: 2 pod has unbound immediate PersistentVolumeClaims.",
            id="unbound",
        ),
        pytest.param(using(pod("p", 2), "waiting"), "  would go to own, NUMA 0, CPUs 0,8", id="first-consumer"),
        pytest.param(using(pod("p", 2), "lost"), 'persistentvolume "no-such-volume" not found', id="no-volume"),
        pytest.param(using(pod("p", 2), "none"), 'persistentvolumeclaim "none" not found', id="no-claim"),
        pytest.param(using(pod("p", 2, kind="other"), "bound"), "didn't match Pod's node affinity", id="other-reasons"),
    ],
)
async def test_volumes(tmp_path: Path, wanted: Object, answer: str) -> None:
    async with small_cluster(tmp_path, *STORAGE, wanted) as cluster:
        explained = await ask(cluster, "explain", "p")
        cluster.server.store.delete("pods", "p", "default")
        simulated = await ask(cluster, "simulate", "-f", "-", text=yaml.safe_dump(wanted))
    assert answer in explained.output
    assert answer.replace("  would go to", "") in simulated.output


async def test_a_volume_for_one_pod_goes_to_the_first(tmp_path: Path) -> None:
    pods = [using(pod("first", 2), "single"), using(pod("second", 2), "single")]
    async with small_cluster(tmp_path, *STORAGE) as cluster:
        answer = await ask(cluster, "simulate", "-f", "-", text=yaml.safe_dump_all(pods))
    assert "ReadWriteOncePod access mode" in answer.output
    assert answer.output.splitlines()[-1] == "1 of 2 pods would be placed."


WANTED = ranked(pod("wanted", 8, numa="SingleNUMANode", kind="own"), "high")


@pytest.mark.parametrize(
    ("others", "wanted", "remark"),
    [
        pytest.param(
            (), WANTED, "preemption: node own is being freed, 1 pod(s) are evicted: default/right.", id="room"
        ),
        pytest.param(
            (budget("b", app="right"),),
            WANTED,
            "preemption: node own is being freed, 1 pod(s) are evicted: default/left.",
            id="one-is-protected",
        ),
        pytest.param(
            (budget("b", app="right"), budget("c", app="left")),
            WANTED,
            "preemption: every choice of victims would violate a PodDisruptionBudget.",
            id="all-are-protected",
        ),
        pytest.param(
            (),
            ranked(WANTED, "meek"),
            "preemption: not eligible due to preemptionPolicy=Never.",
            id="never",
        ),
        pytest.param((), ranked(WANTED, "low"), "", id="as-important"),
    ],
)
async def test_preemption(tmp_path: Path, others: Sequence[Object], wanted: Object, remark: str) -> None:
    occupants = [labelled(each) for each in FULL]
    async with small_cluster(tmp_path, *RANKS, *occupants, *others) as cluster:
        simulated = await ask(cluster, "simulate", "-f", "-", text=yaml.safe_dump(wanted))
        cluster.server.store.create(wanted)
        explained = await ask(cluster, "explain", "wanted")
    for answer in (explained, simulated):
        assert remarks(answer.output) == ([remark] if remark else [])
    room = "For 1 more, room would be made by evictions." in simulated.output
    assert (simulated.exit_code, room) == (1, "evicted" in remark)


def remarks(output: str) -> list[str]:
    """Return the remarks about evictions."""
    return re.findall(r"preemption: .*?[.](?= |$)", " ".join(output.split()))


def labelled(obj: Object) -> Object:
    """The pod with its name as a label."""
    labels = {**obj["metadata"].get("labels", {}), "app": obj["metadata"]["name"]}
    return {**obj, "metadata": {**obj["metadata"], "labels": labels}}


async def test_room_that_is_made_for_one_is_not_there_for_the_next(tmp_path: Path) -> None:
    pods = [{**WANTED, "metadata": {**WANTED["metadata"], "name": f"wanted-{number}"}} for number in range(3)]
    async with small_cluster(tmp_path, *RANKS, *map(labelled, FULL)) as cluster:
        answer = await ask(cluster, "simulate", "-f", "-", text=yaml.safe_dump_all(pods))
    assert remarks(answer.output) == [
        "preemption: node own is being freed, 1 pod(s) are evicted: default/right.",
        "preemption: node own is being freed, 1 pod(s) are evicted: default/left, 1 pod(s) are leaving anyway.",
    ]
    assert answer.output.splitlines()[-2:] == [
        "0 of 3 pods would be placed.",
        "For 2 more, room would be made by evictions.",
    ]


async def test_room_that_others_are_freeing_counts(tmp_path: Path) -> None:
    foreign = pod("foreign", 8, kind="own")
    foreign["spec"]["schedulerName"] = "default-scheduler"
    async with small_cluster(tmp_path, RANKS[0], FULL[0], foreign, pod("ours", 4, kind="own")) as cluster:
        before = await ask(cluster, "explain", "ours")
        cluster.server.store.patch("pods", "foreign", {"status": {"nominatedNodeName": "own"}}, "default", "status")
        after = await ask(cluster, "explain", "ours")
    assert "would go to own" in before.output
    assert "0/2 nodes are available: 1 Insufficient cpu" in after.output


async def test_a_manifest_brings_what_its_pods_need(tmp_path: Path) -> None:
    spec = pod("", 4, kind="own")["spec"]
    template = {
        "metadata": {"labels": {"koordinator.sh/qosClass": "LSR"}},
        "spec": {**spec, "priorityClassName": "new"},
    }
    stateful = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "db"},
        "spec": {"replicas": 2, "volumeClaimTemplates": [{"metadata": {"name": "data"}}], "template": template},
    }
    cron = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "nightly"},
        "spec": {"jobTemplate": {"spec": {"parallelism": 2, "template": template}}},
    }
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "db"}}
    documents = [
        {"apiVersion": "v1", "kind": "List", "items": [priority_class("new", 5), config, stateful]},
        volume("pv", "data-db-0"),
        claim("data-db-0", "pv"),
        cron,
    ]
    async with small_cluster(tmp_path) as cluster:
        answer = await ask(cluster, "simulate", "-f", "-", text=yaml.safe_dump_all(documents))
    assert answer.output.splitlines() == [
        "default/db-0  4 CPU 1Gi  -",
        "  own, NUMA 0, CPUs 0-1,8-9",
        "default/db-1  4 CPU 1Gi  -",
        '  0/2 nodes are available: 2 persistentvolumeclaim "data-db-1" not found.',
        "default/nightly-1  4 CPU 1Gi  -",
        "  own, NUMA 0, CPUs 2-3,10-11",
        "default/nightly-2  4 CPU 1Gi  -",
        "  own, NUMA 1, CPUs 4-5,12-13",
        "",
        "3 of 4 pods would be placed.",
        "Passed over: 1 ConfigMap.",
    ]


async def test_files_stand_for_a_cluster(tmp_path: Path) -> None:
    everything = (
        *RANKS,
        *STORAGE,
        *map(labelled, FULL),
        budget("b", app="right"),
        WANTED,
        using(pod("p", 2), "single"),
    )
    commands = (("explain", "wanted"), ("explain", "p"), ("nodes",), ("node", "own"), ("simulate", "-f", "-"))
    manifest = yaml.safe_dump(ranked(pod("more", 4, kind="own"), "high"))
    async with small_cluster(tmp_path, *everything) as cluster:
        asked = [await ask(cluster, *command, text=manifest) for command in commands]
        dump = tmp_path / "cluster.yaml"
        items = [obj for kind in DECIDING for obj in cluster.server.store.list(kind)]
        dump.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items}))
    read = [await ask(cluster, *command, "--from", str(dump), text=manifest) for command in commands]
    assert [(answer.exit_code, answer.output) for answer in read] == [(it.exit_code, it.output) for it in asked]


async def test_without_rights_on_volumes_only_their_pods_wait(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, *STORAGE, pod("plain", 2), using(pod("p", 2), "bound")) as cluster:
        for resource in ("persistentvolumes", "poddisruptionbudgets"):
            cluster.server.faults.add(Fault(status=403, verb="list", resource=resource))
        plain, with_volume = await ask(cluster, "explain", "plain"), await ask(cluster, "explain", "p")
    for answer in (plain, with_volume):
        (line,) = answer.stderr.splitlines()
        assert line.startswith(
            "Not counted: persistentvolumes, poddisruptionbudgets.policy: no permission to list them; "
        )
        assert "koord-numa-reader" in line
    assert "would go to" in plain.stdout
    assert "2 volumes are not known yet" in with_volume.stdout


async def test_the_operator_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = [
        using(pod("a", 2), "unbound"),
        using(pod("c", 2), "none"),
        using(pod("d", 2, kind="none"), "bound"),
        ranked(pod("e", 8, kind="own"), "meek"),
        ranked(pod("f", 8, kind="own"), "high"),
        using(pod("g", 2), "single"),
    ]
    there = [*map(labelled, FULL), using(pod("h", 1, node="theirs"), "single")]
    guards = (budget("b", app="left"), budget("c", app="right"))
    async with small_cluster(tmp_path, *RANKS, *STORAGE, *there, *guards, *waiting) as cluster:
        async with operating(cluster.server, tmp_path, monkeypatch) as runtime:
            names = {obj["metadata"]["name"] for obj in waiting}
            await until(lambda: runtime.scheduler.ready and set(told(cluster.server.store.list("pods"))) == names)
            await until(lambda: "PodDisruptionBudget." in told(cluster.server.store.list("pods"))["f"])
            await until(lambda: "Never." in told(cluster.server.store.list("pods"))["e"])
            said = told(cluster.server.store.list("pods"))
        facts = ClusterObjects()
        for kind in DECIDING:
            for obj in cluster.server.store.list(kind):
                facts.add(obj)
    snapshot = snapshot_of(Settings(), facts)
    answers = {name: snapshot.decide(found) for name in names if (found := snapshot.find("default", name))}
    assert {name: answer.why for name, answer in answers.items() if isinstance(answer, WouldWait)} == said


def told(pods: Sequence[Object]) -> dict[str, str]:
    """Return the messages of pods without a node, by pod name."""
    return {obj["metadata"]["name"]: reason(obj) for obj in pods if reason(obj) and not obj["spec"].get("nodeName")}


async def test_without_rights_on_priority_classes_none_may_be_named(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, *RANKS) as cluster:
        cluster.server.faults.add(Fault(status=403, verb="list", resource="priorityclasses"))
        named = await ask(cluster, "simulate", "-f", "-", text=yaml.safe_dump(WANTED))
        plain = await ask(cluster, "simulate", "-f", "-", text=yaml.safe_dump(pod("plain", 2)))
    assert "there is no PriorityClass high (list priorityclasses.scheduling.k8s.io: 403" in named.stderr
    assert "1 of 1 pods would be placed." in plain.stdout
