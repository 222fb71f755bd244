"""Protobuf bodies: the kinds that kubectl's commands send, and that everything else is refused without losing anything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.sandbox.apiserver.protobuf import CONTENT_TYPE, parse_protobuf
from tests.sandbox.apiserver.client import PODS, Api, pod
from tests.tables import each_row


def varint(number: int) -> bytes:
    """A protobuf number."""
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def text(number: int, value: str | bytes) -> bytes:
    """A field that holds a text or a message."""
    raw = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def count(number: int, value: int) -> bytes:
    """A field that holds a number."""
    return varint(number << 3) + varint(value & 0xFFFF_FFFF_FFFF_FFFF)


def enveloped(api_version: str, kind: str, content: bytes) -> bytes:
    """A body as clients send it."""
    return b"k8s\x00" + text(1, text(1, api_version) + text(2, kind)) + text(2, content) + text(3, "") + text(4, "")


def test_a_configmap() -> None:
    metadata = text(1, "c") + text(3, "default") + text(8, b"") + text(11, text(1, "a") + text(2, "b"))
    content = text(1, metadata) + text(2, text(1, "k") + text(2, "é")) + text(2, text(1, "empty"))
    assert parse_protobuf(enveloped("v1", "ConfigMap", content)) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "c", "namespace": "default", "labels": {"a": "b"}},
        "data": {"k": "é", "empty": ""},
    }


def test_numbers_flags_and_lists() -> None:
    options = count(1, 0) + text(2, text(1, "some-uid")) + count(3, 1) + text(4, "Background") + text(5, "All")
    eviction = text(1, text(1, "p")) + text(2, options)
    assert parse_protobuf(enveloped("policy/v1", "Eviction", eviction)) == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "p"},
        "deleteOptions": {
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": "some-uid"},
            "orphanDependents": True,
            "propagationPolicy": "Background",
            "dryRun": ["All"],
        },
    }


def test_negative_numbers() -> None:
    found = parse_protobuf(enveloped("scheduling.k8s.io/v1", "PriorityClass", count(2, -7)))
    assert found is not None
    assert found["value"] == -7


RECORDED = (
    b'k8s\x00\n\x15\n\x07apps/v1\x12\nDeployment\x12\xb6\x01\n\x1b\n\x01d\x12\x00\x1a\x00"\x00*\x002\x008\x00B\x00Z\x08\n\x03app'
    b'\x12\x01d\x12\x88\x01\x08\x01\x12\n\n\x08\n\x03app\x12\x01d\x1ap\n\x1a\n\x00\x12\x00\x1a\x00"\x00*\x002\x008\x00B\x00Z\x08\n'
    b'\x03app\x12\x01d\x12R\x124\n\x03img\x12\x03img\x1a\x05sleep\x1a\x011*\x002\n\n\x00\x10\x00\x18P"\x00*\x00B\x00j\x00r\x00\x80\x01'
    b"\x00\x88\x01\x00\x90\x01\x00\xa2\x01\x00\x1a\x002\x00B\x00J\x00R\x00X\x00`\x00h\x00\x82\x01\x00\x8a\x01\x00\x9a\x01\x00\xc2\x01\x00"
    b'"\x02\n\x00(\x008\x00\x1a\x0c\x08\x00\x10\x00\x18\x00 \x00(\x008\x00\x1a\x00"\x00'
)
"""Body of kubectl 1.33's ``create deployment d --image=img --port=80 -- sleep 1``. Older clients send JSON."""


def test_a_deployment_of_kubectl() -> None:
    found = parse_protobuf(RECORDED)
    assert found is not None
    spec = found["spec"]
    container = {"name": "img", "image": "img", "command": ["sleep", "1"]}
    assert found["metadata"] == {"name": "d", "labels": {"app": "d"}}
    assert (spec["replicas"], spec["selector"]) == (1, {"matchLabels": {"app": "d"}})
    assert spec["template"]["metadata"] == {"labels": {"app": "d"}}
    assert spec["template"]["spec"]["containers"][0].items() >= container.items()
    assert spec["template"]["spec"]["containers"][0]["ports"][0]["containerPort"] == 80


