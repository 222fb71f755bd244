"""On scheduler-owned nodes: what is right runs, what is wrong fails visibly and is on record."""

from typing import Any

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.sandbox.apiserver import DirectStore
from koord_numa.sandbox.machines.agents import WRONG_PLACEMENT, RejectedPod
from koord_numa.sandbox.machines.description import GIB, NodeDescription, Numbering, Shape
from koord_numa.wire import names, parse_topology
from tests.sandbox.machines.conftest import MakeRack
from tests.sandbox.machines.pods import bind, create, numa, phase, place

# CPUs 0-3 are the two cores of NUMA node 0, 4-7 those of NUMA node 1.
SHAPE = Shape(2, 1, 2, 2, 16 * GIB, Numbering.ADJACENT, devices={"nvidia.com/gpu": (0, 1, 1)})
LSR = {names.QOS_CLASS: "LSR", names.PRIORITY_CLASS: "koord-prod"}
SINGLE = {names.NUMA_TOPOLOGY_SPEC: '{"numaTopologyPolicy":"SingleNUMANode"}'}
FULL = {names.RESOURCE_SPEC: '{"requiredCPUBindPolicy":"FullPCPUs"}'}
SPREAD = {names.RESOURCE_SPEC: '{"requiredCPUBindPolicy":"SpreadByPCPUs"}'}


def node(**more: Any) -> NodeDescription:
    """A small node with GPUs."""
    return NodeDescription(name="n", hardware=SHAPE.build(), **more)


RIGHT: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None]] = {
    "shared": ({"cpu": "1500m"}, {}, None),
    "own CPUs": ({"cpu": "2"}, {}, {"cpuset": "1,6"}),
    "full cores": ({"cpu": "2"}, {"annotations": FULL, "labels": LSR}, {"cpuset": "2-3"}),
    "one CPU a core": ({"cpu": "2"}, {"annotations": SPREAD, "labels": LSR}, {"cpuset": "0,2"}),
    "NUMA amounts": (
        {"cpu": "4", "memory": "20Gi", "nvidia.com/gpu": "2"},
        {},
        {
            "numaNodeResources": numa(
                (0, {"cpu": "2", "memory": "10Gi", "nvidia.com/gpu": "1"}),
                (1, {"cpu": "2", "memory": "10Gi", "nvidia.com/gpu": "1"}),
            )
        },
    ),
    "CPUs and amounts on one NUMA node": (
        {"cpu": "2", "memory": "1Gi"},
        {"annotations": SINGLE},
        {"cpuset": "4-5", "numaNodeResources": numa((1, {"cpu": "2", "memory": "1Gi"}))},
    ),
    "a shared pool": ({"cpu": "2"}, {}, {"cpuSharedPools": [{"socket": 1, "node": 1}]}),
}


@pytest.mark.parametrize(("limits", "metadata", "status"), RIGHT.values(), ids=RIGHT.keys())
def test_right_placements_run(
    store: DirectStore,
    rack_of: MakeRack,
    limits: dict[str, Any],
    metadata: dict[str, Any],
    status: dict[str, Any] | None,
) -> None:
    rack = rack_of([node()])
    pod = create(store, "p", limits, **metadata)
    assert bind(store, pod, "n", status)["status"]["phase"] == "Running"
    assert (rack.violations, rack.refusals, rack.double_holds()) == ([], [], [])
    held = CpuSet.parse((status or {}).get("cpuset", ""))
    assert rack.history.holders() == ({"n": {pod: held}} if held else {})


