"""The pods that a topology shows are cached until an input changes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.fingerprint import fingerprint
from koord_numa.core.kubelet import shown_pods
from koord_numa.core.kubelet.history import KubeletHistory
from koord_numa.core.kubelet.node_config import NodeConfig
from koord_numa.core.kubelet.shown_pods import Reading, read
from koord_numa.core.objects.node import KubeletConfig, NodeResourceTopology, Zone
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.vocabulary import CpuOwner, KubeletPolicy
from koord_numa.core.value_objects import replace
from tests.engine.world import make_pod

WHOLE = {"cpu": 8000}
TOPOLOGY = NodeResourceTopology(
    "n",
    CpuOwner.KUBELET,
    zones=(Zone(0, WHOLE, WHOLE, WHOLE), Zone(1, WHOLE, WHOLE, WHOLE)),
    kubelet=KubeletConfig(topology_policy=KubeletPolicy.SINGLE_NUMA_NODE, cpu_policy="static", memory_policy="None"),
)
FRAME = NodeConfig.of(TOPOLOGY, {"cpu": 16000})

NAMES = st.sampled_from("ab")
METHODS = st.sampled_from(["all", "with-exclusive-resources"])
STEPS = st.one_of(
    st.tuples(st.just("come"), NAMES, st.booleans()),
    st.tuples(st.sampled_from(["start", "leave", "refuse", "withdraw"]), st.integers(0, 9)),
    st.tuples(st.just("publish"), st.sets(NAMES), METHODS),
    st.just(("publish again",)),
)


def topology_of(names: set[str], method: str) -> NodeResourceTopology:
    return replace(TOPOLOGY, fingerprint=fingerprint(("default", name) for name in names), fingerprint_method=method)


class Node:
    """A history that is told of steps."""

    def __init__(self) -> None:
        self.history = KubeletHistory()
        self.pods: list[Pod] = []
        self.now = 0.0
        self.topology = topology_of(set(), "all")

    def take(self, step: tuple[Any, ...]) -> None:
        self.now += 1.0
        match step:
            case ("come", str(name), bool(runs)):
                key = replace(make_pod(name).key, uid=f"uid-{len(self.pods)}")
                pod = replace(make_pod(name), key=key, node="n", started=runs, started_at=self.now if runs else 0.0)
                self.pods.append(pod)
                self.history.observe(pod, self.now)
            case ("publish", set(names), str(method)):
                self.topology = topology_of(names, method)
                self.publish()
            case ("publish again",):
                # Another object, as every update is one.
                self.topology = replace(self.topology)
                self.publish()
            case (str(act), int(number)) if self.pods:
                self.happen(act, number % len(self.pods))

    def happen(self, act: str, number: int) -> None:
        pod = self.pods[number]
        if act == "start":
            self.pods[number] = pod = replace(pod, started=True, started_at=self.now)
            if pod.key.uid in self.history.pods:
                self.history.observe(pod, self.now)
        elif act == "leave":
            self.history.leave(pod.key.uid, self.now)
        elif act == "refuse":
            self.history.reject(replace(pod, reason="TopologyAffinityError"), self.now)
        else:
            self.history.withdraw(pod.key.uid)

    def publish(self) -> None:
        self.history.publish(self.topology, replace(FRAME, topology=self.topology))


def said(reading: Reading | None) -> tuple[object, ...]:
    assert reading is not None
    return frozenset(reading.counted), reading.shown, reading.tells, reading.namesakes, {*reading.ways}


@given(st.lists(STEPS, max_size=30))
def test_what_is_remembered_is_what_would_be_read(steps: list[tuple[Any, ...]]) -> None:
    node = Node()
    node.take(("publish again",))
    for step in steps:
        node.take(step)
        history, frame = node.history, replace(FRAME, topology=replace(node.topology))
        read_now = said(read(frame.topology, frame, history.pods, history.shown))
        assert said(history._reading.of(frame, history.pods, history.shown)) == read_now


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The fingerprints that were read."""
    found: list[str] = []

    def counting(topology: NodeResourceTopology, *rest: object) -> Reading:
        found.append(topology.fingerprint)
        return read(topology, *rest)  # type: ignore[arg-type]  # the rest is handed on as it came

    monkeypatch.setattr(shown_pods, "read", counting)
    return found


def test_the_same_fingerprint_of_the_same_pods_is_not_read_again(readings: list[str]) -> None:
    node = Node()
    for name in "abc":
        node.take(("come", name, True))
    node.take(("publish", set("abc"), "all"))
    # Once more, as the pods that were shown last are tried first.
    node.take(("publish again",))
    before = len(readings)
    for _ in range(5):
        node.take(("publish again",))
    assert len(readings) == before
    assert node.history.shown == {"uid-0", "uid-1", "uid-2"}


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(("come", "d", False), id="a-pod-comes"),
        pytest.param(("start", 2), id="a-pod-starts"),
        pytest.param(("leave", 1), id="a-pod-leaves"),
        pytest.param(("refuse", 2), id="a-pod-is-refused"),
        pytest.param(("withdraw", 2), id="a-bind-failed"),
    ],
)
def test_after_a_change_of_pods_it_is_read_again(readings: list[str], step: tuple[Any, ...]) -> None:
    node = Node()
    for name, runs in (("a", True), ("b", True), ("c", False)):
        node.take(("come", name, runs))
    for act in (("publish", set("ab"), "all"), ("publish again",), ("publish again",)):
        node.take(act)
    readings.clear()
    node.take(step)
    node.take(("publish again",))
    assert len(readings) >= 1
