"""Agents over time: they run and end pods, rebind, publish, lag, reject and crash."""

from typing import Any

import orjson

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import PodKey
from koord_numa.sandbox.apiserver import DeleteOptions, DirectStore
from koord_numa.sandbox.machines.description import GIB, STATIC_KUBELET, NodeDescription, Numbering, Shape, Style
from koord_numa.wire import names, parse_pod, parse_topology
from tests.sandbox.machines.conftest import NOW, MakeRack
from tests.sandbox.machines.pods import bind, create, phase, place

SHAPE = Shape(2, 1, 2, 2, 16 * GIB, Numbering.ADJACENT, devices={"nvidia.com/gpu": (0, 1)})
OURS = NodeDescription("n", SHAPE.build())
THEIRS = NodeDescription("k", SHAPE.build(), Style.KUBELET, STATIC_KUBELET)
TOPOLOGIES = "noderesourcetopologies.topology.node.k8s.io"


def available(store: DirectStore, node: str, resource: str = "cpu") -> list[int]:
    """Return the available amounts of the published topology, by NUMA node."""
    return [zone.available[resource] for zone in parse_topology(store.get(TOPOLOGIES, node)).zones]


def test_a_running_pod_looks_like_one(store: DirectStore, rack_of: MakeRack) -> None:
    rack_of([OURS])
    pod = create(store, "p", {"cpu": "1"})
    status = bind(store, pod, "n")["status"]
    assert {condition["type"]: condition["status"] for condition in status["conditions"]} == dict.fromkeys(
        ["PodScheduled", "PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady"], "True"
    )
    (container,) = status["containerStatuses"]
    assert (container["ready"], container["state"]) == (True, {"running": {"startedAt": NOW}})
    assert (status["hostIP"], status["startTime"]) == ("10.0.0.0", NOW)
    assert parse_pod(store.get("pods", "p")).started


def test_pods_that_are_bound_already_are_taken_at_start(store: DirectStore, rack_of: MakeRack) -> None:
    pod = create(store, "p", {"cpu": "2"})
    bind(store, pod, "n", {"cpuset": "0-1"})
    assert phase(store, pod) == "Pending"
    rack = rack_of([OURS])
    assert phase(store, pod) == "Running"
    assert rack.history.holders() == {"n": {pod: CpuSet.parse("0-1")}}


def test_ended_and_deleted_pods_free_everything(store: DirectStore, rack_of: MakeRack) -> None:
    rack = rack_of([OURS])
    done, deleted, killed = (place(store, "n", name, cpus) for name, cpus in (("a", "0"), ("b", "1"), ("c", "2")))
    rack.nodes["n"].finish(done)
    store.delete("pods", "b")
    store.delete("pods", "c", options=DeleteOptions(grace=0))
    assert phase(store, done) == "Succeeded"
    assert [store.find("pods", pod.name) for pod in (deleted, killed)] == [None, None]
    assert (rack.history.holders(), dict(rack.nodes["n"].pods)) == ({}, {})
    place(store, "n", "d", "0-2")
    assert (rack.violations, rack.double_holds()) == ([], [])


def pools_of(store: DirectStore, node: str) -> dict[int, str]:
    """The shared pools that the agent publishes."""
    pools = orjson.loads(store.get(TOPOLOGIES, node)["metadata"]["annotations"][names.CPU_SHARED_POOLS])
    return {pool["node"]: pool["cpuset"] for pool in pools}


def test_topologies_follow_when_published(store: DirectStore, rack_of: MakeRack) -> None:
    rack = rack_of([OURS, THEIRS])
    assert available(store, "k") == [4000, 4000]
    guaranteed = {"cpu": "3", "memory": "1Gi", "nvidia.com/gpu": "1"}
    bind(store, create(store, "p", guaranteed), "k")
    pinned = place(store, "n", "q", "0-1")
    assert available(store, "k") == [4000, 4000]  # not yet
    assert rack.publish() == 2
    assert rack.publish() == 0
    assert available(store, "k") == [1000, 4000]
    assert available(store, "k", "nvidia.com/gpu") == [0, 1]
    assert available(store, "k", "memory") == [15 * GIB, 16 * GIB]
    assert available(store, "n") == [2000, 4000]
    assert pools_of(store, "n") == {0: "2-3", 1: "4-7"}
    store.delete("pods", pinned.name)
    rack.publish()
    assert pools_of(store, "n") == {0: "0-3", 1: "4-7"}


def test_best_effort_pods_keep_away_from_lse_pods_alone(store: DirectStore, rack_of: MakeRack) -> None:
    rack = rack_of([OURS])
    for qos, cpus in (("LSE", "0-1"), ("LSR", "4-5")):
        pod = create(store, qos.lower(), {"cpu": "2"}, labels={names.QOS_CLASS: qos})
        bind(store, pod, "n", {"cpuset": cpus})
    rack.publish()
    annotations = store.get(TOPOLOGIES, "n")["metadata"]["annotations"]
    pools = [orjson.loads(annotations[name]) for name in (names.CPU_SHARED_POOLS, names.BE_CPU_SHARED_POOLS)]
    assert [[pool["cpuset"] for pool in found] for found in pools] == [["2-3", "6-7"], ["2-3", "4-7"]]


