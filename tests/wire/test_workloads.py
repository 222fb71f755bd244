"""Services and controllers: only what they select by."""

from typing import Any

import pytest

from koord_numa.core.objects.constraints import (
    LabelSelector,
    Operator,
    Requirement,
    Workload,
    WorkloadKey,
    WorkloadKind,
)
from koord_numa.wire.errors import WireError
from koord_numa.wire.pods import parse_pod
from koord_numa.wire.workloads import parse_workload
from tests.tables import each_row

WEB = LabelSelector((Requirement("app", Operator.IN, ("web",)),))


def body(selector: object) -> dict[str, Any]:
    return {"metadata": {"name": "web", "namespace": "shop"}, "spec": {"selector": selector}}


@each_row(
    ("kind", "selector", "expected"),
    [
        (WorkloadKind.SERVICE, {"app": "web"}, WEB),
        (WorkloadKind.SERVICE, {}, None),
        (WorkloadKind.SERVICE, None, None),
        (WorkloadKind.REPLICATION_CONTROLLER, {"app": "web"}, WEB),
        (WorkloadKind.REPLICA_SET, {"matchLabels": {"app": "web"}}, WEB),
        (WorkloadKind.REPLICA_SET, {}, LabelSelector()),
        (
            WorkloadKind.STATEFUL_SET,
            {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]},
            WEB,
        ),
        (WorkloadKind.STATEFUL_SET, {"matchExpressions": [{"key": "app", "operator": "Like"}]}, None),
        (WorkloadKind.SERVICE, "app=web", None),
    ],
)
def test_selectors(kind: WorkloadKind, selector: object, expected: LabelSelector | None) -> None:
    assert parse_workload(kind, body(selector)) == Workload(WorkloadKey(kind, "shop", "web"), expected)


def test_one_without_a_name_is_nothing() -> None:
    with pytest.raises(WireError):
        parse_workload(WorkloadKind.SERVICE, {"spec": {}})


@each_row(
    ("owner", "expected"),
    [
        ({"apiVersion": "apps/v1", "kind": "ReplicaSet"}, WorkloadKey(WorkloadKind.REPLICA_SET, "shop", "web")),
        ({"apiVersion": "apps/v1", "kind": "StatefulSet"}, WorkloadKey(WorkloadKind.STATEFUL_SET, "shop", "web")),
        (
            {"apiVersion": "v1", "kind": "ReplicationController"},
            WorkloadKey(WorkloadKind.REPLICATION_CONTROLLER, "shop", "web"),
        ),
        ({"apiVersion": "batch/v1", "kind": "Job"}, None),
        ({"apiVersion": "example.com/v1", "kind": "ReplicaSet"}, None),
        ({"apiVersion": "apps/v1", "kind": "ReplicaSet", "controller": False}, None),
    ],
)
def test_the_controller_of_a_pod(owner: dict[str, Any], expected: WorkloadKey | None) -> None:
    metadata = {"name": "pod", "namespace": "shop", "uid": "u"}
    owners = [{"uid": "o", "name": "web", "controller": True, **owner}]
    assert parse_pod({"metadata": {**metadata, "ownerReferences": owners}, "spec": {}}).controller == expected