RECORDED_BINDING = (
    b"k8s\x00\n2\n\x1crbac.authorization.k8s.io/v1\x12\x12ClusterRoleBinding\x12\x85\x01\n\x11\n\x01b\x12\x00\x1a\x00"
    b'"\x00*\x002\x008\x00B\x00\x12)\n\x05Group\x12\x19rbac.authorization.k8s.io\x1a\x03sre"\x00\x12\x18\n\x0eServiceAccount'
    b'\x12\x00\x1a\x01p"\x01m\x1a+\n\x19rbac.authorization.k8s.io\x12\x0bClusterRole\x1a\x01r\x1a\x00"\x00'
)
"""Body of kubectl 1.36's ``create clusterrolebinding b --clusterrole=r --group=sre --serviceaccount=m:p``."""


def test_a_cluster_role_binding_of_kubectl() -> None:
    group = "rbac.authorization.k8s.io"
    assert parse_protobuf(RECORDED_BINDING) == {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "b"},
        "subjects": [
            {"kind": "Group", "apiGroup": group, "name": "sre"},
            {"kind": "ServiceAccount", "name": "p", "namespace": "m"},
        ],
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "r"},
    }


def test_a_cluster_role() -> None:
    rule = text(1, "get") + text(2, "") + text(3, "pods") + text(4, "p") + text(5, "/metrics")
    found = parse_protobuf(enveloped("rbac.authorization.k8s.io/v1", "ClusterRole", text(2, rule)))
    assert found is not None
    assert found["rules"] == [
        {
            "verbs": ["get"],
            "apiGroups": [""],
            "resources": ["pods"],
            "resourceNames": ["p"],
            "nonResourceURLs": ["/metrics"],
        }
    ]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(enveloped("apps/v1", "DaemonSet", b""), id="kind"),
        pytest.param(enveloped("v1", "ConfigMap", text(99, "x")), id="field"),
        pytest.param(enveloped("v1", "ConfigMap", text(1, text(99, "x"))), id="inner-field"),
    ],
)
def test_what_is_not_known_is_nothing(body: bytes) -> None:
    assert parse_protobuf(body) is None


@each_row(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{}", id="json"),
        pytest.param(b"k8s\x00\xff", id="number-cut-off"),
        pytest.param(b"k8s\x00" + b"\xff" * 11, id="number-too-long"),
        pytest.param(b"k8s\x00\x0a\x05a", id="text-cut-off"),
        pytest.param(b"k8s\x00\x0d\x00\x00\x00\x00", id="wire-type"),
        pytest.param(enveloped("v1", "ConfigMap", count(1, 3)), id="number-for-message"),
        pytest.param(enveloped("v1", "ConfigMap", text(1, text(1, b"\xff"))), id="no-utf-8"),
    ],
)
def test_what_is_no_message(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"body|utf-8"):
        parse_protobuf(body)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    for body in (raw, b"k8s\x00" + raw, enveloped("policy/v1", "Eviction", raw)):
        try:
            found = parse_protobuf(body)
        except ValueError:
            continue
        assert found is None or isinstance(found, dict)


async def test_over_http(api: Api) -> None:
    await api.create(PODS, pod())
    evicted = await api.post(
        f"{PODS}/p/eviction", enveloped("policy/v1", "Eviction", text(1, text(1, "p"))), type=CONTENT_TYPE
    )
    unknown = await api.post(PODS, enveloped("v1", "Pod", b""), type=CONTENT_TYPE)
    broken = await api.post(PODS, b"k8s", type=CONTENT_TYPE)
    assert (evicted.status, unknown.reason, broken.reason) == (201, (415, "UnsupportedMediaType"), (400, "BadRequest"))


async def test_delete_options(api: Api) -> None:
    created = await api.create(PODS, pod())
    stale = enveloped("v1", "DeleteOptions", text(2, text(1, "another")))
    fresh = enveloped("v1", "DeleteOptions", count(1, 0) + text(2, text(1, created["metadata"]["uid"])))
    assert (await api.delete(f"{PODS}/p", stale, type=CONTENT_TYPE)).reason == (409, "Conflict")
    assert (await api.delete(f"{PODS}/p", fresh, type=CONTENT_TYPE)).status == 200