def test_the_kubelet_refuses_as_kubelets_do(store: DirectStore, rack_of: MakeRack) -> None:
    rack = rack_of([THEIRS])
    found = bind(store, create(store, "p", {"cpu": "5", "memory": "1Gi"}), "k")["status"]
    assert (found["phase"], found["reason"]) == ("Failed", "TopologyAffinityError")
    assert [(complaint.node, complaint.reason) for complaint in rack.refusals] == [("k", "TopologyAffinityError")]
    assert rack.violations == []


def rebind(store: DirectStore, pod: PodKey, cpus: str) -> dict[str, Any]:
    """Give a running pod other CPUs."""
    patch = {"metadata": {"annotations": {names.RESOURCE_STATUS: f'{{"cpuset":"{cpus}"}}'}}}
    return store.patch("pods", pod.name, patch)


def test_rebinding_moves_cpus(store: DirectStore, rack_of: MakeRack) -> None:
    rack = rack_of([OURS])
    pod = place(store, "n", "p", "0-1")
    rebind(store, pod, "4-5")
    assert rack.history.holders() == {"n": {pod: CpuSet.parse("4-5")}}
    place(store, "n", "q", "0-1")
    assert (rack.violations, rack.double_holds()) == ([], [])


def test_rebinding_onto_another_pod_ends_the_pod(store: DirectStore, rack_of: MakeRack) -> None:
    rack = rack_of([OURS])
    pod, other = place(store, "n", "p", "0-1"), place(store, "n", "q", "2-3")
    rebind(store, pod, "1-2")
    assert (phase(store, pod), phase(store, other)) == ("Failed", "Running")
    assert [complaint.message for complaint in rack.violations] == ["CPUs 2 belong to default/q"]


def test_a_lagging_agent_acts_late_and_in_order(store: DirectStore, rack_of: MakeRack) -> None:
    rack = rack_of([OURS])
    node = rack.nodes["n"]
    node.lag()
    first = place(store, "n", "first", "0-1")
    gone = place(store, "n", "gone", "2")
    store.delete("pods", "gone", options=DeleteOptions(grace=0))
    assert (phase(store, first), len(node.pods)) == ("Pending", 0)
    node.catch_up()
    assert (phase(store, first), [str(pod.key) for pod in node.pods.values()]) == ("Running", ["default/first"])
    assert rack.history.holders() == {"n": {first: CpuSet.parse("0-1")}}
    assert gone not in rack.history.holders()["n"]


def test_the_next_pod_is_refused_as_told(store: DirectStore, rack_of: MakeRack) -> None:
    rack = rack_of([THEIRS])
    rack.nodes["k"].refuse_next("SMTAlignmentError", "no whole cores")
    refused, taken = (create(store, name, {"cpu": "1"}) for name in ("a", "b"))
    status = bind(store, refused, "k")["status"]
    bind(store, taken, "k")
    assert (status["phase"], status["reason"]) == ("Failed", "SMTAlignmentError")
    assert status["message"] == "Pod was rejected: no whole cores"
    assert phase(store, taken) == "Running"


def test_a_crashed_agent_comes_back_to_the_truth(store: DirectStore, rack_of: MakeRack) -> None:
    rack = rack_of([OURS])
    node = rack.nodes["n"]
    stays, goes = place(store, "n", "stays", "0"), place(store, "n", "goes", "1")
    node.crash()
    store.delete("pods", "goes", options=DeleteOptions(grace=0))
    late = place(store, "n", "late", "1-2")
    assert (phase(store, late), goes in rack.history.holders()["n"]) == ("Pending", True)
    node.restart()
    assert phase(store, late) == "Running"
    assert rack.history.holders() == {"n": {stays: CpuSet.parse("0"), late: CpuSet.parse("1-2")}}
    assert (rack.violations, rack.double_holds()) == ([], [])


def test_a_pod_of_the_same_name_is_another_pod(store: DirectStore, rack_of: MakeRack) -> None:
    rack = rack_of([OURS])
    rack.nodes["n"].lag()
    old = place(store, "n", "p", "0-9")
    store.delete("pods", "p", options=DeleteOptions(grace=0))
    new = create(store, "p", {"cpu": "1"})
    rack.nodes["n"].catch_up()
    assert phase(store, new) == "Pending"
    assert [complaint.pod for complaint in rack.violations] == [old]


def test_a_node_may_join_later(store: DirectStore, rack_of: MakeRack) -> None:
    rack = rack_of([])
    pod = create(store, "p", {"cpu": "1"})
    bind(store, pod, "n")
    rack.add(OURS)
    assert phase(store, pod) == "Running"
    assert store.get("nodes", "n")["status"]["allocatable"]["cpu"] == "8"
