"""Keys that are almost ours: an error on a waiting pod, reported on nodes and topologies, and nothing on keys of others."""

import json
from typing import Any, Final

import pytest

from koord_numa.wire import names, parse_node, parse_pod, parse_topology
from tests.cluster.objects import pod_document
from tests.tables import each_row
from tests.wire.objects import KUBELET_NRT, NODE, annotated, changed

NUMA_SPEC: Final = names.NUMA_TOPOLOGY_SPEC
SINGLE: Final = '{"numaTopologyPolicy":"SingleNUMANode"}'

MISSPELLED: Final = {
    "one-letter-missing": ("annotations", "scheduling.koordinator.sh/numa-topolgy-spec", SINGLE, NUMA_SPEC),
    "two-mistakes": ("annotations", "scheduling.kordinator.sh/numa-topology-spc", SINGLE, NUMA_SPEC),
    "another-case": ("annotations", "Scheduling.Koordinator.sh/NUMA-Topology-Spec", SINGLE, NUMA_SPEC),
    "camel-case": ("annotations", "scheduling.koordinator.sh/numaTopologySpec", SINGLE, NUMA_SPEC),
    "prefix-of-labels": ("annotations", "koordinator.sh/numa-topology-spec", SINGLE, NUMA_SPEC),
    "prefix-of-nodes": ("annotations", "node.koordinator.sh/resource-spec", "{}", names.RESOURCE_SPEC),
    "prefix-of-our-own": ("annotations", "koord-numa/numa-topology-spec", SINGLE, NUMA_SPEC),
    "no-prefix": ("annotations", "numa-topology-spec", SINGLE, NUMA_SPEC),
    "key-of-a-node": ("annotations", "node.koordinator.sh/numa-topology-policy", "SingleNUMANode", NUMA_SPEC),
    "label-of-a-node": ("labels", "node.koordinator.sh/cpu-bind-policy", "FullPCPUsOnly", names.RESOURCE_SPEC),
    "member-as-key": ("annotations", "scheduling.koordinator.sh/numaTopologyPolicy", "Restricted", NUMA_SPEC),
    "another-scheduler": ("annotations", "volcano.sh/numa-topology-policy", "single-numa-node", NUMA_SPEC),
    "annotation-as-label": ("labels", NUMA_SPEC, "SingleNUMANode", NUMA_SPEC),
    "label-as-annotation": ("annotations", names.QOS_CLASS, "LSR", names.QOS_CLASS),
    "qos-class": ("labels", "koordinator.sh/qos-class", "LSR", names.QOS_CLASS),
    "qosclass": ("labels", "koordinator.sh/qosclass", "LSR", names.QOS_CLASS),
    "qos": ("labels", "koordinator.sh/qos", "LSR", names.QOS_CLASS),
    "qos-without-prefix": ("labels", "qosClass", "LSR", names.QOS_CLASS),
    "priority-class": ("labels", "scheduling.koordinator.sh/priorityClass", "koord-prod", names.PRIORITY_CLASS),
    "numa-spread": ("annotations", "scheduling.koordinator.sh/numa-spread", "{}", names.NUMA_SPREAD),
    "a-part-of-the-name": ("annotations", "scheduling.koordinator.sh/numa-topology", SINGLE, NUMA_SPEC),
    "another-part-of-the-name": ("annotations", "scheduling.koordinator.sh/topology-spec", SINGLE, NUMA_SPEC),
    "subject-numa": ("annotations", "koordinator.sh/preferred-numa", "0", NUMA_SPEC),
    "subject-cpus": ("annotations", "koordinator.sh/cpu-policy", "FullPCPUs", names.RESOURCE_SPEC),
    "plural": ("annotations", "scheduling.koordinator.sh/cpu-bind-policies", "FullPCPUs", names.RESOURCE_SPEC),
    "rebind": ("annotations", "koord-numa.io/rebind", "false", names.REBIND),
    "rebind-under-another-prefix": ("annotations", "scheduling.koord-numa.io/rebind", "false", names.REBIND),
}


