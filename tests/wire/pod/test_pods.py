"""Pods, from whole objects to whole values."""

from typing import Any

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.constraints import Constraints, WorkloadKey, WorkloadKind
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
from koord_numa.wire import WireError, parse_pod
from tests.tables import each_row
from tests.wire.objects import POD, Object, annotated, changed
from tests.wire.pod.bare import GIB, SPEC

NUMA_SPEC = "scheduling.koordinator.sh/numa-topology-spec"
STATUS = "scheduling.koordinator.sh/resource-status"


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
        coined=True,
        controller=WorkloadKey(WorkloadKind.REPLICA_SET, "shop", "web"),
        images=pod.images,
        resource_version="7",
        ready=False,
        spec_text='{"requiredCPUBindPolicy":"FullPCPUs"}',
    )
    assert pod.images == ("", "", "web:latest")  # one for each container; two name none
    assert pod.request.constraints != Constraints()


@each_row(
    ("owner", "coined"),
    [
        ({"apiVersion": "batch/v1", "kind": "Job", "controller": True}, True),
        ({"apiVersion": "apps/v1", "kind": "StatefulSet", "controller": True}, False),
        ({"apiVersion": "apps/v1", "kind": "ReplicaSet"}, False),
        ({"apiVersion": "example.com/v1", "kind": "ReplicaSet", "controller": True}, False),
    ],
)
def test_whose_pods_have_names_that_no_other_pod_had(owner: dict[str, Any], coined: bool) -> None:
    whole = {**owner, "name": "owner", "uid": "u"}
    assert parse_pod(changed(POD, "metadata ownerReferences", [whole])).coined is coined


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


@each_row(("obj", "expected"), STANDING.values(), ids=STANDING.keys())
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
}


@each_row(("annotations", "bind", "numa"), POLICIES.values(), ids=POLICIES.keys())
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
        f"Pod shop/web: annotation {SPEC}.preferredCPUBindPolicy: 1 is not a text",
    ),
    "annotation is not text": (
        annotated(POD, SPEC, {"a": 1}),
        f"Pod shop/web: metadata.annotations.{SPEC}: an object of 1 fields is not a text",
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


@each_row(("obj", "problem"), PROBLEMS.values(), ids=PROBLEMS.keys())
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


@each_row("path", ["metadata name", "metadata uid"])
@each_row("value", [None, "", 5])
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