WRONG: dict[str, tuple[NodeDescription, dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "outside the machine": (node(), {"cpu": "2"}, {}, {"cpuset": "7-8"}, "CPUs 8 are not in the machine"),
    "reserved": (node(reserved=CpuSet.parse("0")), {"cpu": "2"}, {}, {"cpuset": "0-1"}, "CPUs 0 are reserved"),
    "reserved by the kubelet": (
        node(kubelet=KubeletConfig(reserved_cpus=CpuSet.parse("1"))),
        {"cpu": "2"},
        {},
        {"cpuset": "0-1"},
        "CPUs 1 are reserved",
    ),
    "too few": (node(), {"cpu": "3"}, {}, {"cpuset": "0-1"}, "2 CPUs were given, 3 asked for"),
    "too many": (node(), {"cpu": "1"}, {}, {"cpuset": "0-1"}, "2 CPUs were given, 1 asked for"),
    "none though bound": (
        node(),
        {"cpu": "2"},
        {"annotations": FULL, "labels": LSR},
        {},
        "no CPUs were given to a pod that asks for FullPCPUs",
    ),
    "split cores": (
        node(),
        {"cpu": "2"},
        {"annotations": FULL, "labels": LSR},
        {"cpuset": "1-2"},
        "CPUs 1-2 are not whole cores, as the pod's FullPCPUs requires",
    ),
    "split cores on a node of whole ones": (
        node(labels={names.NODE_BIND_POLICY: "FullPCPUsOnly"}),
        {"cpu": "2"},
        {},
        {"cpuset": "1-2"},
        "CPUs 1-2 are not whole cores, as the node's FullPCPUsOnly requires",
    ),
    "crowded cores": (
        node(),
        {"cpu": "2"},
        {"annotations": SPREAD, "labels": LSR},
        {"cpuset": "0-1"},
        "CPUs 0-1 share cores, against the pod's SpreadByPCPUs",
    ),
    "no such NUMA node": (
        node(),
        {"cpu": "1"},
        {},
        {"numaNodeResources": numa((5, {"cpu": "1"}))},
        "NUMA nodes 5 are not in the machine",
    ),
    "too much for a NUMA node": (
        node(),
        {"memory": "20Gi"},
        {},
        {"numaNodeResources": numa((0, {"memory": "20Gi"}))},
        f"NUMA node 0 has {16 * GIB} of {16 * GIB} memory left, {20 * GIB} were given",
    ),
    "too many GPUs for a NUMA node": (
        node(),
        {"nvidia.com/gpu": "2"},
        {},
        {"numaNodeResources": numa((0, {"nvidia.com/gpu": "2"}))},
        "NUMA node 0 has 1 of 1 nvidia.com/gpu left, 2 were given",
    ),
    "amounts that do not add up": (
        node(),
        {"cpu": "3"},
        {},
        {"numaNodeResources": numa((0, {"cpu": "2"}))},
        "2000 cpu were given on NUMA nodes, 3000 asked for",
    ),
    "CPUs elsewhere than charged": (
        node(),
        {"cpu": "2"},
        {},
        {"cpuset": "0,4", "numaNodeResources": numa((0, {"cpu": "2"}))},
        ("1 CPUs are on NUMA node 0, which was charged 2; 1 CPUs are on NUMA node 1, which was charged 0"),
    ),
    "two NUMA nodes under SingleNUMANode": (
        node(),
        {"cpu": "2"},
        {"annotations": SINGLE},
        {"cpuset": "0,4"},
        "NUMA nodes 0-1 were used under SingleNUMANode",
    ),
    "two NUMA nodes on a node of SingleNUMANode": (
        node(labels={names.NODE_NUMA_POLICY: "SingleNUMANode"}),
        {"cpu": "2"},
        {},
        {"cpuset": "0,4"},
        "NUMA nodes 0-1 were used under SingleNUMANode",
    ),
    "unreadable": (
        node(),
        {"cpu": "2"},
        {},
        {"cpuset": "two"},
        f"Pod default/p: annotation {names.RESOURCE_STATUS}.cpuset: 'two' is neither a CPU id nor a range",
    ),
}


@pytest.mark.parametrize(("description", "limits", "metadata", "status", "message"), WRONG.values(), ids=WRONG.keys())
def test_wrong_placements_fail_visibly(
    store: DirectStore,
    rack_of: MakeRack,
    description: NodeDescription,
    limits: dict[str, Any],
    metadata: dict[str, Any],
    status: dict[str, Any],
    message: str,
) -> None:
    rack = rack_of([description])
    pod = create(store, "p", limits, **metadata)
    found = bind(store, pod, "n", status)["status"]
    assert (found["phase"], found["reason"], found["message"]) == (
        "Failed",
        WRONG_PLACEMENT,
        f"Pod was rejected: {message}",
    )
    assert rack.violations == rack.refusals == [RejectedPod("n", pod, WRONG_PLACEMENT, message)]
    assert rack.history.holders() == {}


def test_a_cpu_is_not_given_twice(store: DirectStore, rack_of: MakeRack) -> None:
    rack = rack_of([node()])
    first = place(store, "n", "first", "0-3")
    second = place(store, "n", "second", "3-4")
    assert (phase(store, first), phase(store, second)) == ("Running", "Failed")
    assert [complaint.message for complaint in rack.violations] == ["CPUs 3 belong to default/first"]
    assert rack.double_holds() == []  # the second pod never held them


def test_a_full_node_answers_like_a_kubelet(store: DirectStore, rack_of: MakeRack) -> None:
    rack = rack_of([node()])
    found = bind(store, create(store, "p", {"cpu": "9"}), "n")["status"]
    assert (found["phase"], found["reason"]) == ("Failed", "OutOfcpu")
    assert (len(rack.refusals), rack.violations) == (1, [])


def test_amplified_cpus_are_shared_amplified_and_held_exactly(store: DirectStore, rack_of: MakeRack) -> None:
    rack = rack_of([node(amplification={"cpu": 2.0})])
    one = create(store, "shared", {"cpu": "6"})
    bind(store, one, "n", {"numaNodeResources": numa((0, {"cpu": "6"}))})  # of 4 CPUs that count as 8
    two = create(store, "owner", {"cpu": "2"})
    bind(store, two, "n", {"cpuset": "0-1", "numaNodeResources": numa((0, {"cpu": "2"}))})
    assert (phase(store, one), phase(store, two)) == ("Running", "Failed")
    assert [complaint.message for complaint in rack.violations] == [
        "NUMA node 0 has 2000 of 8000 cpu left, 4000 were given"
    ]


def test_a_static_kubelet_beside_koordinator_pins_its_own_pods(store: DirectStore, rack_of: MakeRack) -> None:
    rack = rack_of([node(kubelet=KubeletConfig(cpu_policy="static", reserved_cpus=CpuSet.parse("0")))])
    place(store, "n", "ours", "2-3")
    pod = create(store, "theirs", {"cpu": "2", "memory": "1Gi"})
    bind(store, pod, "n")
    rack.publish()
    topology = parse_topology(store.get("noderesourcetopologies.topology.node.k8s.io", "n"))
    (allocation,) = topology.kubelet_pods
    assert (allocation.uid, str(allocation.cpus), str(topology.reserved)) == (pod.uid, "4-5", "0,4-5")
    assert rack.history.holders()["n"][pod] == CpuSet.parse("4-5")
