"""Policies that pods may require on kubelet-owned nodes: a table of kubelets and pods."""

import pytest

from koord_numa.core.kubelet.view import kubelet_view, refuse_promises
from koord_numa.core.objects.node import KubeletConfig, Node, NodeResourceTopology, Zone
from koord_numa.core.objects.request import Container, CpuBind, NumaSpec, PodRequest
from koord_numa.core.objects.vocabulary import (
    ContainerKind,
    CpuBindPolicy,
    CpuOwner,
    KubeletPolicy,
    KubeletScope,
    NumaExclusive,
    NumaPolicy,
    QosClass,
)
from koord_numa.core.value_objects import replace
from tests.tables import each_row

STATIC = KubeletConfig(topology_policy=KubeletPolicy.SINGLE_NUMA_NODE, cpu_policy="static")
WHOLE = replace(STATIC, cpu_options={"full-pcpus-only": True})
LAX = KubeletConfig(topology_policy=KubeletPolicy.NONE, cpu_policy="none")
BY_POD = replace(STATIC, topology_scope=KubeletScope.POD)
AMOUNTS = {"cpu": 4000, "memory": 1 << 30}
POD = PodRequest(containers=(Container("main", ContainerKind.APP, AMOUNTS, AMOUNTS),))
TWO = PodRequest(containers=(*POD.containers, Container("side", ContainerKind.SIDECAR, AMOUNTS, AMOUNTS)))
SOME = {"cpu": 2500, "memory": 1 << 30}
FRACTION = PodRequest(containers=(Container("main", ContainerKind.APP, SOME, SOME),))
BEST = replace(STATIC, topology_policy=KubeletPolicy.BEST_EFFORT)
LSR = replace(POD, qos=QosClass.LSR)
MISMATCH = "node(s) NUMA Topology policy not match"
CONFLICT = "node(s) cpu bind policy conflicts with pod's required cpu bind policy"
UNPINNED = "node(s) had a kubelet that pins no CPUs for the pod"


def wants(policy: NumaPolicy, pod: PodRequest = POD) -> PodRequest:
    return replace(pod, numa=NumaSpec(policy))


def exclusive(word: NumaExclusive) -> PodRequest:
    return replace(POD, numa=NumaSpec(NumaPolicy.SINGLE_NUMA_NODE, exclusive=word))


def requires(bind: CpuBindPolicy) -> PodRequest:
    return replace(LSR, bind=CpuBind(required=bind))


@each_row(
    ("pod", "config", "message"),
    [
        pytest.param(POD, LAX, None, id="a-pod-without-demands"),
        pytest.param(wants(NumaPolicy.SINGLE_NUMA_NODE), STATIC, None, id="same-policy"),
        pytest.param(wants(NumaPolicy.SINGLE_NUMA_NODE), LAX, MISMATCH, id="a-kubelet-that-aligns-nothing"),
        pytest.param(wants(NumaPolicy.RESTRICTED), STATIC, MISMATCH, id="another-policy"),
        pytest.param(wants(NumaPolicy.BEST_EFFORT), LAX, None, id="best-effort-is-no-promise"),
        pytest.param(wants(NumaPolicy.SINGLE_NUMA_NODE, TWO), STATIC, MISMATCH, id="containers-are-aligned-one-by-one"),
        pytest.param(wants(NumaPolicy.SINGLE_NUMA_NODE, TWO), BY_POD, None, id="the-pod-is-aligned-as-a-whole"),
        pytest.param(LSR, STATIC, None, id="lsr-is-pinned"),
        pytest.param(LSR, LAX, UNPINNED, id="lsr-is-not-pinned"),
        pytest.param(replace(POD, qos=QosClass.LS), LAX, None, id="ls-shares-anyway"),
        pytest.param(requires(CpuBindPolicy.FULL_PCPUS), STATIC, CONFLICT, id="whole-cores-are-not-promised"),
        pytest.param(requires(CpuBindPolicy.FULL_PCPUS), WHOLE, None, id="whole-cores-are-the-kubelets-rule"),
        pytest.param(requires(CpuBindPolicy.SPREAD_BY_PCPUS), WHOLE, CONFLICT, id="no-kubelet-promises-to-spread"),
        pytest.param(replace(requires(CpuBindPolicy.FULL_PCPUS), qos=QosClass.NONE), STATIC, CONFLICT, id="no-class"),
        pytest.param(replace(requires(CpuBindPolicy.FULL_PCPUS), qos=QosClass.NONE), WHOLE, None, id="no-class-kept"),
        pytest.param(
            replace(requires(CpuBindPolicy.FULL_PCPUS), qos=QosClass.NONE), LAX, UNPINNED, id="no-class-shared"
        ),
        pytest.param(wants(NumaPolicy.SINGLE_NUMA_NODE, FRACTION), STATIC, MISMATCH, id="shared-cpus-are-not-aligned"),
        pytest.param(wants(NumaPolicy.BEST_EFFORT, FRACTION), BEST, None, id="best-effort-of-shared-cpus"),
        pytest.param(
            wants(NumaPolicy.SINGLE_NUMA_NODE), replace(STATIC, cpu_policy="none"), MISMATCH, id="no-cpu-manager"
        ),
        pytest.param(exclusive(NumaExclusive.REQUIRED), STATIC, MISMATCH, id="exclusive-numa-nodes-are-not-kept"),
        pytest.param(exclusive(NumaExclusive.PREFERRED), STATIC, None, id="preferred-exclusivity-is-a-wish"),
        pytest.param(requires(CpuBindPolicy.DEFAULT), STATIC, None, id="default-demands-nothing"),
    ],
)
def test_what_a_kubelet_can_promise(pod: PodRequest, config: KubeletConfig, message: str | None) -> None:
    zones = tuple(Zone(numa, {"cpu": 8000}, {"cpu": 8000}, {"cpu": 8000}) for numa in (0, 1))
    topology = NodeResourceTopology(node="worker", owner=CpuOwner.KUBELET, zones=zones, kubelet=config)
    view = kubelet_view(Node("worker", allocatable={"cpu": 16000}), topology, ())
    refusal = refuse_promises(pod, view.state.node.config)
    assert (refusal.message if refusal else None) == message
    if refusal:
        assert not refusal.resolvable
