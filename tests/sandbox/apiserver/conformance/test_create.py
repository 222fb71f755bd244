"""Creating objects: what the server adds, and what it refuses with which code, reason and field path."""

from typing import Any

import pytest

from tests.sandbox.apiserver.client import CONFIGMAPS, NODES, PODS, Api, configmap, node, pod


async def test_identity_is_set_by_the_server(api: Api) -> None:
    answer = await api.post(PODS, pod())
    metadata = answer.body["metadata"]
    assert answer.status == 201
    assert len(metadata["uid"]) == 36
    assert int(metadata["resourceVersion"]) > 0
    assert metadata["creationTimestamp"].endswith("Z")
    assert metadata["namespace"] == "default"
    assert (answer.body["apiVersion"], answer.body["kind"]) == ("v1", "Pod")


async def test_pod_defaults(api: Api) -> None:
    resources = {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}
    body = pod()
    body["spec"]["containers"][0]["resources"] = resources
    created = await api.create(PODS, body)
    spec = created["spec"]
    assert created["status"] == {"phase": "Pending", "qosClass": "Burstable"}
    assert {
        name: spec[name]
        for name in ("restartPolicy", "dnsPolicy", "schedulerName", "terminationGracePeriodSeconds", "priority")
    } == {
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "terminationGracePeriodSeconds": 30,
        "priority": 0,
    }
    assert spec["containers"][0]["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}
    assert [toleration["key"] for toleration in spec["tolerations"]] == [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ]


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        pytest.param([{}], "BestEffort", id="nothing"),
        pytest.param(
            [{"requests": {"example.com/gpu": "1"}, "limits": {"example.com/gpu": "1"}}],
            "BestEffort",
            id="only-devices",
        ),
        pytest.param([{"limits": {"cpu": "1", "memory": "1Gi"}}], "Guaranteed", id="limits-become-requests"),
        pytest.param(
            [{"limits": {"cpu": "1000m", "memory": "1Gi"}, "requests": {"cpu": 1, "memory": "1024Mi"}}],
            "Guaranteed",
            id="equal-amounts",
        ),
        pytest.param([{"limits": {"cpu": "1"}}], "Burstable", id="no-memory"),
        pytest.param([{"limits": {"cpu": "1", "memory": "1Gi"}}, {}], "Burstable", id="one-container-without"),
        pytest.param([{"requests": {"cpu": "1", "memory": "1Gi"}}], "Burstable", id="no-limits"),
    ],
)
async def test_qos_class(api: Api, resources: list[dict[str, Any]], expected: str) -> None:
    body = pod()
    body["spec"]["containers"] = [{"name": f"c{i}", "image": "i", "resources": one} for i, one in enumerate(resources)]
    assert (await api.create(PODS, body))["status"]["qosClass"] == expected


