"""Which pods a topology shows: what an exporter saw may be older than a pod's start, whatever arrives first."""

from dataclasses import replace

import pytest

from koord_numa.core.node import Topology
from koord_numa.core.request import Pod
from koord_numa.core.vocabulary import CpuOwner
from koord_numa.engine.cluster_state import ClusterState
from koord_numa.wire.fingerprint import fingerprint
from tests.engine.world import make_node, make_pod

NAMES = ("a", "b", "c")


def on_node(name: str, created: float, *, started: bool = True) -> Pod:
    pod = replace(make_pod(name), node="n", created=created)
    return replace(pod, started=started)


def shows(*names: str, version: str = "2", method: str = "all") -> Topology:
    """A topology whose fingerprint speaks of these pods."""
    text = fingerprint(("default", name) for name in names) if method else ""
    return Topology("n", CpuOwner.KUBELET, fingerprint=text, fingerprint_method=method, resource_version=version)


def state_with(*started: str) -> ClusterState:
    """Three pods that the first topology did not show, created one second after the other; some have started."""
    state = ClusterState(lambda cause, record: None)
    state.observe_node(None, make_node("n"))
    state.observe_topology(None, shows(version="1"))
    for created, name in enumerate(NAMES):
        state.observe_pod(None, on_node(name, created, started=False))
    for created, name in enumerate(NAMES):
        if name in started:
            state.observe_pod(None, on_node(name, created))
    return state


def hidden(state: ClusterState) -> set[str]:
    record = state.nodes["n"]
    return {record.pods[uid].key.name for uid in record.unpublished}


@pytest.mark.parametrize(
    ("started", "shown", "expected"),
    [
        pytest.param(("a", "b"), shows("a", "b"), {"c"}, id="what-has-started"),
        pytest.param(("a", "b"), shows("a"), {"b", "c"}, id="seen-before-the-second-started"),
        pytest.param(("a", "b"), shows(version="2"), {"a", "b", "c"}, id="seen-before-any-started"),
        pytest.param(("a",), shows("a", "b", "c"), set(), id="ahead-of-what-we-heard"),
        pytest.param(("a", "b"), shows("a", "stranger"), {"a", "b", "c"}, id="speaks-of-others"),
        pytest.param(("a", "b"), shows("a", method=""), {"c"}, id="no-fingerprint"),
        pytest.param(("a", "b"), shows("a", method="with-exclusive-resources"), {"c"}, id="leaves-pods-out"),
    ],
)
def test_pods_that_a_new_topology_does_not_show(started: tuple[str, ...], shown: Topology, expected: set[str]) -> None:
    state = state_with(*started)
    state.observe_topology(None, shown)
    assert hidden(state) == expected


def test_a_topology_that_always_speaks_of_others_is_believed_the_second_time() -> None:
    state = state_with("a")
    state.observe_topology(None, shows("a", "stranger", version="2"))
    state.observe_pod(None, on_node("b", 1.0))
    state.observe_topology(None, shows("a", "b", "stranger", version="3"))
    assert hidden(state) == {"b", "c"}
    state.observe_topology(None, shows("a", "b", "stranger", version="4"))
    assert hidden(state) == {"c"}
