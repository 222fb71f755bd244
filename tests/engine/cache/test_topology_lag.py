"""Pods that a topology shows: the exporter's data may be older than the start of a pod, in any order of events."""

from collections.abc import Callable

import pytest

from koord_numa.core.fingerprint import fingerprint
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.node import KubeletConfig, NodeResourceTopology, Zone
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.vocabulary import CpuOwner, KubeletPolicy
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.cache import Cache
from koord_numa.engine.cache.topology_lag import RECENT
from tests.engine.world import GIB, list_into, make_node, make_pod
from tests.tables import each_row

HALF = {"cpu": 4000, "memory": 16 * GIB}
NAMES = ("a", "b", "c")


def on_node(name: str, created: float, *, started: bool = True) -> Pod:
    pod = replace(make_pod(name), node="n", created=created)
    return replace(pod, started=started)


def shows(*names: str, version: str = "2", method: str = "all") -> NodeResourceTopology:
    """A topology whose fingerprint speaks of these pods."""
    text = fingerprint(("default", name) for name in names) if method else ""
    return NodeResourceTopology(
        "n", CpuOwner.KUBELET, fingerprint=text, fingerprint_method=method, resource_version=version
    )


def state_with(*started: str) -> Cache:
    """Three pods that the first topology did not show, created one second after the other; some have started."""
    state = Cache(lambda event, info, pod: None)
    state.observe_node(None, make_node("n"))
    state.observe_topology(None, shows(version="1"))
    for created, name in enumerate(NAMES):
        state.observe_pod(None, on_node(name, created, started=False))
    for created, name in enumerate(NAMES):
        if name in started:
            state.observe_pod(None, on_node(name, created))
    return state


def hidden(state: Cache) -> set[str]:
    record = state.nodes["n"]
    return {record.pods[uid].key.name for uid in record.unpublished}


@each_row(
    ("started", "shown", "expected"),
    [
        pytest.param(("a", "b"), shows("a", "b"), {"c"}, id="what-has-started"),
        pytest.param(("a", "b"), shows("a"), {"b", "c"}, id="seen-before-the-second-started"),
        pytest.param(("a", "b"), shows(version="2"), {"a", "b", "c"}, id="seen-before-any-started"),
        pytest.param(("a",), shows("a", "b", "c"), set(), id="ahead-of-what-we-heard"),
        pytest.param(("a", "b"), shows("a", "foreign"), {"a", "b", "c"}, id="speaks-of-others"),
        pytest.param(("a", "b"), shows("a", method=""), {"c"}, id="no-fingerprint"),
        pytest.param(("a", "b"), shows("a", method="with-exclusive-resources"), {"c"}, id="leaves-pods-out"),
    ],
)
def test_pods_that_a_new_topology_does_not_show(
    started: tuple[str, ...], shown: NodeResourceTopology, expected: set[str]
) -> None:
    state = state_with(*started)
    state.observe_topology(None, shown)
    assert hidden(state) == expected


def test_a_topology_of_other_pods_is_believed_the_second_time() -> None:
    state = state_with("a")
    state.observe_topology(None, shows("a", "foreign", version="2"))
    state.observe_pod(None, on_node("b", 1.0))
    state.observe_topology(None, shows("a", "b", "foreign", version="3"))
    assert hidden(state) == {"b", "c"}
    state.observe_topology(None, shows("a", "b", "foreign", version="4"))
    assert hidden(state) == {"c"}


def at_restart(starts: dict[str, float], published: NodeResourceTopology | None, clock: list[float]) -> Cache:
    """Return the knowledge of a new process after its lists: the pods run since these times."""
    state = Cache(lambda event, info, pod: None, clock=lambda: clock[0])
    list_into(state, nodes=[make_node("n")])
    if published is not None:
        list_into(state, topologies=[published])
    list_into(state, pods=[replace(on_node(name, 0.0), started_at=start) for name, start in starts.items()])
    return state


RAN = {"a": 1000.0, "b": 1900.0, "c": 2000.0}
"""Two of them started within three minutes."""


