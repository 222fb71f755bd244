"""A bound pod that is read from its text in one pass reads as one that is read as a whole, or is read as a whole."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koord_numa.core.objects.request import Pod
from koord_numa.wire import names, parse_pod, pod_cache, pods
from koord_numa.wire.errors import WireError
from koord_numa.wire.parsing import Head, head
from koord_numa.wire.pod_cache import read_by
from koord_numa.wire.pod_requests import ConstraintsModel, ContainerModel, WorkloadModel
from koord_numa.wire.raw_json import UnreadObject
from tests.tables import each_row
from tests.wire.objects import POD, Object, annotated, changed
from tests.wire.pod.test_request_cache import states
from tests.wire.test_hostile import HOSTILE, HOSTILE_TEXTS, paths, values

SINCE = "2026-01-01T00:00:01Z"
HELD = '{"cpuset":"2-5","numaNodeResources":[{"node":0,"resources":{"cpu":"4"}}]}'

BOUND: Object = {
    **annotated(annotated(POD, names.RESOURCE_STATUS, HELD), names.EXPLORES, "full-pcpus-only,"),
    "spec": POD["spec"]
    | {
        "nodeName": "worker-1",
        "preemptionPolicy": "Never",
        "volumes": [
            {"name": "kube-api-access-x7k2p", "projected": {"sources": []}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        ],
    },
    "status": {
        "phase": "Running",
        "startTime": SINCE,
        "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}],
        "containerStatuses": [
            {
                "name": "main",
                "state": {"running": {"startedAt": SINCE}},
                "resources": POD["spec"]["containers"][0]["resources"],
                "allocatedResources": {"cpu": "4"},
            }
        ],
        "initContainerStatuses": [{"name": "setup"}],
    },
}
PLAIN: Object = {
    "metadata": {"name": "plain", "uid": "u2"},
    "spec": {"nodeName": "n", "containers": [{"name": "c"}]},
}
EVERY_FIELD = BOUND | {
    "metadata": BOUND["metadata"] | {"generation": 3, "deletionTimestamp": SINCE, "namespace": "shop"},
    "spec": BOUND["spec"] | {"schedulingGates": [], "resourceClaims": [], "resources": None},
    "status": BOUND["status"] | {"reason": "", "nominatedNodeName": "", "resourceClaimStatuses": None},
}


def outcome(obj: Mapping[str, Any]) -> Pod | str:
    try:
        return parse_pod(obj)
    except WireError as error:
        return str(error)


def reads_alike(text: bytes) -> None:
    """Read once, by the request it may be the first to have, and again."""
    try:
        whole = orjson.loads(text)
    except orjson.JSONDecodeError:
        return  # neither reader sees it: a list with it is decoded otherwise
    assert [outcome(UnreadObject(text)) for _ in range(2)] == [outcome(whole)] * 2


def text_of(obj: object, compact: bool = True) -> bytes:
    return json.dumps(obj, separators=(",", ":") if compact else None).encode()


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The resource versions of pods that were read as a whole."""
    found: list[str] = []

    def noted(*arguments: Any) -> Head:
        top = head(*arguments)
        found.append(top.metadata.resource_version or "")
        return top

    monkeypatch.setattr(pods, "head", noted)
    return found


def at_version(obj: Object, version: str) -> UnreadObject:
    return UnreadObject(text_of(changed(obj, "metadata resourceVersion", version)))


def test_one_of_the_pods_with_equal_requests_is_fully_parsed(whole: list[str]) -> None:
    first = changed(BOUND, "spec priority", 4711)
    for number in range(3):
        other = changed(changed(first, "metadata name", f"web-{number}"), "metadata uid", f"uid-{number}")
        token = {"name": f"kube-api-access-{number}", "projected": {"sources": []}}
        other = changed(changed(other, "spec volumes 0", token), "spec nodeName", f"worker-{number}")
        pod = parse_pod(at_version(other, str(number)))
        assert (pod.key.name, pod.node, pod.problem) == (f"web-{number}", f"worker-{number}", "")
    assert whole == ["0"]


