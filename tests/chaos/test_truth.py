"""The checks of the chaos runs can fail: whatever is done wrong on purpose, they say it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import Assignment, Pod
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.state.ledger import Holding
from koord_numa.core.value_objects import replace
from koord_numa.sandbox.apiserver import ApiServer
from koord_numa.sandbox.machines import Fleet, Style
from koord_numa.sandbox.machines.agents import KoordinatorAgent, _Resident
from koord_numa.sandbox.machines.description import read_descriptions
from koord_numa.settings import Settings
from koord_numa.wire.names import RESOURCE_STATUS
from tests.chaos.kinds import GPU, MACHINES, wanting
from tests.chaos.truth import (
    REFUSED_AS_TOLD,
    Objects,
    broken,
    differences,
    ledgers,
    placeable,
    rebuilt,
    silent,
    unbalanced,
)
from tests.e2e.world import CRDS, JsonObject, pinned

GIB = 2**30
SMALL, HUGE = "hugepages-2Mi", "hugepages-1Gi"


@dataclass(frozen=True)
class Given:
    """Pods on a node: what each asks for besides two CPUs, their CPUs and amounts on NUMA node 0, and what several then hold."""

    node: str
    more: dict[str, str]
    given: Sequence[tuple[str, Mapping[str, Any]]]
    what: str = ""


TWICE = {
    "a CPU": Given("pair-0", {}, [("0-1", {}), ("1-2", {})], "CPUs 1"),
    "a device": Given(
        "quad-0", {GPU: "1"}, [("0-1", {GPU: "1"}), ("2-3", {GPU: "1"})], f"2 of 1 {GPU} on NUMA nodes 0"
    ),
    "small pages": Given(
        "arm-0",
        {SMALL: "768Mi"},
        [("0-1", {SMALL: "768Mi"}), ("2-3", {SMALL: "768Mi"})],
        f"{2 * 768 * 2**20} of {GIB} {SMALL} on NUMA nodes 0",
    ),
    "a gigantic page": Given(
        "arm-0",
        {HUGE: "2Gi"},
        [("0-1", {HUGE: "2Gi"}), ("2-3", {HUGE: "2Gi"})],
        f"{4 * GIB} of {2 * GIB} {HUGE} on NUMA nodes 0",
    ),
    "memory": Given(
        "quad-0",
        {"memory": "10Gi"},
        [("0-1", {"memory": "10Gi"}), ("2-3", {"memory": "10Gi"})],
        f"{20 * GIB} of {13 * GIB} memory on NUMA nodes 0",
    ),
}

each_twice = pytest.mark.parametrize("twice", TWICE.values(), ids=TWICE.keys())


class FakeCarelessAgent(KoordinatorAgent):
    """A node that takes whatever it is given."""

    def _check(self, pod: Pod, before: _Resident | None) -> _Resident:
        return _Resident(pod, pod.assignment or Assignment(), CpuSet(), effective_requests(pod.request))


@pytest.fixture
def server() -> ApiServer:
    """It does not listen."""
    return ApiServer(crds=CRDS)


@pytest.fixture
def rack(server: ApiServer) -> Fleet:
    """The machines of a chaotic cluster."""
    rack = Fleet(server.store, read_descriptions(MACHINES, Path()))
    rack.start()
    return rack


def bind(server: ApiServer, pod: JsonObject, node: str, status: JsonObject | None = None) -> None:
    """Place a pod as a scheduler would that is wrong."""
    server.store.create(pod)
    annotations = {} if status is None else {RESOURCE_STATUS: orjson.dumps(status).decode()}
    server.store.bind(
        "default", pod["metadata"]["name"], {"metadata": {"annotations": annotations}, "target": {"name": node}}
    )


def give(server: ApiServer, twice: Given) -> None:
    """Bind the pods as a scheduler would that is wrong."""
    for number, (cpus, amounts) in enumerate(twice.given):
        numa = [{"node": 0, "resources": amounts}] if amounts else []
        pod = wanting(pinned(f"pod-{number}", 2), twice.more)
        bind(server, pod, twice.node, {"cpuset": cpus, "numaNodeResources": numa})


@each_twice
def test_careful_nodes_refuse_what_is_given_twice(server: ApiServer, rack: Fleet, twice: Given) -> None:
    give(server, twice)
    [said] = broken(rack, {})
    assert said.startswith(f"{twice.node} refuses default/pod-1: WrongPlacement: ")


@each_twice
def test_what_careless_nodes_let_pods_hold_twice_is_in_the_log(server: ApiServer, rack: Fleet, twice: Given) -> None:
    rack.nodes[twice.node]._agent = FakeCarelessAgent(rack.nodes[twice.node].description)
    give(server, twice)
    for name in ("pod-0", "pod-1"):
        server.store.delete("pods", name)  # over, but it was so
    assert rack.refusals == []
    assert broken(rack, {}) == [f"entry 1: {twice.what} of {twice.node} are held by default/pod-0 and default/pod-1"]


def test_one_device_of_a_kubelet_for_two_pods_is_in_the_log(server: ApiServer, rack: Fleet) -> None:
    node = rack.nodes["kubelet-0"]
    assert node.description.style is Style.KUBELET
    bind(server, wanting(pinned("pod-0", 1), {GPU: "1"}), node.name)
    before = node._agent._state  # type: ignore[attr-defined]  # the kubelet's state
    node._agent._state = before.without(next(iter(node.pods)))  # type: ignore[attr-defined]  # it forgets the pod
    bind(server, wanting(pinned("pod-1", 1), {GPU: "1"}), node.name)
    assert broken(rack, {}) == [
        "entry 1: CPUs 1 of kubelet-0 are held by default/pod-0 and default/pod-1",
        "entry 1: devices nvidia.com/gpu gpu-0 of kubelet-0 are held by default/pod-0 and default/pod-1",
    ]


def test_refusals_count_unless_they_were_ordered(server: ApiServer, rack: Fleet) -> None:
    rack.nodes["kubelet-0"].refuse_next(REFUSED_AS_TOLD)
    bind(server, pinned("ordered", 1), "kubelet-0")
    bind(server, pinned("true", 40), "kubelet-0")
    [said] = broken(rack, {})
    assert said.startswith("kubelet-0 refuses default/true: TopologyAffinityError: ")


def test_a_pod_on_two_nodes_is_noticed(rack: Fleet) -> None:
    assert broken(rack, {"a": {"pair-0"}, "b": {"pair-1", "pair-0"}}) == ["b was on ['pair-0', 'pair-1']"]


def test_a_pod_that_fits_and_waits_is_noticed(server: ApiServer, rack: Fleet) -> None:
    for name, more in (("fits", {GPU: "1", HUGE: "1Gi"}), ("never", {GPU: "9"})):
        server.store.create(wanting(pinned(name, 1, policy="SingleNUMANode"), more))
    objects = Objects.of(server.store)
    assert placeable(rebuilt(objects, Settings()), objects).keys() == {"fits"}


WRONG: dict[str, Mapping[str, Any]] = {
    "a CPU": {"cpus": CpuSet.parse("0,2")},
    "a device": {"amounts": {"cpu": 2000, "memory": 2 * GIB, GPU: 2, HUGE: GIB}},
    "a page": {"amounts": {"cpu": 2000, "memory": 2 * GIB, GPU: 1, HUGE: 2 * GIB}},
    "the NUMA node of a device": {"numa": ((0, {HUGE: GIB}), (1, {GPU: 1}))},
    "the NUMA node of a page": {"numa": ((0, {GPU: 1}), (1, {HUGE: GIB}))},
}


@pytest.fixture
def held(server: ApiServer, rack: Fleet) -> tuple[str, Holding]:
    """A pod with CPUs, a device and a page, as the ledger has it."""
    amounts = {GPU: "1", HUGE: "1Gi"}
    give(server, Given("quad-0", amounts, [("0-1", amounts)]))
    assert broken(rack, {}) == []
    [(uid, holding)] = ledgers(rebuilt(Objects.of(server.store), Settings()))["quad-0"].items()
    return uid, holding


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_a_ledger_that_is_wrong_in_one_thing_is_noticed(held: tuple[str, Holding], wrong: Mapping[str, Any]) -> None:
    uid, holding = held
    true = {"quad-0": {uid: holding}}
    assert differences(true, true) == []
    believed = replace(holding, **wrong)
    assert differences({"quad-0": {uid: believed}}, true) == [f"quad-0: believed {believed}, true {holding}"]


def test_pods_that_only_one_of_both_knows_are_noticed(held: tuple[str, Holding]) -> None:
    uid, holding = held
    true = {"quad-0": {uid: holding}}
    assert differences({}, true) == [f"quad-0: believed None, true {holding}"]
    assert differences(true, {}) == [f"quad-0: believed {holding}, true None"]


def test_totals_that_are_not_sums_are_noticed(server: ApiServer, held: tuple[str, Holding]) -> None:
    engine = rebuilt(Objects.of(server.store), Settings())
    assert unbalanced(engine) == []
    engine.cache.nodes["quad-0"].ledger.numa[0][GPU] += 1
    assert unbalanced(engine) == ["quad-0: wrong totals"]


def test_a_pod_that_waits_in_silence_is_found() -> None:
    server = ApiServer(crds=CRDS)
    uid = server.store.create(pinned("quiet", 2))["metadata"]["uid"]
    assert silent(server.store) == ["quiet waits without an event", "quiet waits without a condition"]
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
    server.store.patch("pods", "quiet", {"status": {"conditions": [condition]}}, "default", "status")
    assert silent(server.store) == ["quiet waits without an event"]
    server.store.create(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "quiet.1", "namespace": "default"},
            "involvedObject": {"kind": "Pod", "namespace": "default", "name": "quiet", "uid": uid},
            "reason": "FailedScheduling",
        }
    )
    assert silent(server.store) == []