@each_row(
    ("shown", "expected"),
    [
        pytest.param(shows("a", "b", "c"), set(), id="shows-all"),
        pytest.param(shows("a", "b"), {"c"}, id="older-than-the-last"),
        pytest.param(shows(method="all"), {"a", "b", "c"}, id="older-than-all"),
        pytest.param(shows("a", "foreign"), {"b", "c"}, id="speaks-of-others"),
        pytest.param(shows("a", method=""), {"b", "c"}, id="no-fingerprint"),
        pytest.param(shows("a", method="with-exclusive-resources"), {"b", "c"}, id="leaves-pods-out"),
    ],
)
@each_row("late", [False, True], ids=["topology-first", "pods-first"])
def test_after_a_restart_topologies_may_be_older_than_pods(
    shown: NodeResourceTopology, expected: set[str], *, late: bool
) -> None:
    state = at_restart(RAN, None if late else shown, [0.0])
    if late:
        list_into(state, topologies=[shown])
    assert hidden(state) == expected


@pytest.mark.parametrize("node_first", [False, True])
def test_lists_in_any_order_hide_the_same(*, node_first: bool) -> None:
    state = Cache(lambda event, info, pod: None)
    steps: list[Callable[[], None]] = [
        lambda: list_into(state, nodes=[make_node("n")]),
        lambda: list_into(state, pods=[replace(on_node(name, 0.0), started_at=at) for name, at in RAN.items()]),
        lambda: list_into(state, topologies=[shows("a", "b")]),
    ]
    for step in steps if node_first else reversed(steps):
        step()
    state.judge_found_pods()
    state.expire_unreported()
    assert hidden(state) == {"c"}


def test_no_pod_waits_for_ever_for_an_exporter_without_news() -> None:
    clock = [100.0]
    state = at_restart(RAN, shows(method=""), clock)
    clock[0] += RECENT - 1
    state.judge_found_pods()
    state.expire_unreported()
    assert hidden(state) == {"b", "c"}
    clock[0] += 1
    state.judge_found_pods()
    state.expire_unreported()
    assert hidden(state) == set()


def test_a_pod_hidden_by_a_fingerprint_stays_hidden_until_shown() -> None:
    clock = [100.0]
    state = at_restart(RAN, shows("a", "b"), clock)
    clock[0] += 10 * RECENT
    state.judge_found_pods()
    state.expire_unreported()
    assert hidden(state) == {"c"}
    state.observe_topology(None, shows("a", "b", "c", version="3"))
    assert hidden(state) == set()


def kubelet_shows(
    used: int, *names: str, version: str = "2", method: str = "with-exclusive-resources"
) -> NodeResourceTopology:
    """A kubelet-owned node of one zone with 4 CPUs, of which these pods use so many."""
    zone = Zone(0, {"cpu": 4000}, {"cpu": 4000}, {"cpu": 4000 - used})
    return replace(
        shows(*names, version=version, method=method),
        kubelet=KubeletConfig(topology_policy=KubeletPolicy.SINGLE_NUMA_NODE),
        zones=(zone,),
    )


@pytest.mark.parametrize("method", ["with-exclusive-resources", "all"])
def test_an_older_scan_after_a_start_hides_the_pod(method: str) -> None:
    """Also where a pod that it shows has left since: c started, d left, and the scan of a, b and d arrives."""
    clock = [100.0]
    state = at_restart({**RAN, "d": 1000.0}, kubelet_shows(4000, *"abcd", version="1", method=method), clock)
    assert hidden(state) == set()
    state.observe_pod("DELETED", on_node("d", 0.0))
    state.observe_pod(None, on_node("e", 3.0, started=False))
    state.observe_pod(None, on_node("e", 3.0))
    state.observe_topology(None, kubelet_shows(4000, *"abcd", version="2", method=method))
    assert hidden(state) == {"e"}
    state.observe_topology(None, kubelet_shows(4000, *"abce", version="3", method=method))
    assert hidden(state) == set()


@pytest.mark.parametrize("method", ["with-exclusive-resources", ""])
def test_a_scan_of_unknown_pods_shows_none_before_older_scans(method: str) -> None:
    """Neither by a fingerprint that nothing explains nor without one is a pod shown that may be newer than the scan."""
    clock = [100.0]
    state = at_restart({"a": 1000.0}, kubelet_shows(1000, "a", version="1", method=method), clock)
    state.observe_pod(None, on_node("e", 3.0, started=False))
    state.observe_pod(None, on_node("e", 3.0))
    for version in ("2", "3"):
        state.observe_topology(None, kubelet_shows(2000, "a", "foreign", version=version, method=method))
        assert "e" in hidden(state)
    clock[0] += RECENT
    state.expire_unreported()
    assert hidden(state) == set()


