"""One request for all pods that ask the same: what shares it and what sets pods apart."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.objects.request import Pod
from koord_numa.core.value_objects import replace
from koord_numa.wire import names, parse_pod, pod_annotations, pod_cache
from koord_numa.wire.parsing import ParsedCache
from tests.tables import each_row
from tests.wire.objects import POD, Object, annotated, changed, labelled
from tests.wire.pod.bare import SPEC


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


@each_row("obj", DEPENDS.values(), ids=DEPENDS.keys())
def test_other_news_bring_another_request(obj: Object) -> None:
    assert parse_pod(obj).request is not parse_pod(POD).request


def test_a_problem_is_told_every_time() -> None:
    broken = annotated(POD, SPEC, "{")
    assert parse_pod(broken).problem == parse_pod(broken).problem != ""


def test_a_bind_changes_nothing_but_the_node() -> None:
    """A pod that is seen bound after it was seen waiting reads as one that is seen for the first time."""
    waiting = labelled(POD, "app", "seen-waiting")
    bound = changed(waiting, "spec nodeName", "worker-7")
    request = parse_pod(waiting).request
    again, fresh = parse_pod(bound), parse_pod(changed(labelled(POD, "app", "unseen"), "spec nodeName", "worker-7"))
    assert again.request == replace(request, constraints=replace(request.constraints, node_name="worker-7"))
    assert again.node == fresh.node == "worker-7"
    assert parse_pod(bound).request is again.request


def test_pods_seen_bound_first_do_not_delay_waiting_pods() -> None:
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
def test_a_malformed_volume_is_a_problem_beside_a_valid_one(volume: Any) -> None:
    assert parse_pod(of_workload("sound")).problem == ""
    assert parse_pod(of_workload("broken", volume)).problem != ""


def test_pods_without_a_controller_share_a_request_of_their_own() -> None:
    alone = changed(POD, "metadata ownerReferences", None)
    one, other = (parse_pod(changed(alone, "metadata uid", uid)).request for uid in ("x1", "x2"))
    assert one is other
    assert (one.replaceable, parse_pod(POD).request.replaceable) == (False, True)


CACHES: Sequence[tuple[Any, str]] = (
    (pod_cache, "_REQUESTS"),
    (pod_cache, "_ALONE"),
    (pod_cache, "_BOUND"),
    (pod_cache, "_CONSTRAINTS"),
    (pod_annotations, "_ASSIGNMENTS"),
)

READY = [{"type": "Ready", "status": "True"}]
HELD = '{"cpuset":"2-3","numaNodeResources":[{"node":0,"resources":{"cpu":"2"}}]}'
RESIZED = [{"name": "main", "resources": {"requests": {"cpu": "6"}}, "allocatedResources": {"cpu": "6"}}]

CHANGES: dict[str, Sequence[object]] = {
    "spec nodeName": ["worker-1", "worker-2", "", None, 7],
    "spec priority": [9500, 1, "high"],
    "spec schedulingGates": [None, [{"name": "later"}]],
    "spec resourceClaims": [None, [{"name": "gpu", "resourceClaimTemplateName": "one"}], [{"name": 5}]],
    "metadata resourceVersion": ["8", "9", None, 5],
    "metadata deletionTimestamp": [None, "2026-01-01T00:00:00Z"],
    "metadata ownerReferences": [None, POD["metadata"]["ownerReferences"]],
    "metadata managedFields": [None, [{"manager": "kubelet"}], 5],
    "metadata generation": [1, 2, "x", True, 1 << 63],
    "metadata namespace": ["shop", "other"],
    "status": [
        None,
        5,
        {"phase": "Pending", "nominatedNodeName": "worker-1"},
        {"phase": "Running", "conditions": READY, "startTime": "2026-01-01T00:00:00Z"},
        {"phase": "Running", "containerStatuses": RESIZED, "startTime": "yesterday"},
        {"phase": "Failed", "reason": "TopologyAffinityError"},
        {"phase": "Pending", "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "gpu-x"}]},
        {"phase": "Pending", "extendedResourceClaimStatus": {"resourceClaimName": "gpu-y"}},
        {"phase": 5},
    ],
}
ANNOTATIONS: dict[str, Sequence[Any]] = {
    names.RESOURCE_STATUS: [HELD, "{}", "{", 5],
    names.EXPLORES: ["a,b", 5, None],
    names.RESOURCE_SPEC: [
        '{"requiredCPUBindPolicy":"SpreadByPCPUs"}',
        '{"preferredCPUBindPolicy":"FullPCPUs"}',
        "",
        "{",
        None,
    ],
    names.NUMA_NODES: ["0", 5],
    names.REBIND: ["false"],
}


@st.composite
def states(draw: st.DrawFn) -> Object:
    """A pod, some things about it changed."""
    found = POD
    for path in draw(st.lists(st.sampled_from(sorted(CHANGES)), max_size=3, unique=True)):
        found = changed(found, path, draw(st.sampled_from(CHANGES[path])))
    for name in draw(st.lists(st.sampled_from(sorted(ANNOTATIONS)), max_size=2, unique=True)):
        found = annotated(found, name, draw(st.sampled_from(ANNOTATIONS[name])))
    return draw(st.sampled_from([found, labelled(found, "app", "other"), changed(found, "metadata annotations", 5)]))


def read_afresh(obj: Object) -> Pod:
    with pytest.MonkeyPatch.context() as patch:
        for module, name in CACHES:
            patch.setattr(module, name, ParsedCache(1 << 20))
        return parse_pod(obj)


@given(st.lists(states(), min_size=2, max_size=8))
def test_earlier_states_of_a_pod_do_not_show(found: list[Object]) -> None:
    for obj in found:
        assert parse_pod(obj) == read_afresh(obj)
