"""NodeResourceTopologies of both styles and versions."""

import json
from typing import Any

import pytest

from koord_numa.core.cpu_topology import cpu_topology_of
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.node import KubeletAllocation, KubeletConfig, NodeResourceTopology, Zone
from koord_numa.core.objects.vocabulary import CpuOwner, KubeletPolicy, KubeletScope, NumaPolicy
from koord_numa.wire import WireError, parse_topology
from tests.tables import each_row
from tests.wire.objects import KOORDINATOR_NRT, KUBELET_NRT, Object, annotated, changed

GIB = 2**30
CPU_TOPOLOGY = "node.koordinator.sh/cpu-topology"
CPU_MANAGER = "kubelet.koordinator.sh/cpu-manager-policy"
ALLOCS = "node.koordinator.sh/pod-cpu-allocs"


def test_koordinators_agent() -> None:
    def zone(numa: int) -> Zone:
        amounts = [{"cpu": 4000, "memory": memory * GIB} for memory in (16, 15, 14)]
        return Zone(numa, *amounts)

    assert parse_topology(KOORDINATOR_NRT) == NodeResourceTopology(
        node="worker-2",
        owner=CpuOwner.SCHEDULER,
        zones=(zone(0), zone(1)),
        machine=cpu_topology_of([(cpu, cpu // 2, 0, cpu // 4) for cpu in range(8)]),
        kubelet=KubeletConfig(
            topology_policy=KubeletPolicy.SINGLE_NUMA_NODE,
            topology_scope=KubeletScope.POD,
            cpu_policy="static",
            cpu_options={"full-pcpus-only": True},
            reserved_cpus=CpuSet.parse("0"),
        ),
        numa_policy=NumaPolicy.SINGLE_NUMA_NODE,
        reserved=CpuSet.parse("0,2-4,7"),
        kubelet_reserved=CpuSet.parse("0"),
        kubelet_pods=(KubeletAllocation("a", "b", "c", CpuSet.parse("2-3"), managed_by_kubelet=True),),
        amplification={"cpu": 2.0},
        node_uid="n1",
        resource_version="9",
    )


def test_an_exporter_of_the_kubelet() -> None:
    assert parse_topology(KUBELET_NRT) == NodeResourceTopology(
        node="worker-3",
        owner=CpuOwner.KUBELET,
        zones=tuple(Zone(numa, {"cpu": 8000}, {"cpu": 7500}, {"cpu": 1500}) for numa in (0, 1)),
        kubelet=KubeletConfig(
            topology_policy=KubeletPolicy.SINGLE_NUMA_NODE,
            topology_scope=KubeletScope.POD,
            topology_options={"prefer-closest-numa-nodes": True},
        ),
        distances={(0, 0): 10, (0, 1): 21, (1, 0): 21, (1, 1): 10},
        fingerprint="pfp0v001ef46db3751d8e999",
        fingerprint_method="with-exclusive-resources",
    )


def test_the_first_version_of_the_api() -> None:
    resources = [{"name": "cpu", "allocatable": 7, "capacity": "8"}]
    zone = {"name": "node-0", "type": "Node", "resources": resources}
    obj = {"metadata": {"name": "n"}, "topologyPolicies": ["SingleNumaNode"], "zones": [zone]}
    topology = parse_topology(obj)
    assert topology.zones == (Zone(0, {"cpu": 8000}, {"cpu": 7000}, {"cpu": 7000}),)
    assert topology.kubelet.topology_policy is KubeletPolicy.SINGLE_NUMA_NODE


def test_an_empty_topology_says_nothing() -> None:
    assert parse_topology({"metadata": {"name": "n"}}) == NodeResourceTopology(
        node="n", owner=CpuOwner.KUBELET, gap="its NodeResourceTopology lists no zones", describes_nodes=False
    )


NRI_ZONES = [
    {"name": "fast[0]", "type": "balloon", "resources": [{"name": "cpu", "capacity": "no quantity", "available": {}}]},
    {"name": "root", "type": "virtual node"},
    {"name": "fast[1]", "type": "balloon", "attributes": [{"name": "cpuset", "value": "4-19"}]},
]
"""Pools of an NRI resource policy plugin. They are not NUMA nodes, so nothing in them is read but their type."""


@each_row(
    ("metadata", "body", "gap", "describes"),
    [
        pytest.param(
            {},
            {"zones": NRI_ZONES, "attributes": [{"name": "TopologyPolicy", "value": "balloons"}]},
            'its NodeResourceTopology, published by the NRI plugin with the policy "balloons", lists zones of type "balloon", '
            '"virtual node" and none of type Node (NUMA nodes)',
            False,
            id="pools-of-an-nri-plugin",
        ),
        pytest.param(
            {"managedFields": [{"manager": "nri-resource-policy"}, {"manager": "kubectl"}, {"manager": "kubectl"}]},
            {"zones": []},
            "its NodeResourceTopology, published by nri-resource-policy, kubectl, lists no zones",
            False,
            id="field-managers",
        ),
        pytest.param(
            {"managedFields": "odd"},
            {"zones": [{"name": "node-0", "type": "Node"}], "topologyPolicies": ["None"]},
            "its NodeResourceTopology lists no resources of its NUMA nodes",
            False,
            id="numa-nodes-without-resources",
        ),
        pytest.param(
            {},
            {"zones": [], "topologyPolicies": ["BestEffortPodLevel"]},
            "its NodeResourceTopology lists no zones",
            False,
            id="a-kubelet-that-refuses-nothing",
        ),
        pytest.param(
            {
                "labels": {"app.kubernetes.io/managed-by": "Koordinator"},
                "annotations": {CPU_TOPOLOGY: json.dumps({"detail": [{"id": 0, "core": 0, "socket": 0, "node": 0}]})},
            },
            {},
            "its NodeResourceTopology, published by Koordinator, lists no zones",
            True,
            id="cpus-of-koordlet-without-zones",
        ),
        pytest.param({}, {"zones": KUBELET_NRT["zones"]}, "", True, id="numa-nodes-without-a-policy"),
    ],
)
def test_what_a_topology_lacks(metadata: Object, body: Object, gap: str, describes: bool) -> None:
    topology = parse_topology({"metadata": {"name": "n", **metadata}, **body})
    assert (topology.problem, topology.gap, topology.describes_nodes) == ("", gap, describes)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"zones": NRI_ZONES, "topologyPolicies": ["SingleNUMANode"]}, id="pools"),
        pytest.param({"zones": [], "attributes": [{"name": "memoryManagerPolicy", "value": "Static"}]}, id="no-zones"),
    ],
)
def test_numa_nodes_of_a_strict_kubelet_must_be_known(body: Object) -> None:
    topology = parse_topology({"metadata": {"name": "n"}, **body})
    assert topology.problem.startswith("NodeResourceTopology n: it lists ")
    assert topology.problem.endswith(", but the kubelet aligns pods to NUMA nodes")


