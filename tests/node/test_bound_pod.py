"""Containers that a static CPU manager pins, and the uid by which the kubelet knows a pod."""

from typing import Any, Final

import pytest

from koord_numa.node.pods import bound_pod
from tests.tables import each_row

WHOLE: Final = {"name": "c", "resources": {"limits": {"cpu": "2", "memory": "1Gi"}}}
PART: Final = {"name": "p", "resources": {"limits": {"cpu": "1500m", "memory": "1Gi"}}}


def pod(spec: dict[str, Any], status: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    """A Guaranteed pod."""
    return {
        "metadata": {"namespace": "default", "name": "a", "uid": "u", **metadata},
        "spec": spec,
        "status": {"qosClass": "Guaranteed", **(status or {})},
    }


PINNED: Final[dict[str, tuple[dict[str, Any], set[str]]]] = {
    "whole CPUs": (pod({"containers": [WHOLE]}), {"c"}),
    "2000m are whole": (pod({"containers": [{"name": "c", "resources": {"limits": {"cpu": "2000m"}}}]}), {"c"}),
    "a fraction shares": (pod({"containers": [WHOLE, PART]}), {"c"}),
    "burstable": (pod({"containers": [WHOLE]}, {"qosClass": "Burstable"}), set()),
    "no CPUs": (pod({"containers": [{"name": "c", "resources": {"limits": {"memory": "1Gi"}}}]}), set()),
    "init containers are not listed": (pod({"initContainers": [{**WHOLE, "name": "i"}], "containers": [PART]}), set()),
    "sidecars are": (
        pod({"initContainers": [{**WHOLE, "name": "s", "restartPolicy": "Always"}], "containers": [WHOLE]}),
        {"s", "c"},
    ),
    "pod-level resources": (pod({"resources": {"limits": {"cpu": "2"}}, "containers": [WHOLE]}), set()),
    "a resize that is not done": (
        pod({"containers": [WHOLE]}, {"conditions": [{"type": "PodResizePending", "status": "True"}]}),
        set(),
    ),
    "the older field of a resize": (pod({"containers": [WHOLE]}, {"resize": "Infeasible"}), set()),
    "malformed amounts": (pod({"containers": [{"name": "c", "resources": {"limits": {"cpu": "two"}}}]}), set()),
}


@each_row(("obj", "names"), PINNED.values(), ids=PINNED.keys())
def test_containers_that_get_cpus_of_their_own(obj: dict[str, Any], names: set[str]) -> None:
    assert bound_pod(obj).pinned == names


def test_the_uid_of_a_static_pod() -> None:
    found = bound_pod(pod({}, annotations={"kubernetes.io/config.mirror": "0123"}))
    assert (found.uid, found.kubelet_uid) == ("u", "0123")
    assert bound_pod(pod({})).kubelet_uid == "u"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended(phase: str) -> None:
    assert bound_pod(pod({}, {"phase": phase})).ended
    assert not bound_pod(pod({}, {"phase": "Running"})).ended


def test_a_pod_that_runs() -> None:
    running = pod({}, {"containerStatuses": [{"state": {"running": {}}}]}, deletionTimestamp="2026-01-01T00:00:00Z")
    assert (bound_pod(running).started, bound_pod(running).deleting) == (True, True)
    waiting = pod({}, {"containerStatuses": [{"state": {"waiting": {}}}]})
    assert (bound_pod(waiting).started, bound_pod(waiting).deleting) == (False, False)


def test_an_object_without_anything() -> None:
    assert bound_pod({}).key == ("", "")