UNUSUAL: dict[str, Object] = {
    "a resize": changed(BOUND, "status containerStatuses 0 resources requests cpu", "6"),
    "another allocation": changed(BOUND, "status containerStatuses 0 allocatedResources cpu", "6"),
    "gates": changed(BOUND, "spec schedulingGates", [{"name": "later"}]),
    "a claim": changed(BOUND, "spec resourceClaims", [{"name": "gpu", "resourceClaimName": "one"}]),
    "a claim for extended resources": changed(BOUND, "status extendedResourceClaimStatus", {"resourceClaimName": "x"}),
    "no node": changed(BOUND, "spec nodeName", ""),
    "a volume that is named after the pod": changed(BOUND, "spec volumes 0", {"name": "x", "ephemeral": {}}),
    "a time that is none": changed(BOUND, "status startTime", "yesterday"),
    "a resource-status that is none": annotated(BOUND, names.RESOURCE_STATUS, "{"),
}


@pytest.mark.parametrize("case", UNUSUAL)
def test_what_is_unusual_is_read_as_a_whole_every_time(whole: list[str], case: str) -> None:
    parse_pod(at_version(BOUND, "1"))
    whole.clear()
    for version in ("2", "3"):
        reads_alike(bytes(at_version(UNUSUAL[case], version).text))
    assert {"2", "3"} <= set(whole)


NO_JSON = {"huge integer", "nan", "infinite", "deep list", "megabytes", "half a character"}
"""Values that no server can send, or that take long and show nothing new."""


@pytest.mark.sampled(8)
@pytest.mark.parametrize("obj", [BOUND, PLAIN, EVERY_FIELD], ids=["bound", "plain", "every field"])
@pytest.mark.parametrize("name", sorted(HOSTILE.keys() - NO_JSON))
def test_any_value_anywhere_reads_as_in_a_whole_object(obj: Object, name: str) -> None:
    for compact in (True, False):
        reads_alike(text_of(obj, compact))
        for path in paths(obj):
            reads_alike(text_of(changed(obj, path, HOSTILE[name]), compact))


@each_row("text", [text for name, text in HOSTILE_TEXTS.items() if name not in ("megabytes", "deep", "long list")])
def test_any_text_in_any_annotation_reads_as_in_a_whole_object(text: str) -> None:
    for name in BOUND["metadata"]["annotations"]:
        reads_alike(text_of(annotated(BOUND, name, text)))


@each_row("path", ["metadata", "spec", "status", "metadata uid", "metadata name", "spec nodeName"])
def test_an_object_without_this_reads_as_a_whole_one(path: str) -> None:
    *inner, last = path.split()
    obj: Object = orjson.loads(text_of(BOUND))
    part = obj
    for key in inner:
        part = part[key]
    del part[last]
    reads_alike(text_of(obj))


@given(st.lists(states(), min_size=1, max_size=4))
def test_states_of_a_pod_read_as_whole_ones(found: list[Object]) -> None:
    for obj in found:
        reads_alike(text_of(obj))


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data(), compact=st.booleans(), obj=st.sampled_from([BOUND, PLAIN, EVERY_FIELD]))
def test_two_values_anywhere_read_as_in_a_whole_object(data: st.DataObject, compact: bool, obj: Object) -> None:
    for _ in range(2):
        path = data.draw(st.sampled_from([*paths(obj)] or ["metadata"]))
        obj = changed(obj, path, data.draw(values))
    reads_alike(text_of(obj, compact))


NOT_IN_THE_KEY = {"nodeName"}


def fields(of: type[msgspec.Struct]) -> set[str]:
    return {each.encode_name for each in msgspec.structs.fields(of)}


def test_the_key_has_every_field_that_a_request_is_read_from() -> None:
    """A field that a model gets and the key lacks would give a pod another one's request."""
    assert set(read_by(WorkloadModel, ConstraintsModel)) - NOT_IN_THE_KEY <= fields(pod_cache.Spec)
    assert set(read_by(ContainerModel)) <= fields(pod_cache.ContainerFields)


@each_row("text", [b"{", b"[]", b"1", b'{"metadata":{"uid":"\xff"}}', b""])
def test_what_is_no_object_is_an_error_of_this_object(text: bytes) -> None:
    obj = UnreadObject(text)
    assert obj.identity.uid == ""
    with pytest.raises(WireError):
        parse_pod(obj)