def attributes(*pairs: tuple[str, str]) -> Object:
    """The kubelet's NRT with these attributes alone."""
    return changed(KUBELET_NRT, "attributes", [{"name": name, "value": value} for name, value in pairs])


NONE, BEST, RESTRICTED, SINGLE = KubeletPolicy
CONTAINER, POD = KubeletScope

KUBELETS: dict[str, tuple[Object, KubeletConfig]] = {
    "policies alone": (attributes(), KubeletConfig(RESTRICTED, CONTAINER)),
    "only the first policy": (
        changed(attributes(), "topologyPolicies", ["BestEffortPodLevel", "SingleNUMANodePodLevel"]),
        KubeletConfig(BEST, POD),
    ),
    "without scope": (changed(attributes(), "topologyPolicies", ["Restricted"]), KubeletConfig(RESTRICTED, CONTAINER)),
    "none": (changed(attributes(), "topologyPolicies", ["None"]), KubeletConfig(NONE)),
    "nothing published": (changed(attributes(), "topologyPolicies", []), KubeletConfig()),
    "field by field": (
        changed(attributes(("topologyManagerPolicy", "none")), "topologyPolicies", ["SingleNUMANodePodLevel"]),
        KubeletConfig(NONE, POD),
    ),
    "the last attribute wins": (
        attributes(("topologyManagerPolicy", "none"), ("topologyManagerPolicy", "best-effort")),
        KubeletConfig(BEST),
    ),
    "many NUMA nodes": (
        attributes(("topologyManagerMaxNUMANodes", "16")),
        KubeletConfig(RESTRICTED, max_numa_nodes=16),
    ),
    "too many to be true": (
        attributes(("topologyManagerMaxNUMANodes", "5000")),
        KubeletConfig(RESTRICTED, max_numa_nodes=1024),
    ),
    "as an option": (
        attributes(("topologyManagerOptionMaxAllowableNumaNodes", "12")),
        KubeletConfig(RESTRICTED, max_numa_nodes=12),
    ),
    "every manager": (
        attributes(
            ("topologyManagerOptionPreferClosestNUMANodes", "False"),
            ("cpuManagerPolicy", "static"),
            ("cpuManagerOptionFullPcpusOnly", "1"),
            ("cpuManagerPolicyOptions", "align-by-socket=true, distribute-cpus-across-numa=f"),
            ("memoryManagerPolicy", "Static"),
            ("reservedCPUs", "0-1"),
        ),
        KubeletConfig(
            RESTRICTED,
            topology_options={"prefer-closest-numa-nodes": False},
            cpu_policy="static",
            cpu_options={"align-by-socket": True, "distribute-cpus-across-numa": False, "full-pcpus-only": True},
            memory_policy="Static",
            reserved_cpus=CpuSet.parse("0-1"),
        ),
    ),
    "attributes before the annotation": (
        annotated(attributes(("cpuManagerPolicy", "none")), CPU_MANAGER, '{"policy":"static","reservedCPUs":""}'),
        KubeletConfig(RESTRICTED, cpu_policy="none", reserved_cpus=CpuSet()),
    ),
    "reserved CPUs whatever the policy": (
        annotated(attributes(), CPU_MANAGER, '{"reservedCPUs":"1"}'),
        KubeletConfig(RESTRICTED, reserved_cpus=CpuSet.parse("1")),
    ),
}