def test_a_decision_after_a_restart_counts_what_is_hidden() -> None:
    used = Zone(0, HALF, HALF, {**HALF, "cpu": 2000})  # of two pods
    state = at_restart(RAN, replace(shows("a", "b"), zones=(used,)), [0.0])
    seen = state.nodes["n"].candidate()
    assert seen is not None
    assert isinstance(seen.offer, KubeletView)
    assert seen.offer.topology is not None
    assert [zone.available["cpu"] for zone in seen.offer.topology.zones] == [1000]


def renamed(uid: str, name: str, created: float, *, started: bool) -> Pod:
    pod = on_node(name, created, started=started)
    return replace(pod, key=replace(pod.key, uid=uid))


def test_a_topology_from_before_a_bind_shows_no_namesake() -> None:
    """A set's pod comes back under its name while the topology still has the fingerprint of the one before."""
    clock = [100.0]
    state = at_restart({"a": 1000.0}, kubelet_shows(2000, "a", "b", version="1", method="all"), clock)
    state.observe_pod(None, renamed("new-b", "b", 3.0, started=False))
    state.observe_pod(None, renamed("new-b", "b", 3.0, started=True))
    assert "b" in hidden(state)
    clock[0] += RECENT
    state.expire_unreported()
    assert "b" not in hidden(state)


def test_a_late_topology_may_show_the_former_namesake() -> None:
    """The scan saw the old b; it arrives after the new one was bound, or after it has started."""
    for started_first in (False, True):
        clock = [100.0]
        state = at_restart({"a": 1000.0, "b": 1000.0}, kubelet_shows(2000, "a", "b", version="1"), clock)
        state.observe_pod("DELETED", on_node("b", 0.0))
        state.observe_pod(None, renamed("new-b", "b", 3.0, started=False))
        late = kubelet_shows(2000, "a", "b", version="2")
        if started_first:
            state.observe_pod(None, renamed("new-b", "b", 3.0, started=True))
            state.observe_topology(None, late)
        else:
            state.observe_topology(None, late)
            state.observe_pod(None, renamed("new-b", "b", 3.0, started=True))
        assert hidden(state) == {"b"}


def test_a_later_pod_tells_which_namesake_is_shown() -> None:
    clock = [100.0]
    state = at_restart({"a": 1000.0, "b": 1000.0}, kubelet_shows(2000, "a", "b", version="1"), clock)
    state.observe_pod("DELETED", on_node("b", 0.0))
    clock[0] += 1
    for uid, name in (("new-b", "b"), ("c", "c")):
        state.observe_pod("ADDED", renamed(uid, name, 3.0, started=False))
        state.observe_pod("MODIFIED", renamed(uid, name, 3.0, started=True))
    state.observe_topology(None, kubelet_shows(3000, "a", "b", "c", version="2"))
    assert hidden(state) == set()


@pytest.mark.parametrize("by_amounts", [False, True])
def test_an_old_event_does_not_hide_a_pod_that_was_read_back(*, by_amounts: bool) -> None:
    """A read is ahead of the watch, which then shows the pod once more as it was before its start."""
    state = Cache(lambda event, info, pod: None)
    state.observe_node(None, make_node("n"))
    state.observe_topology(None, kubelet_shows(0, version="1", method="all") if by_amounts else shows(version="1"))
    for started in (False, True, False):
        state.observe_pod(None, on_node("a", 1.0, started=started))
    state.observe_topology(None, kubelet_shows(1000, "a", method="all") if by_amounts else shows("a"))
    state.observe_pod(None, on_node("a", 1.0))
    assert hidden(state) == set()


@pytest.mark.parametrize("method", ["all", "with-exclusive-resources"])
def test_a_topology_ahead_of_pod_events_hides_no_pod_forever(method: str) -> None:
    """It shows that a and b have started and c has left, before any of that is heard; nothing new is published after it."""
    state = Cache(lambda event, info, pod: None)
    state.observe_node(None, make_node("n"))
    state.observe_topology(None, kubelet_shows(0, version="1", method=method))
    for created, name in enumerate(NAMES):
        state.observe_pod(None, on_node(name, created, started=False))
    state.observe_topology(None, kubelet_shows(2000, "a", "b", method=method))
    assert hidden(state) == {"a", "b", "c"}
    for created, name in enumerate(NAMES):
        state.observe_pod(None, on_node(name, created))
    state.observe_pod("DELETED", on_node("c", 2.0))
    assert hidden(state) == set()
