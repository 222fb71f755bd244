"""Pods and their requests, from whole objects to whole values."""

from dataclasses import replace
from typing import Any

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.constraints import Constraints
from koord_numa.core.objects.request import (
    Assignment,
    Container,
    CpuBind,
    NumaSpec,
    Pod,
    PodKey,
    PodRequest,
    SharedPool,
)
from koord_numa.core.objects.vocabulary import (
    ContainerKind,
    CpuBindPolicy,
    CpuExclusivePolicy,
    NumaExclusive,
    NumaPolicy,
    PriorityClass,
    QosClass,
)
from koord_numa.core.objects.workloads import WorkloadKey, WorkloadKind
from koord_numa.wire import WireError, parse_pod
from tests.wire.objects import POD, Object, annotated, changed, labelled

GIB = 2**30
SPEC = "scheduling.koordinator.sh/resource-spec"
NUMA_SPEC = "scheduling.koordinator.sh/numa-topology-spec"
STATUS = "scheduling.koordinator.sh/resource-status"


def bare(**spec: Any) -> Object:
    """A pod with nothing but this spec."""
    return {"metadata": {"name": "web", "namespace": "shop", "uid": "u1"}, "spec": spec}


def test_a_whole_pod() -> None:
    labels = (("app", "web"), ("koordinator.sh/priority-class", "koord-prod"), ("koordinator.sh/qosClass", "LSR"))
    pod = parse_pod(POD)
    assert pod == Pod(
        key=PodKey("shop", "web", "u1"),
        request=PodRequest(
            containers=(
                Container("setup", ContainerKind.INIT, {"cpu": 500}),
                Container("proxy", ContainerKind.SIDECAR, {"memory": 64 * 2**20}),
                Container(
                    "main", ContainerKind.APP, {"cpu": 4000, "memory": 8 * GIB}, {"cpu": 4000, "memory": 8 * GIB}
                ),
            ),
            qos=QosClass.LSR,
            priority_class=PriorityClass.PROD,
            priority=9500,
            bind=CpuBind(required=CpuBindPolicy.FULL_PCPUS),
            numa=NumaSpec(policy=NumaPolicy.SINGLE_NUMA_NODE),
            constraints=pod.request.constraints,  # looked at in test_constraints
            namespace="shop",
            labels=labels,
        ),
        scheduler="koord-numa",
        created=1767225600.0,
        labels=labels,
        owner="r1",
        controller=WorkloadKey(WorkloadKind.REPLICA_SET, "shop", "web"),
        images=pod.images,
        resource_version="7",
        ready=False,
        spec_text='{"requiredCPUBindPolicy":"FullPCPUs"}',
    )
    assert pod.images == ("", "", "web:latest")  # one for each container; two name none
    assert pod.request.constraints != Constraints()


STANDING: dict[str, tuple[Object, dict[str, Any]]] = {
    "bound": (changed(POD, "spec nodeName", "worker-2"), {"node": "worker-2", "assignment": None}),
    "nominated": (changed(POD, "status nominatedNodeName", "worker-2"), {"nominated": "worker-2"}),
    "deleting": (changed(POD, "metadata deletionTimestamp", "2026-01-01T00:00:00Z"), {"deleting": True}),
    "gated": (changed(POD, "spec schedulingGates", [{"name": "quota"}]), {"gated": True}),
    "mirror": (annotated(POD, "kubernetes.io/config.mirror", "x"), {"mirror": True}),
    "never preempts": (changed(POD, "spec preemptionPolicy", "Never"), {"preempts": False}),
    "running": (changed(POD, "status phase", "Running"), {"phase": "Running", "started": True}),
    "admitted": (changed(POD, "status containerStatuses", [{"name": "main"}]), {"started": True}),
    "refused": (
        changed(POD, "status", {"phase": "Failed", "reason": "TopologyAffinityError"}),
        {"phase": "Failed", "reason": "TopologyAffinityError", "finished": True},
    ),
    "other scheduler": (changed(POD, "spec schedulerName", None), {"scheduler": "default-scheduler"}),
    "copied status": (annotated(POD, STATUS, '{"cpuset":"0-3"}'), {"assignment": None, "stale_status": True}),
    "copied broken status": (annotated(POD, STATUS, "?"), {"assignment": None, "stale_status": True, "problem": ""}),
}


