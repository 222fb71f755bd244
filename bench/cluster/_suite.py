"""
The workloads of kube-scheduler's ``scheduler_perf`` suite as data, and beside them some with topologies of our own.

Shapes and sizes follow ``test/integration/scheduler_perf``; ``rate`` and ``cpu`` are what kube-scheduler 1.36 reached on a real API
server with two shared cores (pods a second from first to last bind, CPU ms a pod). kube-scheduler aligns nothing: our own workloads are
held against its figures for plain pods.
"""

from typing import Any, Final

from bench.cluster._machines import KINDS, numa_pod
from bench.cluster._shapes import (
    HOST,
    ZONE,
    Churn,
    JsonObject,
    Workload,
    before,
    coloured,
    every_other_tainted,
    gated,
    high,
    hopeless,
    in_two_zones,
    large_node,
    low,
    named_node,
    node,
    on_a_node_each,
    on_nodes,
    on_the_named_node,
    plain,
    pod,
    spread,
)

NAMESPACES: Final[JsonObject] = {"namespaceSelector": {"matchLabels": {"team": "devops"}}}

MIXED: Final = (
    before,
    coloured("blue", "blue", "podAffinity", ZONE),
    coloured("green", "green", "podAntiAffinity", HOST),
    coloured("red", "red", "podAffinity", HOST, soft=True),
    coloured("yellow", "yellow", "podAntiAffinity", HOST, soft=True),
)
"""The pods that ``MixedSchedulingBasePod`` finds."""


def _other_pods(number: int) -> tuple[JsonObject, ...]:
    """A node that takes nothing and a pod that fits nowhere."""
    # Out of the way of the numbers of ordinary nodes.
    cordoned = node(900_000 + number, unschedulable=True)
    return cordoned, pod(f"churn-{number}", cpu="9999")


def _aligned(number: int) -> JsonObject:
    """Two CPUs of its own on one NUMA node, chosen by the scheduler."""
    return numa_pod(f"pod-{number:06}", "LSR", "2", "SingleNUMANode")


def _guaranteed(number: int) -> JsonObject:
    """Two CPUs of its own on one NUMA node, chosen by the kubelet."""
    return numa_pod(f"pod-{number:06}", "", "2")


def _of_five_classes(number: int) -> JsonObject:
    qos, cpu, policy = KINDS[number % len(KINDS)]
    return numa_pod(f"pod-{number:06}", qos, cpu, policy)


def _numa_before(number: int) -> JsonObject:
    return numa_pod(f"before-{number:06}", "LSR", "3")


def _rebind(number: int) -> tuple[JsonObject, ...]:
    spec = {"nodeName": f"node-{number % 500}", "rebindAction": "RebindCPU", "deadlineInSeconds": 60}
    metadata = {"name": f"tidy-{number}"}
    return (
        {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "RebindResource",
            "metadata": metadata,
            "spec": spec,
        },
    )


def _high_beside(number: int) -> tuple[JsonObject, ...]:
    return (high(number, "high"),)


# Our own workloads are held against the same figures: aligned pods have to cost less than plain pods cost kube-scheduler.
_BASIC: Final[dict[str, Any]] = {"rate": 310, "cpu": 1.9, "large_rate": 402, "large_cpu": 2.2}

