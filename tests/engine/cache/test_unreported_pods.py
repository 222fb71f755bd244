"""Pods that a topology does not show: the state machine compared with a model of a node, its kubelet and its exporter."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from koord_numa.core.fingerprint import fingerprint
from koord_numa.core.objects.node import NodeResourceTopology
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.vocabulary import CpuOwner
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.cache import Cache
from koord_numa.engine.cache.topology_lag import RECENT, Report
from tests.engine.world import list_into, make_node, make_pod


def topology(shown: set[str], version: int, *, tells: bool = True) -> NodeResourceTopology:
    text = fingerprint(("default", name) for name in shown) if tells else ""
    return NodeResourceTopology(
        "n",
        CpuOwner.KUBELET,
        fingerprint=text,
        fingerprint_method="all" if tells else "",
        resource_version=str(version),
    )


class Lag(RuleBasedStateMachine):
    """
    Pods are bound, admitted by the kubelet, seen to have started, and leave; the exporter publishes what was admitted then.

    The truth is known here, and what the cache believes is held against it: with fingerprints nothing counts as shown that is not.
    """

    bound = Bundle("bound")

    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.cache = Cache(lambda event, info, pod: None, clock=lambda: self.now)
        self.cache.observe_node(None, make_node("n"))
        self.count = self.version = 0
        self.pods: dict[str, Pod] = {}  # by name
        self.admitted: set[str] = set()
        self.shown: set[str] = set()
        self.publish()

    @rule(target=bound)
    def bind(self) -> str:
        self.count += 1
        name = f"p{self.count}"
        self.pods[name] = replace(make_pod(name), node="n", created=float(self.count))
        self.cache.observe_pod(None, self.pods[name])
        return name

    @rule(name=bound)
    def admit(self, name: str) -> None:
        """The kubelet takes the pod; it is not published yet."""
        earlier = {other for other in self.pods if int(other[1:]) < int(name[1:])}
        if name in self.pods and earlier <= self.admitted:
            self.admitted.add(name)

    @rule(name=bound)
    def hear_of_start(self, name: str) -> None:
        if name in self.admitted:
            self.pods[name] = replace(self.pods[name], started=True, started_at=self.pods[name].created)
            self.cache.observe_pod(None, self.pods[name])

    @rule()
    def publish(self) -> None:
        self.version += 1
        self.shown = set(self.admitted)
        self.cache.observe_topology(None, topology(self.shown, self.version))

    @rule(name=consumes(bound))
    def leave(self, name: str) -> None:
        self.pods.pop(name, None)
        self.admitted.discard(name)
        self.cache.observe_pod("DELETED", replace(make_pod(name), node="n"))

    @rule(seconds=st.floats(0, 60))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.cache.judge_found_pods()
        self.cache.expire_unreported()

    @invariant()
    def what_counts_as_shown_is_shown(self) -> None:
        info = self.cache.nodes["n"]
        hidden = {info.pods[uid].key.name for uid in info.unpublished}
        assert set(self.pods) - hidden <= self.shown

    @invariant()
    def states_and_hidden_pods_agree(self) -> None:
        unreported = self.cache.nodes["n"].unreported
        for name in self.pods:
            report = unreported.report(f"uid-{name}")
            assert (f"uid-{name}" in unreported.hidden) == (report not in (None, Report.FOUND_SHOWN))

    def teardown(self) -> None:
        """After all pods have started and a topology was published, nothing is hidden."""
        if not hasattr(self, "cache"):
            return
        for name in sorted(self.pods, key=lambda name: int(name[1:])):
            self.admit(name)
            self.hear_of_start(name)
        self.publish()
        assert self.cache.nodes["n"].unpublished == set()


Lag.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLag = Lag.TestCase


def cache_at(clock: list[float]) -> Cache:
    cache = Cache(lambda event, info, pod: None, clock=lambda: clock[0])
    list_into(cache, nodes=[make_node("n")], topologies=[topology(set(), 1)])
    return cache


@pytest.mark.parametrize("tells", [True, False], ids=["fingerprint", "no-fingerprint"])
def test_a_pod_shown_before_its_status_is_not_counted_twice(*, tells: bool) -> None:
    clock = [0.0]
    cache = cache_at(clock)
    pod = replace(make_pod("a"), node="n")
    cache.observe_pod(None, pod)
    if tells:  # another pod that is gone keeps the fingerprint from telling at once
        cache.observe_pod(None, replace(make_pod("b"), node="n"))
    cache.observe_topology(None, topology({"a"}, 2, tells=tells))
    if tells:
        cache.observe_pod("DELETED", replace(make_pod("b"), node="n"))
    cache.observe_pod(None, replace(pod, started=True))
    clock[0] += RECENT
    cache.expire_unreported()
    assert cache.nodes["n"].unpublished == set()


def test_a_dead_exporter_never_shows_a_pod() -> None:
    clock = [0.0]
    cache = cache_at(clock)
    pod = replace(make_pod("a"), node="n")
    cache.observe_pod(None, pod)
    cache.observe_pod(None, replace(pod, started=True))
    clock[0] += 100 * RECENT
    cache.expire_unreported()
    assert cache.nodes["n"].unpublished == {"uid-a"}
