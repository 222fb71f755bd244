"""Reasons for which a node rejects a pod, case by case."""

import pytest

from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Placement, Reason, Rejection
from koord_numa.core.objects.vocabulary import (
    NodeBindPolicy,
    NumaPolicy,
)
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.value_objects import replace
from tests.core.allocation.nodes import (
    BEST_EFFORT,
    BURST,
    FULL,
    LS,
    LSR,
    RESTRICTED,
    SINGLE,
    SPREAD,
    node,
    place,
    pod,
)
from tests.tables import each_row


@each_row(
    ("request_", "where", "reason", "message", "resolvable"),
    [
        pytest.param(
            pod(1500, qos=LSR), node(), Reason.CPU_COUNT, "the requested CPUs must be integer", False, id="fraction"
        ),
        pytest.param(
            pod(1000, limit=2000, qos=LSR),
            node(),
            Reason.BAD_POD,
            "requests and limits of LSE and LSR pods must be equal",
            False,
            id="limit-above-request",
        ),
        pytest.param(
            pod(1500, qos=LS),
            node(bind=NodeBindPolicy.FULL_PCPUS_ONLY),
            Reason.CPU_COUNT,
            "the requested CPUs must be integer",
            False,
            id="fraction-on-a-binding-node",
        ),
        pytest.param(
            pod(3000, qos=LSR, required=FULL),
            node(),
            Reason.CPU_COUNT,
            "node(s) requested cpus not multiple cpus per core",
            False,
            id="half-a-core",
        ),
        pytest.param(
            replace(pod(2000, 1), containers=2 * pod(1000, 1).containers),
            node(bind=NodeBindPolicy.FULL_PCPUS_ONLY, static_kubelet=True, kubelet_whole_cores=True),
            Reason.KUBELET_SMT,
            "node(s) requested cpus not multiple cpus per core",
            False,
            id="half-a-core-per-container-before-a-static-kubelet",
        ),
        pytest.param(
            pod(4000, qos=LSR, required=SPREAD),
            node(bind=NodeBindPolicy.FULL_PCPUS_ONLY),
            Reason.BIND_POLICY,
            "node(s) cpu bind policy conflicts with pod's required cpu bind policy",
            False,
            id="bind-policies-conflict",
        ),
        pytest.param(
            pod(1000, preferred=BURST),
            node(bind=NodeBindPolicy.FULL_PCPUS_ONLY),
            Reason.BIND_POLICY,
            "node(s) cpu bind policy conflicts with pod's required cpu bind policy",
            False,
            id="burst-on-a-binding-node",
        ),
        pytest.param(
            pod(1000, qos=LSR),
            Inventory("n", problem="cpu-topology: not JSON"),
            Reason.BAD_TOPOLOGY,
            "node(s) invalid CPU Topology",
            False,
            id="malformed-topology",
        ),
        pytest.param(
            pod(1000, numa=BEST_EFFORT),
            Inventory("n"),
            Reason.NO_TOPOLOGY,
            "node(s) missing NUMA resources",
            False,
            id="no-numa-data",
        ),
        pytest.param(
            pod(9000, numa=SINGLE, limit=9001),
            node(),
            Reason.NUMA_AFFINITY,
            "node(s) cannot meet NUMA policy SingleNUMANode",
            False,
            id="larger-than-any-numa-node",
        ),
        pytest.param(
            pod(17000, numa=SINGLE, limit=17001),
            node(),
            Reason.RESOURCES,
            "Insufficient NUMA cpu",
            False,
            id="larger-than-the-node",
        ),
    ],
)
def test_refused(request_: PodRequest, where: Inventory, reason: Reason, message: str, resolvable: bool) -> None:
    answer = place(request_, where)
    assert isinstance(answer, Rejection)
    assert (answer.reason, answer.message, answer.resolvable) == (reason, message, resolvable)


POLICIES = (NumaPolicy.NONE, BEST_EFFORT, RESTRICTED, SINGLE)


@each_row("of_node", POLICIES)
@each_row("of_pod", POLICIES)
def test_policies_of_pod_and_node(of_pod: NumaPolicy, of_node: NumaPolicy) -> None:
    """The 4x4 matrix of the pod-level NUMA policy proposal: alike, or one of them says nothing."""
    answer = place(pod(1500, numa=of_pod, limit=1600), node(policy=of_node))
    if NumaPolicy.NONE in (of_pod, of_node) or of_pod is of_node:
        assert isinstance(answer, Placement)
        aligned = of_pod is not NumaPolicy.NONE or of_node is not NumaPolicy.NONE
        assert answer.mask == (1 if aligned else None)
    else:
        assert answer == Rejection(
            Reason.NUMA_POLICY,
            "node(s) NUMA Topology policy not match",
            f"the pod wants {of_pod}, the node has {of_node}",
            resolvable=False,
        )