WORKLOADS: Final = (
    Workload("SchedulingBasic", plain, before, **_BASIC, faster=1.5, cheaper=0.5, floor=270),
    Workload(
        "SchedulingNodeAffinity", on_nodes("pod", in_two_zones), before, rate=280, cpu=2.6, faster=1.5, cheaper=0.5
    ),
    Workload("Unschedulable", plain, before, hopeless, rate=400, cpu=2.2, faster=1.5, cheaper=0.6),
    Workload(
        "TopologySpreading",
        spread("pod", "DoNotSchedule"),
        before,
        rate=226,
        cpu=2.5,
        large_rate=204,
        large_cpu=4.7,
        floor=85,
    ),
    Workload("PreferredTopologySpreading", spread("pod", "ScheduleAnyway"), before, rate=200, cpu=3.0, floor=125),
    Workload(
        "SchedulingPodAffinity",
        coloured("pod", "blue", "podAffinity", ZONE),
        coloured("before", "blue", "podAffinity", ZONE),
        node=large_node,
        rate=127,
        cpu=7.2,
        floor=35,
    ),
    Workload(
        "SchedulingPodAntiAffinity",
        coloured("pod", "green", "podAntiAffinity", HOST),
        coloured("before", "green", "podAntiAffinity", HOST),
        count=400,
        count_before=100,
        rate=174,
        cpu=4.8,
        large_rate=202,
        large_cpu=4.5,
        floor=60,
    ),
    Workload(
        "SchedulingPodMatchingAntiAffinity",
        lambda number: pod(f"pod-{number:06}", {"color": "green"}),
        coloured("before", "green", "podAntiAffinity", HOST),
        count_before=100,
        floor=540,
    ),
    Workload(
        "SchedulingPreferredPodAffinity",
        coloured("pod", "red", "podAffinity", HOST, soft=True),
        coloured("before", "red", "podAffinity", HOST, soft=True),
        rate=88,
        cpu=5.5,
        floor=90,
    ),
    Workload(
        "SchedulingPreferredPodAntiAffinity",
        coloured("pod", "yellow", "podAntiAffinity", HOST, soft=True),
        coloured("before", "yellow", "podAntiAffinity", HOST, soft=True),
        rate=85,
        cpu=6.9,
        floor=90,
    ),
    Workload("MixedSchedulingBasePod", plain, lambda number: MIXED[number % len(MIXED)](number), node=large_node),
    Workload("PreemptionBasic", high, low, nodes=500, count=500, count_before=0, before_a_node=4, rate=117, cpu=3.9),
    Workload(
        "PreemptionAsync", plain, low, count_before=0, before_a_node=4, churn=Churn(_high_beside, go=False), floor=160
    ),
    Workload("SchedulingWithMixedChurn", plain, before, churn=Churn(_other_pods)),
    Workload(
        "SchedulingDaemonset", on_nodes("pod", on_the_named_node), extra_node=named_node(), floor=390, large=15_000
    ),
    Workload("DaemonSetOnEveryNode", on_nodes("pod", on_a_node_each)),
    Workload("SchedulingWhileGated", plain, before, gated, count_idle=2_000),
    Workload(
        "SchedulingRequiredPodAntiAffinityWithNSSelector",
        coloured("pod", "green", "podAntiAffinity", HOST, **NAMESPACES),
        coloured("before", "green", "podAntiAffinity", HOST, **NAMESPACES),
        count=400,
        count_before=100,
    ),
    Workload(
        "SchedulingPreferredAntiAffinityWithNSSelector",
        coloured("pod", "yellow", "podAntiAffinity", HOST, soft=True, **NAMESPACES),
        coloured("before", "yellow", "podAntiAffinity", HOST, soft=True, **NAMESPACES),
    ),
    Workload(
        "SchedulingRequiredPodAffinityWithNSSelector",
        coloured("pod", "blue", "podAffinity", ZONE, **NAMESPACES),
        coloured("before", "blue", "podAffinity", ZONE, **NAMESPACES),
        node=large_node,
    ),
    Workload(
        "SchedulingPreferredAffinityWithNSSelector",
        coloured("pod", "red", "podAffinity", HOST, soft=True, **NAMESPACES),
        coloured("before", "red", "podAffinity", HOST, soft=True, **NAMESPACES),
    ),
    Workload(
        "SchedulingWithNodeInclusionPolicy",
        spread("pod", "DoNotSchedule", nodeTaintsPolicy="Honor"),
        before,
        node=every_other_tainted,
        floor=68,
    ),
    Workload("AlignedPods", _aligned, machines="scheduler", **_BASIC),
    Workload("AlignedPodsOnKubelets", _guaranteed, machines="kubelet", **_BASIC),
    Workload("AlignedMixedClasses", _of_five_classes, machines="exporting", **_BASIC),
    Workload("AlignedPodsBesideRebinds", _aligned, _numa_before, machines="scheduler", churn=Churn(_rebind), **_BASIC),
)
