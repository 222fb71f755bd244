"""Gangs of pods and PodGroups in three dialects, and contradictions."""

from typing import Any

import pytest

from koord_numa.core.objects.gangs import (
    Dialect,
    GangKey,
    GangMode,
    GangRef,
    GangSpec,
    GroupClaim,
    MatchPolicy,
    TopologyLevel,
)
from koord_numa.wire.gangs import names_gang, parse_pod_group
from koord_numa.wire.pods import parse_pod
from tests.tables import each_row

KUBERNETES, KOORDINATOR, PLUGINS = Dialect
ANNOTATION, POD_GROUP = "gang.scheduling.koordinator.sh/", "pod-group.scheduling.sigs.k8s.io"
ONCE = MatchPolicy.ONCE_SATISFIED
SPINE = TopologyLevel("network.topology.nvidia.com/spine", required=False)
BLOCK = TopologyLevel("network.topology.nvidia.com/block")


def pod(spec: dict[str, Any], labels: dict[str, str], annotations: dict[str, str]) -> dict[str, Any]:
    named = {ANNOTATION + name: value for name, value in annotations.items()}
    metadata = {"name": "p", "namespace": "ns", "uid": "u", "labels": labels, "annotations": named}
    return {"metadata": metadata, "spec": {"containers": [{"name": "c"}], **spec}}


def key(dialect: Dialect, name: str = "g") -> GangKey:
    return GangKey(dialect, "ns", name)


def own(minimum: int, **changes: Any) -> GangSpec:
    return GangSpec(minimum, **{"match_policy": ONCE, "group": ("ns/g",), **changes})


PODS: dict[str, tuple[dict[str, Any], dict[str, str], dict[str, str], GangRef | None]] = {
    "no gang": ({}, {"app": "x"}, {}, None),
    "kubernetes": ({"schedulingGroup": {"podGroupName": "g"}}, {}, {}, GangRef(key(KUBERNETES))),
    "scheduler-plugins": ({}, {"scheduling.x-k8s.io/pod-group": "g"}, {}, GangRef(key(PLUGINS))),
    "koordinator object": ({}, {POD_GROUP: "g"}, {}, GangRef(key(KOORDINATOR))),
    "koordinator labels": (
        {}, {POD_GROUP + "/name": "g", POD_GROUP + "/min-available": "2"}, {}, GangRef(key(KOORDINATOR), own(2)),
    ),
    "koordinator annotations": ({}, {}, {"name": "g", "min-available": "3"}, GangRef(key(KOORDINATOR), own(3))),
    "waiting time and total number": (
        {}, {}, {"name": "g", "min-available": "3", "waiting-time": "-1s", "total-number": "1"},
        GangRef(key(KOORDINATOR), own(3)),
    ),
    "everything": (
        {}, {},
        {
            "name": "g", "min-available": "3", "mode": "NonStrict", "match-policy": "only-waiting", "groups": '["ns/h", "ns/g"]',
            "network-topology-spec": '{"gatherStrategy": [{"layer": "spineLayer", "strategy": "PreferGather"},'
            ' {"layer": "blockLayer", "strategy": "MustGather"}]}',
        },
        GangRef(
            key(KOORDINATOR),
            GangSpec(3, match_policy=MatchPolicy.ONLY_WAITING, mode=GangMode.NON_STRICT, group=("ns/g", "ns/h"), levels=(SPINE, BLOCK)),
        ),
    ),
}  # fmt: skip


@each_row(("spec", "labels", "annotations", "ref"), PODS.values(), ids=PODS)
def test_pods_say_which_gang_they_belong_to(
    spec: dict[str, Any], labels: dict[str, str], annotations: dict[str, str], ref: GangRef | None
) -> None:
    found = parse_pod(pod(spec, labels, annotations))
    assert found.request.gang == ref
    assert not found.problem
    assert names_gang(pod(spec, labels, annotations)) == (ref is not None)
    assert found.request.class_key == parse_pod(pod({}, {}, {})).request.class_key