async def test_generate_name(api: Api) -> None:
    body = pod()
    body["metadata"] = {"generateName": "web-"}
    names = {(await api.create(PODS, body))["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("web-") and len(name) == 9 for name in names)


async def test_duplicate(api: Api) -> None:
    await api.create(PODS, pod())
    assert (await api.post(PODS, pod())).reason == (409, "AlreadyExists")


async def test_absent_namespace(api: Api) -> None:
    answer = await api.post("/api/v1/namespaces/absent/pods", pod())
    assert (*answer.reason, answer.body["message"]) == (404, "NotFound", 'namespaces "absent" not found')


def _changed(**container: Any) -> dict[str, Any]:
    body = pod()
    body["spec"]["containers"][0].update(container)
    return body


INVALID_PODS = [
    pytest.param({**pod(), "spec": {"containers": []}}, "spec.containers", id="no-containers"),
    pytest.param(_changed(image=""), "spec.containers[0].image", id="no-image"),
    pytest.param(_changed(name="Main"), "spec.containers[0].name", id="container-name"),
    pytest.param(_changed(imagePullPolicy="Sometimes"), "spec.containers[0].imagePullPolicy", id="pull-policy"),
    pytest.param(_changed(ports=[{"containerPort": 70000}]), "spec.containers[0].ports[0].containerPort", id="port"),
    pytest.param(
        _changed(ports=[{"containerPort": 1, "protocol": "X"}]), "spec.containers[0].ports[0].protocol", id="protocol"
    ),
    pytest.param(
        _changed(resources={"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}),
        "spec.containers[0].resources.requests",
        id="over-limit",
    ),
    pytest.param(
        _changed(resources={"requests": {"cpu": "-1"}}), "spec.containers[0].resources.requests[cpu]", id="negative"
    ),
    pytest.param(
        _changed(resources={"requests": {"gpu": "1"}}),
        "spec.containers[0].resources.requests[gpu]",
        id="unqualified-resource",
    ),
    pytest.param(
        _changed(resources={"requests": {"a.b/gpu": "1"}}),
        "spec.containers[0].resources.limits",
        id="extended-without-limit",
    ),
    pytest.param(
        _changed(resources={"limits": {"a.b/gpu": "1500m"}}),
        "spec.containers[0].resources.limits[a.b/gpu]",
        id="part-of-a-device",
    ),
    pytest.param(pod(restartPolicy="Often"), "spec.restartPolicy", id="restart-policy"),
    pytest.param(pod(dnsPolicy="Guess"), "spec.dnsPolicy", id="dns-policy"),
    pytest.param(pod(nodeName="UPPER"), "spec.nodeName", id="node-name"),
    pytest.param(pod(nodeSelector={"a b": "c"}), "spec.nodeSelector", id="node-selector"),
    pytest.param(pod(tolerations=[{"key": "a", "operator": "Like"}]), "spec.tolerations[0].operator", id="toleration"),
    pytest.param(pod(nodeName="n", schedulingGates=[{"name": "g"}]), "spec.nodeName", id="gated-on-a-node"),
    pytest.param(pod(terminationGracePeriodSeconds=-1), "spec.terminationGracePeriodSeconds", id="grace"),
    pytest.param(pod("Not_a_name"), "metadata.name", id="name"),
    pytest.param(pod("p", labels={"a": "-"}), "metadata.labels", id="label-value"),
]


@pytest.mark.parametrize(("body", "field"), INVALID_PODS)
async def test_invalid_pods_name_the_field(api: Api, body: dict[str, Any], field: str) -> None:
    answer = await api.post(PODS, body)
    assert answer.reason == (422, "Invalid"), answer.body
    assert field in {cause["field"] for cause in answer.body["details"]["causes"]}
    assert f'Pod "{body["metadata"]["name"]}" is invalid' in answer.body["message"]


async def test_a_name_is_required(api: Api) -> None:
    answer = await api.post(PODS, {**pod(), "metadata": {}})
    assert [cause["field"] for cause in answer.body["details"]["causes"]] == ["metadata.name"]


UNDECODABLE = [
    pytest.param(PODS, b"{", id="no-json"),
    pytest.param(PODS, b"[]", id="no-object"),
    pytest.param(PODS, {**pod(), "kind": "Node"}, id="wrong-kind"),
    pytest.param(PODS, {**pod(), "apiVersion": "v2"}, id="wrong-version"),
    pytest.param(PODS, {**pod(), "spec": []}, id="spec-is-a-list"),
    pytest.param(PODS, {**pod(), "metadata": {"name": "p", "labels": {"a": 1}}}, id="label-is-a-number"),
    pytest.param(PODS, {**pod(), "metadata": {"name": "p", "namespace": "other"}}, id="other-namespace"),
    pytest.param(PODS, {**pod(), "metadata": {"name": "p", "resourceVersion": "1"}}, id="with-resource-version"),
    pytest.param(PODS, {**pod(), "spec": {"containers": ["x"]}}, id="container-is-a-text"),
    pytest.param(PODS, _changed(resources={"requests": {"cpu": "many"}}), id="no-quantity"),
    pytest.param(NODES, node(capacity={"cpu": "x"}), id="node-without-quantity"),
    pytest.param(CONFIGMAPS, {**configmap(), "data": {"a": 1}}, id="data-is-a-number"),
]


@pytest.mark.parametrize(("path", "body"), UNDECODABLE)
async def test_undecodable_objects(api: Api, path: str, body: Any) -> None:
    assert (await api.post(path, body)).reason == (400, "BadRequest")


async def test_an_unknown_content_type(api: Api) -> None:
    assert (await api.post(PODS, b"<pod/>", type="application/xml")).reason == (415, "UnsupportedMediaType")


async def test_yaml_bodies(api: Api) -> None:
    body = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {since: '2026-01-01'}\n"
    answer = await api.post(CONFIGMAPS, body, type="application/yaml")
    assert (answer.status, answer.body["data"]) == (201, {"since": "2026-01-01"})


async def test_dry_run_stores_nothing(api: Api) -> None:
    assert (await api.post(PODS, pod(), dryRun="All")).status == 201
    assert (await api.get(f"{PODS}/p")).status == 404


async def test_allocatable_defaults_to_capacity(api: Api) -> None:
    created = await api.create(NODES, node(capacity={"cpu": "8"}))
    assert created["status"]["allocatable"] == {"cpu": "8"}


PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"


async def test_priority_comes_from_the_class(api: Api) -> None:
    await api.create(PRIORITIES, {"metadata": {"name": "high"}, "value": 1000, "preemptionPolicy": "Never"})
    spec = (await api.create(PODS, pod(priorityClassName="high")))["spec"]
    assert (spec["priority"], spec["preemptionPolicy"]) == (1000, "Never")


async def test_system_priorities_exist(api: Api) -> None:
    assert (await api.create(PODS, pod(priorityClassName="system-node-critical")))["spec"]["priority"] == 2_000_001_000


async def test_the_global_default_priority(api: Api) -> None:
    await api.create(PRIORITIES, {"metadata": {"name": "usual"}, "value": 7, "globalDefault": True})
    spec = (await api.create(PODS, pod()))["spec"]
    assert (spec["priority"], spec["priorityClassName"]) == (7, "usual")


@pytest.mark.parametrize("spec", [{"priorityClassName": "absent"}, {"priority": 5}], ids=["no-class", "own-number"])
async def test_priorities_that_are_refused(api: Api, spec: dict[str, Any]) -> None:
    assert (await api.post(PODS, pod(**spec))).reason == (403, "Forbidden")
