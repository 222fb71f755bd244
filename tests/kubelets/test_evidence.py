"""Evidence about a kubelet from its pods: it survives a restart of the scheduler and ends with the kubelet's configuration."""

import pytest

from koord_numa.core.objects.verdicts import Placement, Rejection
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.cache import Cache
from koord_numa.ports import DELETED
from koord_numa.wire import parse_node, parse_pod
from koord_numa.wire.kubelet_state import kubelet_state_text
from koord_numa.wire.names import EXPLORES, KUBELET_STATE
from koord_numa.wire.pod_annotations import resource_status
from tests.kubelets.node_life import JsonObject, NodeLife
from tests.kubelets.test_unknown_options import EVEN, ODD, node

BOOT: JsonObject = {"nodeInfo": {"bootID": "one", "kubeletVersion": "v1.36.0"}}


def ready(since: str) -> JsonObject:
    """The node's status with this time of the Ready condition."""
    condition = {"type": "Ready", "status": "True", "lastTransitionTime": since}
    return {**BOOT, "conditions": [{"type": "MemoryPressure", "status": "False"}, condition]}


def tell(life: NodeLife, status: JsonObject) -> None:
    """The Node changes."""
    obj = life.node()
    obj["status"].update(status)
    life.cache.observe_node("MODIFIED", parse_node(obj))


def refused_life() -> NodeLife:
    """A node whose kubelet has refused a pod for its whole cores."""
    life = NodeLife(node("n", "full-pcpus-only"))
    tell(life, ready("2026-01-01T00:00:00Z"))
    life.place(ODD)
    life.settle()
    assert len(life.refusals) == 1
    assert isinstance(life.ask(ODD), Rejection)
    return life


@pytest.mark.parametrize("node_first", [True, False], ids=["node first", "pod first"])
def test_a_rejected_pod_is_evidence_after_a_restart(node_first: bool) -> None:
    life = refused_life()
    failed = parse_pod(life.objects["p1"])
    life.cache = Cache(lambda *_: None, clock=lambda: life.now)
    if node_first:
        tell(life, ready("2026-01-01T00:00:00Z"))
    life.cache.observe_pod(None, failed)
    if not node_first:
        tell(life, ready("2026-01-01T00:00:00Z"))
    life.scan()
    life.deliver()
    assert isinstance(life.ask(ODD), Rejection)
    assert isinstance(life.ask(EVEN), Placement)


def publish_exact_state(life: NodeLife) -> None:
    """The node agent publishes the kubelet's state."""
    life.scan()
    life.scans[-1]["metadata"]["annotations"] = {KUBELET_STATE: kubelet_state_text(life.agent.checkpoint(life.now))}
    life.deliver()


@pytest.mark.parametrize(("version", "waits"), [("v1.37.3", False), ("v1.38.0-alpha.1", True)])
def test_cpus_that_a_newer_kubelet_chooses_are_known_when_shown(version: str, waits: bool) -> None:
    life = NodeLife(replace(node("n", "distribute-cpus-across-cores"), hidden=False))
    tell(life, {"nodeInfo": {"bootID": "one", "kubeletVersion": version}})
    publish_exact_state(life)
    life.place(EVEN)
    assert isinstance(life.ask(EVEN), Rejection) == waits
    life.admit()
    publish_exact_state(life)
    assert isinstance(life.ask(EVEN), Placement)


def test_evidence_outlives_the_refused_pod() -> None:
    life = refused_life()
    life.cache.observe_pod(DELETED, parse_pod(life.objects["p1"]))
    assert isinstance(life.ask(ODD), Rejection)


@pytest.mark.parametrize(
    "status",
    [
        {"nodeInfo": {"bootID": "two", "kubeletVersion": "v1.36.0"}},
        {"nodeInfo": {"bootID": "one", "kubeletVersion": "v1.36.1"}},
        ready("2026-01-01T02:00:00Z"),
    ],
    ids=["boot", "version", "heartbeat"],
)
def test_a_refusal_is_forgotten_with_the_kubelet_that_refused(status: JsonObject) -> None:
    life = refused_life()
    tell(life, status)
    answer = life.ask(ODD)
    assert isinstance(answer, Placement)
    assert answer.explores == ("full-pcpus-only",)


def test_a_heartbeat_that_goes_on_ends_no_evidence() -> None:
    life = refused_life()
    status = ready("2026-01-01T00:00:00Z")
    status["conditions"][1]["lastHeartbeatTime"] = "2026-01-01T05:00:00Z"
    tell(life, status)
    assert isinstance(life.ask(ODD), Rejection)


def test_a_pod_from_before_a_kubelet_restart_proves_nothing() -> None:
    life = NodeLife(node())
    tell(life, ready("2026-01-01T00:00:00Z"))
    life.place(ODD)
    life.settle()
    known = life.ask(ODD)
    assert isinstance(known, Placement)
    assert not known.explores
    tell(life, ready("2026-01-01T02:00:00Z"))
    again = life.ask(ODD)
    assert isinstance(again, Placement)
    assert again.explores == ("full-pcpus-only",)


def test_an_exploring_pod_records_what_it_explores() -> None:
    life = NodeLife(node())
    answer = life.ask(ODD)
    assert isinstance(answer, Placement)
    pod = parse_pod(life.pod("p", ODD))
    written = resource_status(pod, answer)
    assert written[EXPLORES] == "full-pcpus-only"
    obj = life.pod("p", ODD)
    obj["metadata"]["annotations"] = written
    obj["spec"]["nodeName"] = "n"
    life.cache.observe_pod(None, parse_pod(obj))
    second = life.ask(ODD)
    assert isinstance(second, Rejection)
    assert "another pod is finding out" in second.detail


def test_a_malformed_time_or_boot_closes_no_node() -> None:
    life = NodeLife(node())
    for status in (ready("yesterday"), {"nodeInfo": {"bootID": 7}}, {"conditions": "none"}):
        tell(life, status)
        assert isinstance(life.ask(EVEN), Placement)