def pod(kind: str, found: dict[str, str]) -> Any:
    parts = {"labels": {}, "annotations": {}, kind: found}
    return identified(pod_document("p", {"containers": [{"name": "c", "image": "i"}]}, **parts))


def identified(obj: Any) -> Any:
    obj["metadata"]["uid"] = "u"
    return obj


@each_row(("kind", "key", "value", "meant"), MISSPELLED.values(), ids=MISSPELLED)
def test_a_pod_with_a_misspelled_demand_is_told_the_right_key(kind: str, key: str, value: str, meant: str) -> None:
    problem = parse_pod(pod(kind, {key: value})).problem
    assert f"{kind[:-1]} {key} is not read; use the " in problem
    assert problem.endswith(meant)


@each_row(
    ("kind", "key", "value"),
    [
        pytest.param("labels", "qos-class", "gold", id="users-own-qos"),
        pytest.param("labels", "priority-class", "high", id="users-own-priority"),
        pytest.param("annotations", "example.com/resource-spec", "{}", id="another-projects-resource-spec"),
        pytest.param("annotations", "example.com/rebind", "true", id="another-projects-rebind"),
        pytest.param("labels", "koordinator.sh/priority", "100", id="koordinators-sub-priority"),
        pytest.param("annotations", "scheduling.koordinator.sh/device-allocated", "{}", id="koordinators-devices"),
        pytest.param("annotations", "koordinator.sh/cpuBurst", "{}", id="koordinators-cpu-burst"),
        pytest.param(
            "annotations", "gang.scheduling.koordinator.sh/network-topology-spec", "{}", id="koordinators-gangs"
        ),
        pytest.param("annotations", names.RESOURCE_STATUS, "{}", id="resource-status"),
        pytest.param("annotations", "volcano.sh/queue-name", "q", id="volcano-queue"),
        pytest.param("labels", "x" * 5000, "y", id="endless"),
    ],
)
def test_keys_of_others_are_left_alone(kind: str, key: str, value: str) -> None:
    assert parse_pod(pod(kind, {key: value})).problem == ""


@pytest.mark.parametrize(("value", "told"), [("never", '"never" is none of true, false'), ("False", ""), ("true", "")])
def test_values_of_the_rebind_annotation(value: str, told: str) -> None:
    problem = parse_pod(pod("annotations", {names.REBIND: value})).problem
    assert problem.endswith(told) if told else problem == ""


def test_a_copy_of_a_label_that_is_read_loses_no_demand() -> None:
    both = {names.QOS_CLASS: "LSR"}
    copied = identified(pod_document("p", {"containers": []}, labels=both, annotations=both))
    assert parse_pod(copied).problem == ""
    copied["metadata"]["annotations"][names.QOS_CLASS] = "LS"
    assert "annotation koordinator.sh/qosClass is not read" in parse_pod(copied).problem


def test_a_pod_that_runs_is_not_checked() -> None:
    running = pod("annotations", {"koordinator.sh/numa-topology-spec": SINGLE, names.RESOURCE_SPEC: '{"x":1}'})
    running["spec"]["nodeName"] = "n"
    assert parse_pod(running).problem == ""


@each_row(
    ("key", "value", "told"),
    [
        (NUMA_SPEC, {"numaPolicy": "SingleNUMANode"}, "numaPolicy: is unknown, did you mean numaTopologyPolicy?"),
        (NUMA_SPEC, {"numa-topology-policy": "x"}, "did you mean numaTopologyPolicy?"),
        (NUMA_SPEC, {"topologyPolicy": "x"}, "did you mean numaTopologyPolicy?"),
        (NUMA_SPEC, {"requiredCPUBindPolicy": "FullPCPUs"}, f"is a member of the annotation {names.RESOURCE_SPEC}"),
        (names.RESOURCE_SPEC, {"requireCPUBindPolicy": "FullPCPUs"}, "did you mean requiredCPUBindPolicy?"),
        (names.RESOURCE_SPEC, {"comment": "x"}, "comment: is unknown (accepted: numaAllocateStrategy, "),
    ],
)
def test_unknown_members_of_a_pods_annotations(key: str, value: dict[str, str], told: str) -> None:
    assert told in parse_pod(pod("annotations", {key: json.dumps(value)})).problem