@pytest.mark.parametrize(("obj", "expected"), STANDING.values(), ids=STANDING.keys())
def test_where_a_pod_stands(obj: Object, expected: dict[str, Any]) -> None:
    pod = parse_pod(obj)
    assert {name: getattr(pod, name) for name in expected} == expected
    assert pod.problem == ""


POLICIES: dict[str, tuple[dict[str, str], CpuBind, NumaSpec]] = {
    "nothing": ({}, CpuBind(), NumaSpec()),
    "empty": ({SPEC: "{}", NUMA_SPEC: "{}"}, CpuBind(), NumaSpec()),
    "null": ({SPEC: "null", NUMA_SPEC: '{"numaTopologyPolicy":null}'}, CpuBind(), NumaSpec()),
    "every CPU policy": (
        {
            SPEC: '{"requiredCPUBindPolicy":"SpreadByPCPUs","preferredCPUBindPolicy":"Default",'
            '"preferredCPUExclusivePolicy":"PCPULevel"}'
        },
        CpuBind(CpuBindPolicy.SPREAD_BY_PCPUS, CpuBindPolicy.DEFAULT, CpuExclusivePolicy.PCPU_LEVEL),
        NumaSpec(),
    ),
    "fields in another case, as Go reads them": (
        {SPEC: '{"PREFERREDcpubindpolicy":"ConstrainedBurst"}'},
        CpuBind(preferred=CpuBindPolicy.CONSTRAINED_BURST),
        NumaSpec(),
    ),
    "the proposal's default exclusive policy": (
        {SPEC: '{"preferredCPUExclusivePolicy":"Default"}'},
        CpuBind(),
        NumaSpec(),
    ),
    "NUMA policy in its own annotation": (
        {NUMA_SPEC: '{"numaTopologyPolicy":"Restricted","singleNUMANodeExclusive":"Required"}'},
        CpuBind(),
        NumaSpec(NumaPolicy.RESTRICTED, NumaExclusive.REQUIRED),
    ),
    "NUMA policy in resource-spec, in small letters": (
        {SPEC: '{"numaTopologyPolicy":"Besteffort","singleNUMANodeExclusive":"preferred"}'},
        CpuBind(),
        NumaSpec(NumaPolicy.BEST_EFFORT, NumaExclusive.PREFERRED),
    ),
    "its own annotation comes first": (
        {SPEC: '{"numaTopologyPolicy":"BestEffort"}', NUMA_SPEC: '{"numaTopologyPolicy":"Restricted"}'},
        CpuBind(),
        NumaSpec(NumaPolicy.RESTRICTED),
    ),
    "the word None": ({NUMA_SPEC: '{"numaTopologyPolicy":"None"}'}, CpuBind(), NumaSpec()),
    "unknown fields": ({SPEC: '{"requiredCPUBindPolicy":"","more":{"a":[1]}}'}, CpuBind(), NumaSpec()),
}


@pytest.mark.parametrize(("annotations", "bind", "numa"), POLICIES.values(), ids=POLICIES.keys())
def test_policies(annotations: dict[str, str], bind: CpuBind, numa: NumaSpec) -> None:
    pod = parse_pod(changed(POD, "metadata annotations", annotations))
    assert (pod.request.bind, pod.request.numa, pod.problem) == (bind, numa, "")