@each_row(("obj", "expected"), KUBELETS.values(), ids=KUBELETS.keys())
def test_kubelets(obj: Object, expected: KubeletConfig) -> None:
    topology = parse_topology(obj)
    assert (topology.kubelet, topology.problem) == (expected, "")


POLICIES: dict[str, tuple[list[str], NumaPolicy]] = {
    "plain": (["Restricted"], NumaPolicy.RESTRICTED),
    "old spelling": (["SingleNumaNode"], NumaPolicy.SINGLE_NUMA_NODE),
    "pod level": (["BestEffortPodLevel"], NumaPolicy.BEST_EFFORT),
    "container level": (["SingleNUMANodeContainerLevel"], NumaPolicy.SINGLE_NUMA_NODE),
    "the first that demands something": (["None", "Restricted", "BestEffort"], NumaPolicy.RESTRICTED),
    "none": (["None"], NumaPolicy.NONE),
    "nothing": ([], NumaPolicy.NONE),
}


@each_row(("words", "expected"), POLICIES.values(), ids=POLICIES.keys())
def test_policy_of_a_scheduler_owned_node(words: list[str], expected: NumaPolicy) -> None:
    topology = parse_topology(changed(KOORDINATOR_NRT, "topologyPolicies", words))
    assert (topology.numa_policy, topology.problem) == (expected, "")


def test_policy_of_a_scheduler_owned_node_by_attribute() -> None:
    obj = changed(KOORDINATOR_NRT, "attributes", [{"name": "topologyManagerPolicy", "value": "restricted"}])
    assert parse_topology(changed(obj, "topologyPolicies", [])).numa_policy is NumaPolicy.RESTRICTED


def alloc(text: str) -> Object:
    """Koordinator's NRT with this annotation as the only source of reserved CPUs."""
    return changed(
        KOORDINATOR_NRT,
        "metadata annotations",
        {CPU_TOPOLOGY: KOORDINATOR_NRT["metadata"]["annotations"][CPU_TOPOLOGY], ALLOCS: text},
    )


ALLOCATIONS: dict[str, tuple[str, str]] = {
    "none": ("null", ""),
    "empty": ("[]", ""),
    "managed": ('[{"uid":"a","cpuset":"4-5","managedByKubelet":true}]', "4-5"),
    "the proposal's spelling": ('[{"uid":"a","cpu":"4-5","managedByKubelet":"true"}]', "4-5"),
    "not the kubelet's": ('[{"uid":"a","cpuset":"4-5","managedByKubelet":"false"},{"cpuset":"6"}]', ""),
    "several": (
        '[{"uid":"b","cpuset":"1","managedByKubelet":true},{"uid":"a","cpuset":"3","managedByKubelet":true}]',
        "1,3",
    ),
}


@each_row(("text", "reserved"), ALLOCATIONS.values(), ids=ALLOCATIONS.keys())
def test_cpus_of_the_kubelets_pods(text: str, reserved: str) -> None:
    topology = parse_topology(alloc(text))
    assert (str(topology.reserved), topology.problem) == (reserved, "")


def test_system_cpus_that_are_shared_are_not_reserved() -> None:
    shared = alloc("null")
    shared["metadata"]["annotations"]["node.koordinator.sh/system-qos-resource"] = (
        '{"cpuset":"0","cpusetExclusive":false}'
    )
    assert parse_topology(shared).reserved == CpuSet()


def test_zones_without_cpus_belong_to_the_machine() -> None:
    zones = [*KOORDINATOR_NRT["zones"], {"name": "node-5", "type": "Node"}, {"name": "socket", "type": "Socket"}]
    machine = parse_topology(changed(KOORDINATOR_NRT, "zones", zones)).machine
    assert machine is not None
    assert machine.numa_ids == (0, 1, 5)


def test_equal_machines_are_one_object() -> None:
    again = changed(KOORDINATOR_NRT, "metadata name", "worker-9")
    assert parse_topology(KOORDINATOR_NRT).machine is parse_topology(again).machine


def detail(*cpus: dict[str, Any]) -> str:
    """The text of a cpu-topology annotation."""
    return json.dumps({"detail": cpus})