def test_members_match_without_regard_to_case_and_null_is_absent() -> None:
    texts = {NUMA_SPEC: '{"NUMAtopologyPOLICY":"Restricted","other":null}', names.RESOURCE_SPEC: "null"}
    assert parse_pod(pod("annotations", texts)).problem == ""


@each_row(
    ("path", "key", "value", "told"),
    [
        ("labels", "node.koordinator.sh/numa-topology-polcy", "Restricted", f"label {names.NODE_NUMA_POLICY}"),
        ("labels", "koordinator.sh/cpu-bind-policy", "FullPCPUsOnly", f"label {names.NODE_BIND_POLICY}"),
        ("annotations", names.NODE_NUMA_STRATEGY, "MostAllocated", f"label {names.NODE_NUMA_STRATEGY}"),
        ("labels", "koord-numa/dedicated", "true", f"label {names.DEDICATED}"),
        ("annotations", "node.koordinator.sh/reservations", "{}", f"annotation {names.RESERVATION}"),
        ("annotations", names.RESERVATION, '{"reservedCPU":"0"}', "use reservedCPUs"),
        ("labels", "node.koordinator.sh/numa-policy", "Restricted", f"label {names.NODE_NUMA_POLICY}"),
        ("labels", "node.koordinator.sh/cpu-policy", "FullPCPUsOnly", f"label {names.NODE_BIND_POLICY}"),
        ("annotations", "node.koordinator.sh/amplification-ratio", '{"cpu":2}', f"annotation {names.AMPLIFICATION}"),
        ("annotations", names.AMPLIFICATION, '{"cpus":2}', "use cpu"),
    ],
)
def test_misspelled_keys_of_a_node_are_reported(path: str, key: str, value: str, told: str) -> None:
    node = parse_node(changed(NODE, f"metadata {path}", {key: value}))
    assert node.problem == ""
    assert [sentence for sentence in node.unread if key in sentence and told in sentence]


@each_row(
    ("name", "value", "told"),
    [
        ("topologyManagerPolcy", "restricted", "use topologyManagerPolicy"),
        ("topology-manager-policy", "restricted", "use topologyManagerPolicy"),
        ("topologyManagerPolicies", "restricted", "use topologyManagerPolicy"),
        ("TopologyPolicy", "single-numa-node", "use topologyManagerPolicy"),
        ("cpuManagerPolicyOption", "x=true", "use cpuManagerPolicyOptions"),
    ],
)
def test_misspelled_attributes_of_a_topology_are_reported(name: str, value: str, told: str) -> None:
    attributes = [*KUBELET_NRT["attributes"], {"name": name, "value": value}]
    topology = parse_topology(changed(KUBELET_NRT, "attributes", attributes))
    assert topology.problem == ""
    assert topology.unread == (f"attribute {name} is not read; {told}",)


def test_other_misspellings_of_a_topology() -> None:
    nrt = annotated(KUBELET_NRT, "kubelet.koordinator.sh/cpu-manager-policy", '{"policy":"static","option":{}}')
    nrt = annotated(nrt, "node.koordinator.sh/cpu-topologie", "{}")
    nrt["zones"] = [*nrt["zones"], {"name": "node-7", "type": "node"}]
    assert parse_topology(nrt).unread == (
        "annotation node.koordinator.sh/cpu-topologie is not read; use the annotation node.koordinator.sh/cpu-topology",
        "annotation kubelet.koordinator.sh/cpu-manager-policy.option is not read; use options",
        'zones of type "node" are not read; NUMA nodes have the type Node',
    )


def test_whole_objects_have_nothing_unread() -> None:
    assert (parse_node(NODE).unread, parse_topology(KUBELET_NRT).unread) == ((), ())