PROBLEMS: dict[str, tuple[Object, str]] = {
    "unknown policy": (
        annotated(POD, SPEC, '{"requiredCPUBindPolicy":"Half"}'),
        (
            f'Pod shop/web: annotation {SPEC}.requiredCPUBindPolicy: "Half" is none of ConstrainedBurst, Default, FullPCPUs, '
            "SpreadByPCPUs"
        ),
    ),
    "not JSON": (
        annotated(POD, NUMA_SPEC, "SingleNUMANode"),
        f'Pod shop/web: annotation {NUMA_SPEC}: "SingleNUMANode" is not JSON: unexpected character',
    ),
    "wrong type": (
        annotated(POD, SPEC, '{"preferredCPUBindPolicy":1}'),
        f"Pod shop/web: annotation {SPEC}.preferredCPUBindPolicy: 1: input should be a valid string",
    ),
    "annotation is no text": (
        annotated(POD, SPEC, {"a": 1}),
        f"Pod shop/web: metadata.annotations.{SPEC}: an object of 1 fields: input should be a valid string",
    ),
    "quantity": (
        changed(POD, "spec containers 0 resources limits cpu", "four"),
        'Pod shop/web: spec.containers.limits.cpu: "four" is not a quantity',
    ),
    "negative": (
        changed(POD, "spec containers 0 resources limits cpu", "-1"),
        'Pod shop/web: spec.containers.limits.cpu: "-1" is negative',
    ),
    "broken status of a bound pod": (
        annotated(changed(POD, "spec nodeName", "n"), STATUS, '{"cpuset":"0-5000"}'),
        f"Pod shop/web: annotation {STATUS}.cpuset: CPU id in '0-5000' is above 4096",
    ),
    "NUMA node out of range": (
        annotated(changed(POD, "spec nodeName", "n"), STATUS, '{"numaNodeResources":[{"node":1024}]}'),
        f"Pod shop/web: annotation {STATUS}.numaNodeResources: NUMA node 1024 is not in 0 to 1023",
    ),
    "spec is a list": (changed(POD, "spec", []), "Pod shop/web: spec: is not an object"),
}


@pytest.mark.parametrize(("obj", "problem"), PROBLEMS.values(), ids=PROBLEMS.keys())
def test_problems_name_object_key_and_value(obj: Object, problem: str) -> None:
    pod = parse_pod(obj)
    assert pod.problem.startswith(problem)
    assert pod.key == PodKey("shop", "web", "u1")


def test_a_malformed_pod_counts_what_can_be_read() -> None:
    broken = changed(POD, "spec containers 0 resources limits cpu", "four")
    assert parse_pod(broken).request.containers == (
        Container("initContainers[0]", ContainerKind.INIT, {"cpu": 500}),
        Container("initContainers[1]", ContainerKind.INIT, {"memory": 64 * 2**20}),
        Container("containers[0]", ContainerKind.APP, {"cpu": 4000, "memory": 8 * GIB}, {"memory": 8 * GIB}),
    )


@pytest.mark.parametrize("path", ["metadata name", "metadata uid"])
@pytest.mark.parametrize("value", [None, "", 5])
def test_without_name_or_uid_there_is_no_pod(path: str, value: Any) -> None:
    with pytest.raises(WireError, match=r"Pod"):
        parse_pod(changed(POD, path, value))


def test_held_resources() -> None:
    text = (
        '{"cpuset":"0-3","numaNodeResources":[{"node":1,"resources":{"cpu":"1500m"}},{"resources":{"memory":"1Gi"}},'
        '{"node":1,"resources":{"cpu":"500m","koordinator.sh/batch-cpu":100}}],'
        '"cpuSharedPools":[{"socket":0,"node":1},{"socket":0,"node":0,"cpuset":"4-5"}]}'
    )
    assert parse_pod(annotated(changed(POD, "spec nodeName", "n"), STATUS, text)).assignment == Assignment(
        cpus=CpuSet.parse("0-3"),
        numa=((0, {"memory": GIB}), (1, {"cpu": 2000, "kubernetes.io/batch-cpu": 100})),
        shared_pools=(SharedPool(0, 0, CpuSet.parse("4-5")), SharedPool(0, 1, CpuSet())),
    )


