"""In-place resize: which amounts a running pod counts for."""

from typing import Any

import pytest

from koord_numa.core.kubelet.demand import pod_demand
from koord_numa.core.objects.vocabulary import KubeQos
from koord_numa.core.pod_resources import effective_requests, kube_qos
from koord_numa.wire.pods import parse_pod
from tests.tables import each_row


def running(spec: str, *, status: dict[str, Any], conditions: list[dict[str, str]] | None = None, **more: Any) -> Any:
    """A bound pod of one container that asks for so many CPUs, with what its status says of the container."""
    return parse_pod(
        {
            "metadata": {"name": "p", "uid": "u"},
            "spec": {
                "nodeName": "n",
                "containers": [{"name": "c", "resources": {"requests": {"cpu": spec}, "limits": {"cpu": spec}}}],
                **more,
            },
            "status": {
                "phase": "Running",
                "containerStatuses": [{"name": "c", **status}],
                "conditions": conditions or [],
            },
        }
    )


def has(cpu: str, allocated: str) -> dict[str, Any]:
    return {"resources": {"requests": {"cpu": cpu}}, "allocatedResources": {"cpu": allocated}}


INFEASIBLE = [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]
DEFERRED = [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}]


@each_row(
    ("spec", "status", "conditions", "cpu"),
    [
        pytest.param("2", has("2", "2"), None, 2000, id="at rest"),
        pytest.param("4", has("2", "2"), None, 4000, id="asked for more"),
        pytest.param("4", has("2", "4"), None, 4000, id="allocated, not there yet"),
        pytest.param("2", has("4", "4"), None, 4000, id="asked for less"),
        pytest.param("2", has("4", "2"), None, 4000, id="less is allocated, more is there"),
        pytest.param("8", has("2", "2"), DEFERRED, 8000, id="deferred"),
        pytest.param("8", has("2", "2"), INFEASIBLE, 2000, id="infeasible"),
        pytest.param("8", {"resources": {"requests": {"cpu": "2"}}}, INFEASIBLE, 2000, id="nothing allocated"),
        pytest.param("8", {}, INFEASIBLE, 8000, id="a status that says nothing"),
        pytest.param("2", {"resources": [], "allocatedResources": 1}, None, 2000, id="a malformed status"),
    ],
)
def test_the_largest_counts(spec: str, status: dict[str, Any], conditions: Any, cpu: int) -> None:
    pod = running(spec, status=status, conditions=conditions)
    assert pod.problem == ""
    assert effective_requests(pod.request) == {"cpu": cpu}


def test_everything_else_goes_by_the_spec() -> None:
    smaller = running("2", status=has("4", "4"))
    assert kube_qos(smaller.request) is KubeQos.BURSTABLE  # it limits no memory
    assert smaller.request.containers[0].requests == {"cpu": 2000}


def test_pod_level_amounts_are_resized_too() -> None:
    pod = parse_pod(
        {
            "metadata": {"name": "p", "uid": "u"},
            "spec": {"nodeName": "n", "containers": [{"name": "c"}], "resources": {"requests": {"cpu": "2"}}},
            "status": {"resources": {"requests": {"cpu": "3"}}, "allocatedResources": {"cpu": "5"}},
        }
    )
    assert effective_requests(pod.request) == {"cpu": 5000}


def test_a_pod_that_waits_counts_by_its_spec() -> None:
    waiting = parse_pod(
        {
            "metadata": {"name": "p", "uid": "u"},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]},
            "status": {"containerStatuses": [{"name": "c", **has("4", "4")}]},
        }
    )
    assert effective_requests(waiting.request) == {"cpu": 2000}


def resized(spec: str, allocated: str, conditions: list[dict[str, str]]) -> Any:
    """A Guaranteed pod whose spec asks for other CPUs than the kubelet has allocated."""
    amounts = {name: {"cpu": cpu, "memory": "1Gi"} for name, cpu in (("spec", spec), ("status", allocated))}
    resources = {"requests": amounts["spec"], "limits": amounts["spec"]}
    status = {"resources": {"requests": amounts["status"]}, "allocatedResources": amounts["status"]}
    container = {"name": "c", "resources": resources}
    return running(spec, status=status, conditions=conditions, containers=[container])


@each_row("spec", ["8", "2", "1500m"])
@each_row("conditions", [[], INFEASIBLE], ids=["new", "infeasible"])
def test_exclusive_cpus_stay_as_allocated(spec: str, conditions: list[dict[str, str]]) -> None:
    pod = resized(spec, "4", conditions)
    assert pod.problem == ""
    assert pod_demand(pod.request).counts == (4,)


def test_a_pod_at_rest_has_no_other_allocation() -> None:
    assert resized("4", "4", []).request.allocated is None
