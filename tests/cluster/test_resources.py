"""A call knows its path, method and RBAC rule."""

import pytest

from koord_numa.cluster.resources import EVENTS, LEASES, NODES, PODS, TOPOLOGIES, Call
from tests.tables import each_row


@each_row(
    ("call", "method", "path", "rule", "writes"),
    [
        pytest.param(Call("list", PODS), "GET", "/api/v1/pods", "list pods", False, id="list all"),
        pytest.param(Call("watch", NODES), "GET", "/api/v1/nodes", "watch nodes", False, id="watch"),
        pytest.param(
            Call("create", PODS, "a", "b", "binding"),
            "POST",
            "/api/v1/namespaces/a/pods/b/binding",
            "create pods/binding",
            True,
            id="subresource",
        ),
        pytest.param(
            Call("update", LEASES, "kube-system", "x"),
            "PUT",
            "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/x",
            "update leases.coordination.k8s.io",
            True,
            id="group",
        ),
        pytest.param(
            Call("patch", EVENTS, "a b", "c/d"),
            "PATCH",
            "/apis/events.k8s.io/v1/namespaces/a%20b/events/c%2Fd",
            "patch events.events.k8s.io",
            True,
            id="names are quoted",
        ),
        pytest.param(
            Call("list", TOPOLOGIES[0], "ignored"),
            "GET",
            "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies",
            "list noderesourcetopologies.topology.node.k8s.io",
            False,
            id="cluster-scoped kinds have no namespace",
        ),
    ],
)
def test_call(call: Call, method: str, path: str, rule: str, writes: bool) -> None:
    assert (call.method, call.path, call.rule, call.writes) == (method, path, rule, writes)