AMOUNTS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "requests default to limits": ({"limits": {"cpu": "2"}}, {"cpu": 2000}),
    "requests of their own": ({"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}, {"cpu": 1000}),
    "rounded up": ({"requests": {"cpu": "1.0001", "memory": "0.5"}}, {"cpu": 1001, "memory": 1}),
    "numbers": ({"requests": {"cpu": 1.5, "nvidia.com/gpu": 2}}, {"cpu": 1500, "nvidia.com/gpu": 2}),
    "deprecated batch names": (
        {"requests": {"koordinator.sh/batch-cpu": "500", "koordinator.sh/batch-memory": "1Gi"}},
        {"kubernetes.io/batch-cpu": 500, "kubernetes.io/batch-memory": GIB},
    ),
    "deprecated device names": (
        {"requests": {"kubernetes.io/gpu": "1", "kubernetes.io/rdma": "2"}},
        {"koordinator.sh/gpu": 1, "koordinator.sh/rdma": 2},
    ),
    "both names: today's counts": (
        {"requests": {"kubernetes.io/gpu": "1", "koordinator.sh/gpu": "3"}},
        {"koordinator.sh/gpu": 3},
    ),
    "beyond all measure": ({"requests": {"memory": "99999Ei"}}, {"memory": 2**60}),
}


@pytest.mark.parametrize(("resources", "requests"), AMOUNTS.values(), ids=AMOUNTS.keys())
def test_amounts(resources: dict[str, Any], requests: dict[str, int]) -> None:
    (container,) = parse_pod(bare(containers=[{"name": "c", "resources": resources}])).request.containers
    assert container.requests == requests


POD_LEVEL: dict[str, tuple[dict[str, Any], tuple[dict[str, int] | None, dict[str, int] | None]]] = {
    "none": ({}, (None, None)),
    "empty": ({"requests": {}}, (None, None)),
    "requests": ({"requests": {"cpu": "3"}}, ({"cpu": 3000}, {})),
    "limits of what no container asks for": ({"limits": {"memory": "1Gi"}}, ({"memory": GIB}, {"memory": GIB})),
    "limits of what a container asks for": ({"limits": {"cpu": "3"}}, ({}, {"cpu": 3000})),
}


@pytest.mark.parametrize(("resources", "expected"), POD_LEVEL.values(), ids=POD_LEVEL.keys())
def test_pod_level_resources(resources: dict[str, Any], expected: tuple[Any, Any]) -> None:
    containers = [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]
    request = parse_pod(bare(containers=containers, resources=resources)).request
    assert (request.pod_requests, request.pod_limits) == expected


def test_overhead() -> None:
    assert parse_pod(bare(overhead={"cpu": "250m"})).request.overhead == {"cpu": 250}


@pytest.mark.parametrize("word", ["lsr", "LSRX", "Guaranteed"])
@pytest.mark.parametrize("key", ["koordinator.sh/qosClass", "koordinator.sh/priority-class"])
def test_an_unknown_class_is_refused_and_not_ignored(key: str, word: str) -> None:
    assert f'label {key}: "{word}" is none of' in parse_pod(labelled(POD, key, word)).problem


@pytest.mark.parametrize("policy", ["FullPCPUs", "SpreadByPCPUs"])
@pytest.mark.parametrize(
    ("qos", "band", "why"),
    [
        ("LS", "koord-prod", "a pod of QoS class LS has no CPUs of its own"),
        ("BE", "koord-batch", "a pod of QoS class BE has no CPUs of its own"),
        ("SYSTEM", "", "a pod of QoS class SYSTEM has no CPUs of its own"),
        ("LSR", "koord-batch", "an LSR pod of the band koord-batch has no CPUs of its own"),
    ],
)
def test_a_required_bind_policy_is_refused_where_the_class_has_no_cpus(
    policy: str, qos: str, band: str, why: str
) -> None:
    obj = labelled(labelled(POD, "koordinator.sh/qosClass", qos), "koordinator.sh/priority-class", band)
    required = annotated(obj, SPEC, f'{{"requiredCPUBindPolicy":"{policy}"}}')
    problem = parse_pod(required).problem
    assert f"{policy} needs an LSE or LSR pod of the band koord-prod" in problem
    assert why in problem
    preferred = annotated(obj, SPEC, f'{{"preferredCPUBindPolicy":"{policy}"}}')
    assert parse_pod(preferred).problem == ""
    assert parse_pod(changed(required, "spec nodeName", "n")).problem == ""  # one that is bound is only counted


def test_the_numeric_priority_keeps_a_pod_from_cpus_too() -> None:
    obj = labelled(changed(POD, "spec priority", 5500), "koordinator.sh/priority-class", "")
    assert "an LSR pod of the band koord-batch has no CPUs of its own" in parse_pod(obj).problem


def test_empty_classes_are_no_class() -> None:
    obj = labelled(labelled(POD, "koordinator.sh/qosClass", ""), "koordinator.sh/priority-class", "")
    pod = parse_pod(obj)
    assert (pod.problem, pod.request.qos, pod.request.priority_class) == ("", QosClass.NONE, PriorityClass.NONE)


def test_equal_requests_are_one_class() -> None:
    other = changed(POD, "metadata name", "web-2")
    assert parse_pod(other).request.class_key == parse_pod(POD).request.class_key
    assert parse_pod(changed(POD, "spec priority", 1)).request.class_key != parse_pod(POD).request.class_key


def test_news_about_the_status_bring_the_same_request() -> None:
    assert parse_pod(changed(POD, "status phase", "Running")).request is parse_pod(POD).request


DEPENDS = {
    "spec": changed(POD, "spec priority", 5),
    "labels": labelled(POD, "app", "other"),
    "policies": annotated(POD, SPEC, "{}"),
    "unsupported features": annotated(POD, "scheduling.koordinator.sh/reservation-affinity", "{}"),
}


@pytest.mark.parametrize("obj", DEPENDS.values(), ids=DEPENDS.keys())
def test_other_news_bring_another_request(obj: Object) -> None:
    assert parse_pod(obj).request is not parse_pod(POD).request


def test_a_problem_is_told_every_time() -> None:
    broken = annotated(POD, SPEC, "{")
    assert parse_pod(broken).problem == parse_pod(broken).problem != ""


def test_a_bind_changes_the_node_and_nothing_else_that_was_asked_for() -> None:
    """A pod that is seen bound after it was seen waiting reads as one that is seen for the first time."""
    waiting = labelled(POD, "app", "seen-waiting")
    bound = changed(waiting, "spec nodeName", "worker-7")
    request = parse_pod(waiting).request
    again, fresh = parse_pod(bound), parse_pod(changed(labelled(POD, "app", "unseen"), "spec nodeName", "worker-7"))
    assert again.request == replace(request, constraints=replace(request.constraints, node_name="worker-7"))
    assert again.node == fresh.node == "worker-7"
    assert parse_pod(bound).request is again.request


def test_pods_that_were_seen_bound_first_tell_those_that_wait_nothing_of_their_node() -> None:
    bound = changed(labelled(POD, "app", "seen-bound"), "spec nodeName", "worker-7")
    waiting = labelled(POD, "app", "seen-bound")
    assert parse_pod(bound).request.constraints.node_name == "worker-7"
    assert parse_pod(waiting).request.constraints.node_name == ""


def of_workload(name: str, *volumes: Object) -> Object:
    """A pod as a controller makes it: a name of its own, and what the API server adds to every pod."""
    token = {"name": f"kube-api-access-{name}", "projected": {"sources": []}}
    pod = changed(POD, "metadata name", name)
    pod["metadata"]["uid"] = f"uid of {name}"
    pod["spec"]["volumes"] = [token, *volumes]
    for container in pod["spec"]["containers"]:
        container["volumeMounts"] = [{"name": token["name"], "mountPath": "/var/run/secrets"}]
    return pod


def test_pods_of_a_workload_share_one_request() -> None:
    first, second = parse_pod(of_workload("web-abc")), parse_pod(of_workload("web-xyz"))
    assert first.request is second.request
    assert first.key != second.key


VOLUMES: dict[str, tuple[Object, Object]] = {
    "own claims of ephemeral volumes": (
        of_workload("a", {"name": "scratch", "ephemeral": {}}),
        of_workload("b", {"name": "scratch", "ephemeral": {}}),
    ),
    "claims": (
        of_workload("c", {"name": "data", "persistentVolumeClaim": {"claimName": "one"}}),
        of_workload("d", {"name": "data", "persistentVolumeClaim": {"claimName": "two"}}),
    ),
    "a kind that is not supported": (
        of_workload("e", {"name": "data", "emptyDir": {}}),
        of_workload("f", {"name": "data", "awsElasticBlockStore": {}}),
    ),
}


@pytest.mark.parametrize(("one", "other"), VOLUMES.values(), ids=VOLUMES.keys())
def test_volumes_that_matter_set_pods_of_a_workload_apart(one: Object, other: Object) -> None:
    assert parse_pod(one).request.constraints != parse_pod(other).request.constraints


@pytest.mark.parametrize("volume", [{"emptyDir": {}}, {"name": 7, "emptyDir": {}}, 5], ids=str)
def test_a_malformed_volume_is_a_problem_also_where_a_sound_one_was_seen(volume: Any) -> None:
    assert parse_pod(of_workload("sound")).problem == ""
    assert parse_pod(of_workload("broken", volume)).problem != ""
