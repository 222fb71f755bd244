"""After a restart the ledger is rebuilt from what pods carry and what the NRT says: it equals the one that was lost."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.allocation.allocate import AllocateOptions, allocate
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.state.inventory import Inventory, inventory
from koord_numa.core.state.ledger import Ledger, holding_of
from koord_numa.core.state.numa_free import accounts
from koord_numa.wire.nodes import parse_node
from koord_numa.wire.pod_annotations import resource_status
from koord_numa.wire.pods import parse_pod
from koord_numa.wire.topologies import parse_topology

Json = dict[str, Any]

NODE: Json = {
    "metadata": {"name": "n", "uid": "node-uid"},
    "status": {"allocatable": {"cpu": "15", "memory": "16Gi", "nvidia.com/gpu": "2", "pods": "110"}},
}


def topology() -> Json:
    """Two NUMA nodes of four cores; CPU 0 is reserved."""
    cpus = [{"id": cpu, "core": cpu // 2, "socket": cpu // 8, "node": cpu // 8} for cpu in range(16)]
    resources = {"cpu": "8", "memory": "8Gi", "nvidia.com/gpu": "1"}
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha1",
        "metadata": {
            "name": "n",
            "annotations": {
                "node.koordinator.sh/cpu-topology": json.dumps({"detail": cpus}),
                "kubelet.koordinator.sh/cpu-manager-policy": json.dumps({"policy": "none", "reservedCPUs": "0"}),
            },
        },
        "topologyPolicies": ["None"],
        "zones": [
            {
                "name": f"node-{numa}",
                "type": "Node",
                "resources": [
                    {"name": name, "capacity": text, "allocatable": text, "available": text}
                    for name, text in resources.items()
                ],
            }
            for numa in range(2)
        ],
    }


@st.composite
def raw_pods(draw: st.DrawFn) -> Json:
    """A pod as users write it."""
    amounts = {
        "cpu": draw(st.sampled_from(["500m", "1", "2", "3", "4"])),
        "memory": draw(st.sampled_from(["1Gi", "1500Mi"])),
    }
    if draw(st.integers(0, 4)) == 0:
        amounts["nvidia.com/gpu"] = "1"
    annotations = {}
    spec = draw(
        st.sampled_from(
            [
                {},
                {"preferredCPUBindPolicy": "SpreadByPCPUs"},
                {"requiredCPUBindPolicy": "Default"},
                {"preferredCPUBindPolicy": "FullPCPUs", "preferredCPUExclusivePolicy": "PCPULevel"},
                {"preferredCPUBindPolicy": "ConstrainedBurst", "mine": 1},
            ]
        )
    )
    if spec:
        annotations["scheduling.koordinator.sh/resource-spec"] = json.dumps(spec)
    policy = draw(st.sampled_from(["", "BestEffort", "Restricted", "SingleNUMANode"]))
    if policy:
        annotations["scheduling.koordinator.sh/numa-topology-spec"] = json.dumps({"numaTopologyPolicy": policy})
    qos = draw(st.sampled_from(["", "LSR", "LSE", "LS"]))
    return {
        "metadata": {"annotations": annotations, "labels": {"koordinator.sh/qosClass": qos} if qos else {}},
        "spec": {"containers": [{"name": "c", "resources": {"requests": amounts, "limits": amounts}}]},
    }


@given(st.lists(raw_pods(), max_size=8), raw_pods())
def test_a_rebuilt_ledger_equals_the_live_one(arrivals: list[Json], next_one: Json) -> None:
    where = inventory(parse_node(NODE), parse_topology(topology()))
    assert isinstance(where, Inventory)
    live, bound = Ledger(), []
    for index, raw in enumerate(arrivals):
        raw["metadata"] |= {"namespace": "ns", "name": f"pod-{index}", "uid": f"uid-{index}"}
        pod = parse_pod(raw)
        answer = allocate(pod.request, where, live, AllocateOptions())
        if isinstance(answer, Placement):
            live.hold(holding_of(pod, answer.assignment))
            written = resource_status(pod, answer)
            bound.append(
                {
                    "metadata": {**raw["metadata"], "annotations": {**raw["metadata"]["annotations"], **written}},
                    "spec": {**raw["spec"], "nodeName": "n"},
                }
            )
    rebuilt = Ledger.of(holding_of(parse_pod(raw)) for raw in bound)
    assert rebuilt == live
    again = inventory(parse_node(NODE), parse_topology(topology()))
    assert isinstance(again, Inventory)
    assert accounts(again, rebuilt) == accounts(where, live)
    next_one["metadata"] |= {"namespace": "ns", "name": "next", "uid": "next"}
    request = parse_pod(next_one).request
    assert allocate(request, again, rebuilt, AllocateOptions()) == allocate(request, where, live, AllocateOptions())
