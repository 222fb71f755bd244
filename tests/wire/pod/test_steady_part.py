"""Parts of a pod that do not change at bind and start are parsed once, with the same result as a new parse."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.objects.request import Pod
from koord_numa.wire import names, parse_pod, pod_annotations, pod_cache, pods
from koord_numa.wire.parsing import Head, Metadata, ParsedCache, Problems, head
from tests.wire.objects import POD, Object, annotated, changed, labelled

CACHES: Sequence[tuple[Any, str]] = (
    (pod_cache, "_REQUESTS"),
    (pod_cache, "_ALONE"),
    (pod_cache, "_BOUND"),
    (pod_cache, "_CONSTRAINTS"),
    (pod_cache, "_PARTS"),
    (pod_cache, "_FILLED"),
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


@pytest.fixture
def heads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The resourceVersions of pods of which everything was read."""
    found: list[str] = []

    def noted(obj: object, kind: str, problems: Problems, known: Metadata | None = None) -> Head:
        top = head(obj, kind, problems, known)
        found.append(top.metadata.resource_version or "")
        return top

    monkeypatch.setattr(pods, "head", noted)
    monkeypatch.setattr(pod_cache, "_PARTS", ParsedCache(1 << 20))
    monkeypatch.setattr(pod_cache, "_FILLED", ParsedCache(1 << 20))
    return found


def test_a_pod_is_read_once_from_its_creation_until_it_runs(heads: list[str]) -> None:
    waiting = changed(changed(POD, "metadata resourceVersion", "1"), "metadata generation", 1)
    bound = changed(changed(waiting, "spec nodeName", "worker-1"), "metadata resourceVersion", "2")
    # By the bind, which changes the spec.
    bound = changed(annotated(bound, names.RESOURCE_STATUS, HELD), "metadata generation", 2)
    starting = changed(changed(bound, "status phase", "Running"), "metadata resourceVersion", "3")
    ready = changed(changed(starting, "status conditions", READY), "metadata resourceVersion", "4")
    found = [parse_pod(each) for each in (waiting, bound, starting, ready)]
    assert heads == ["1"]
    assert [(pod.node, pod.phase, pod.ready, pod.resource_version) for pod in found] == [
        ("", "Pending", False, "1"),
        ("worker-1", "Pending", False, "2"),
        ("worker-1", "Running", False, "3"),
        ("worker-1", "Running", True, "4"),
    ]


def test_a_policy_that_a_bind_fills_in_is_read_once_a_class(heads: list[str]) -> None:
    filled = '{"preferredCPUBindPolicy":"FullPCPUs"}'
    states: list[Object] = []
    for uid in ("x1", "x2", "x3"):
        waiting = changed(changed(POD, "metadata resourceVersion", f"{uid} waits"), "metadata uid", uid)
        waiting = annotated(waiting, names.RESOURCE_SPEC, '{"preferredCPUBindPolicy":"Default"}')
        bound = changed(changed(waiting, "spec nodeName", "worker-1"), "metadata resourceVersion", f"{uid} bound")
        for name, text in ((names.RESOURCE_STATUS, HELD), (names.RESOURCE_SPEC, filled), (names.NUMA_NODES, "0")):
            bound = annotated(bound, name, text)
        bound = changed(
            bound, "status", {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}
        )
        starting = changed(changed(bound, "status phase", "Running"), "metadata resourceVersion", f"{uid} starts")
        states += [waiting, bound, starting]
    found = [parse_pod(each) for each in states]
    assert heads == ["x1 waits", "x1 bound", "x2 waits", "x3 waits"]
    assert found == [read_afresh(each) for each in states]
    assert {pod.spec_text for pod in found if pod.node} == {filled}


def test_pods_running_when_first_observed_are_not_recorded(heads: list[str]) -> None:
    running = changed(changed(POD, "spec nodeName", "worker-1"), "status", {"phase": "Running", "conditions": READY})
    parse_pod(running)
    assert len(pod_cache._PARTS) == 0
    assert heads == ["7"]


def test_a_pod_that_is_seen_without_its_node_again_is_read_again(heads: list[str]) -> None:
    """Of a pod with a node its images and the workload that it is spread by are not read."""
    bound = changed(POD, "spec nodeName", "worker-1")
    assert (parse_pod(bound).images, parse_pod(POD).images) == ((), ("", "", "web:latest"))
    assert len(heads) == 2


def test_pods_without_a_controller_share_a_request_of_their_own() -> None:
    alone = changed(POD, "metadata ownerReferences", None)
    one, other = (parse_pod(changed(alone, "metadata uid", uid)).request for uid in ("x1", "x2"))
    assert one is other
    assert (one.replaceable, parse_pod(POD).request.replaceable) == (False, True)