CONTRADICTIONS: dict[str, tuple[dict[str, Any], dict[str, str], dict[str, str], str]] = {
    "two dialects": (
        {"schedulingGroup": {"podGroupName": "g"}}, {POD_GROUP: "g"}, {},
        "the pod belongs to gangs of scheduling.k8s.io and scheduling.sigs.k8s.io: only one is supported",
    ),
    "two names": ({}, {POD_GROUP: "g"}, {"name": "h"}, "labels and annotations name different gangs: g, h"),
    "no name": ({"schedulingGroup": {"podGroupName": ""}}, {}, {}, "schedulingGroup names no podGroupName"),
    "another field": (
        {"schedulingGroup": {"podGroupName": "g", "rank": 1}}, {}, {}, "schedulingGroup.rank is not supported",
    ),
    "timed out": (
        {}, {}, {"name": "g", "min-available": "1", "timeout": "true"}, "gang has timeout, gangName: ns/g",
    ),
    "no minimum": ({}, {}, {"name": "g"}, "min-available"),
    "minimum of zero": ({}, {}, {"name": "g", "min-available": "0"}, '"0" is not a number of pods'),
    "unknown mode": ({}, {}, {"name": "g", "min-available": "1", "mode": "Loose"}, '"Loose" is none of NonStrict, Strict'),
    "unknown policy": ({}, {}, {"name": "g", "min-available": "1", "match-policy": "x"}, '"x" is none of'),
    "groups without namespace": ({}, {}, {"name": "g", "min-available": "1", "groups": '["g"]'}, "is not namespace/name"),
    "groups that are no list": ({}, {}, {"name": "g", "min-available": "1", "groups": "g"}, "is not JSON"),
    "unknown layer": (
        {}, {}, {"name": "g", "min-available": "1", "network-topology-spec": '{"gatherStrategy": [{"layer": "x"}]}'},
        '"x" is none of acceleratorLayer',
    ),
}  # fmt: skip