PROBLEMS: dict[str, tuple[Object, str]] = {
    "no CPUs": (annotated(KOORDINATOR_NRT, CPU_TOPOLOGY, "{}"), f"annotation {CPU_TOPOLOGY}: no CPU is listed"),
    "null CPUs": (annotated(KOORDINATOR_NRT, CPU_TOPOLOGY, "null"), f"annotation {CPU_TOPOLOGY}: no CPU is listed"),
    "CPU twice": (
        annotated(KOORDINATOR_NRT, CPU_TOPOLOGY, detail({"id": 3}, {"id": 3})),
        f"annotation {CPU_TOPOLOGY}: CPU 3 is listed twice",
    ),
    "CPU too large": (
        annotated(KOORDINATOR_NRT, CPU_TOPOLOGY, detail({"id": 4097})),
        f"annotation {CPU_TOPOLOGY}: CPU 4097 is above 4096",
    ),
    "CPU negative": (
        annotated(KOORDINATOR_NRT, CPU_TOPOLOGY, detail({"id": -1})),
        f"annotation {CPU_TOPOLOGY}.detail[0].id: -1 is below 0, the least that is allowed",
    ),
    "NUMA id too large": (
        annotated(KOORDINATOR_NRT, CPU_TOPOLOGY, detail({"id": 1, "node": 1024})),
        f"annotation {CPU_TOPOLOGY}: NUMA node 1024 is not in 0 to 1023",
    ),
    "zone name": (changed(KUBELET_NRT, "zones 0 name", "numa0"), 'zones: "numa0" is not a name of a NUMA node'),
    "zone id": (changed(KUBELET_NRT, "zones 0 name", "node-1024"), "zones: NUMA node 1024 is not in 0 to 1023"),
    "zone twice": (changed(KUBELET_NRT, "zones 0 name", "node-1"), "zones: NUMA node 1 is listed twice"),
    "resource twice": (
        changed(KUBELET_NRT, "zones 0 resources", [{"name": "cpu", "capacity": 1}, {"name": "cpu", "capacity": 1}]),
        "zones.node-0.cpu: is listed twice",
    ),
    "resource without amounts": (
        changed(KUBELET_NRT, "zones 0 resources", [{"name": "cpu"}]),
        "zones.node-0.cpu: has neither capacity nor allocatable",
    ),
    "cost": (changed(KUBELET_NRT, "zones 0 costs 0 value", -1), "zones[0].costs[0].value: -1 is below 0"),
    "policy": (
        changed(KUBELET_NRT, "topologyPolicies", ["Strict"]),
        'topologyPolicies: "Strict" is none of BestEffort, BestEffortContainerLevel',
    ),
    "attribute": (
        attributes(("topologyManagerPolicy", "wrong")),
        'attributes.topologyManagerPolicy: "wrong" is none of best-effort, none, restricted, single-numa-node',
    ),
    "number of NUMA nodes": (
        attributes(("topologyManagerMaxNUMANodes", "1")),
        'attributes.topologyManagerMaxNUMANodes: "1" is not a count of NUMA nodes above 1',
    ),
    "reserved CPUs": (
        attributes(("reservedCPUs", "x")),
        "attributes.reservedCPUs: 'x' is neither a CPU id nor a range",
    ),
    "option": (
        annotated(KOORDINATOR_NRT, CPU_MANAGER, '{"options":{"full-pcpus-only":"yes"}}'),
        f'annotation {CPU_MANAGER}.full-pcpus-only: "yes" is none of false, true',
    ),
    "who manages": (alloc('[{"managedByKubelet":"perhaps"}]'), f'annotation {ALLOCS}.managedByKubelet: "perhaps"'),
}


@each_row(("obj", "problem"), PROBLEMS.values(), ids=PROBLEMS.keys())
def test_of_a_malformed_topology_nothing_is_used(obj: Object, problem: str) -> None:
    topology = parse_topology(obj)
    assert topology.problem.startswith(f"NodeResourceTopology {obj['metadata']['name']}: {problem}")
    assert (topology.zones, topology.machine, topology.kubelet) == ((), None, KubeletConfig())
    assert topology.owner is (CpuOwner.SCHEDULER if "annotations" in obj["metadata"] else CpuOwner.KUBELET)


def test_without_a_name_there_is_no_topology() -> None:
    with pytest.raises(WireError, match=r"^NodeResourceTopology: metadata: null is not an object$"):
        parse_topology({})


ZONE_NAMES = {"node-0": 0, "node-63": 63, "numa-node-7": 7, "rack_node-3": 3}


@each_row(("name", "numa"), ZONE_NAMES.items())
def test_zone_names(name: str, numa: int) -> None:
    obj = {"metadata": {"name": "n"}, "zones": [{"name": name, "type": "Node"}]}
    assert parse_topology(obj).zones == (Zone(numa, {}, {}, {}),)