@each_row(("spec", "labels", "annotations", "why"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_what_contradicts_itself_has_a_reason(
    spec: dict[str, Any], labels: dict[str, str], annotations: dict[str, str], why: str
) -> None:
    ref = parse_pod(pod(spec, labels, annotations)).request.gang
    assert ref is not None
    assert why in (ref.problem or (ref.spec.problem if ref.spec else ""))


GROUPS: dict[str, tuple[Dialect, dict[str, Any], GangSpec]] = {
    "gang": (KUBERNETES, {"schedulingPolicy": {"gang": {"minCount": 4}}}, GangSpec(4)),
    "basic": (KUBERNETES, {"schedulingPolicy": {"basic": {}}}, GangSpec(1, basic=True)),
    "topology": (
        KUBERNETES,
        {"schedulingPolicy": {"gang": {"minCount": 2}}, "schedulingConstraints": {"topology": [{"key": "rack"}]}},
        GangSpec(2, levels=(TopologyLevel("rack"),)),
    ),
    "disrupted together": (
        KUBERNETES,
        {
            "schedulingPolicy": {"gang": {"minCount": 2}},
            "disruptionMode": {"all": {}},
            "priority": 7,
            "preemptionPolicy": "Never",
        },
        GangSpec(2, disrupted_together=True, priority=7, preempts=False),
    ),
    "disrupted together in v1alpha2": (
        KUBERNETES,
        {"schedulingPolicy": {"gang": {"minCount": 2}}, "disruptionMode": "PodGroup"},
        GangSpec(2, disrupted_together=True),
    ),
    "disrupted one by one": (
        KUBERNETES,
        {"schedulingPolicy": {"gang": {"minCount": 2}}, "disruptionMode": {"single": {}}},
        GangSpec(2),
    ),
    "claims": (
        KUBERNETES,
        {
            "schedulingPolicy": {"basic": {}},
            "resourceClaims": [
                {"name": "a", "resourceClaimName": "own"},
                {"name": "b", "resourceClaimTemplateName": "made"},
            ],
        },
        GangSpec(1, basic=True, claims=(GroupClaim("a", "own"), GroupClaim("b", template="made"))),
    ),
    "koordinator": (KOORDINATOR, {"minMember": 4, "scheduleTimeoutSeconds": 9}, own(4)),
    "scheduler-plugins": (PLUGINS, {"minMember": 4, "minResources": {"cpu": "9"}}, GangSpec(4)),
}
REFUSED: dict[str, tuple[Dialect, dict[str, Any], str]] = {
    "no policy": (KUBERNETES, {}, "must have exactly one of basic and gang"),
    "two policies": (KUBERNETES, {"schedulingPolicy": {"basic": {}, "gang": {"minCount": 1}}}, "must have exactly one"),
    "composite": (
        KUBERNETES,
        {"schedulingPolicy": {"basic": {}}, "parentCompositePodGroupName": "c"},
        "CompositePodGroups are not supported",
    ),
    "claims without a name": (
        KUBERNETES,
        {"schedulingPolicy": {"basic": {}}, "resourceClaims": [{"name": "c"}]},
        '"c" must have exactly one of resourceClaimName and resourceClaimTemplateName',
    ),
    "two disruption modes": (
        KUBERNETES,
        {"schedulingPolicy": {"basic": {}}, "disruptionMode": {"single": {}, "all": {}}},
        "must have exactly one of single and all",
    ),
    "unknown disruption mode": (
        KUBERNETES,
        {"schedulingPolicy": {"basic": {}}, "disruptionMode": "Some"},
        '"Some" is none of Pod, PodGroup',
    ),
    "count": (PLUGINS, {"minMember": "4"}, "minMember"),
}


@each_row(("dialect", "spec", "expected"), GROUPS.values(), ids=GROUPS)
def test_pod_groups(dialect: Dialect, spec: dict[str, Any], expected: GangSpec) -> None:
    group = parse_pod_group(dialect, {"metadata": {"name": "g", "namespace": "ns", "uid": "u"}, "spec": spec})
    assert (group.key, group.spec, group.satisfied) == (key(dialect), expected, False)


def test_claims_made_for_a_group_have_their_names_in_its_status() -> None:
    spec = {
        "schedulingPolicy": {"basic": {}},
        "resourceClaims": [{"name": "b", "resourceClaimTemplateName": "made"}],
    }
    status = {"resourceClaimStatuses": [{"name": "b", "resourceClaimName": "g-b-x1"}, {"name": "c"}]}
    obj = {"metadata": {"name": "g", "namespace": "ns", "uid": "u"}, "spec": spec, "status": status}
    assert parse_pod_group(KUBERNETES, obj).claim_names == (("b", "g-b-x1"), ("c", ""))
    assert parse_pod_group(KUBERNETES, {**obj, "status": {"resourceClaimStatuses": 1}}).claim_names == ()


@each_row(("dialect", "spec", "why"), REFUSED.values(), ids=REFUSED)
def test_pod_groups_that_are_not_supported(dialect: Dialect, spec: dict[str, Any], why: str) -> None:
    group = parse_pod_group(dialect, {"metadata": {"name": "g", "namespace": "ns", "uid": "u"}, "spec": spec})
    assert why in group.spec.problem


@pytest.mark.parametrize("condition", ["PodGroupInitiallyScheduled", "PodGroupScheduled"])
def test_a_group_that_was_scheduled_once_says_so(condition: str) -> None:
    status = {"conditions": [{"type": condition, "status": "True"}]}
    spec = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    found = parse_pod_group(KUBERNETES, {"metadata": {"name": "g", "uid": "u"}, "spec": spec, "status": status})
    assert found.satisfied
    assert parse_pod_group(PLUGINS, {"metadata": {"name": "g"}, "status": {"phase": "Running"}}).satisfied
