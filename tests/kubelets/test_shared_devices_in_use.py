"""
Nodes on which devices near several NUMA nodes are in use when a scheduler first sees them: a yes holds there too.

NFD counts a device in use on one NUMA node alone, so that zones may show more available than there is.
"""

from random import Random
from typing import Any, Final

import pytest

from koord_numa.core.kubelet.admit import Admitted, admit_pod
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.wire import parse_pod
from tests.kubelets.shared_devices import SharedLife
from tests.kubelets.strategies import container
from tests.kubelets.test_shared_devices import ASKED, life_of
from tests.tables import each_row

Spec = dict[str, Any]

MINUTES: Final = 300.0
"""After so many seconds no topology is taken to be older than the pods that run."""

MORE: Final = (*ASKED, *({"containers": [container("app", 1, 1, count)]} for count in (3, 4)))


def used(life: SharedLife, placed: list[Spec]) -> SharedLife:
    """The node with these pods, as another scheduler finds it that starts long after them."""
    for spec in placed:
        life.place(spec)
        life.settle()
    life.wait(MINUTES)
    life.scan()
    life.deliver()
    life.restart(0)
    life.wait(MINUTES)
    return life


def gpus(count: int) -> Spec:
    """A pod with so many."""
    return {"containers": [container("app", 1, 1, count)]}


def admits(life: SharedLife, spec: Spec) -> bool:
    """Return true if the kubelet would admit the pod."""
    request = parse_pod(life.pod("question", spec)).request
    return isinstance(admit_pod(life.agent._state, "question", request), Admitted)


@pytest.mark.parametrize("fingerprint", [True, False])
def test_what_nfd_shows_available_on_a_numa_node_may_be_in_use(fingerprint: bool) -> None:
    """A GPU near NUMA nodes 0 and 1 is in use: NFD counts it twice on NUMA node 1, and shows both GPUs of NUMA node 0 available."""
    life = life_of([0b11, 0b01, 0b10], KubeletPolicy.SINGLE_NUMA_NODE, in_full=False, numa=2)
    life.fingerprint = fingerprint
    used(life, [gpus(1)])
    assert life.published["zones"][0]["resources"] != life.published["zones"][1]["resources"]
    assert not admits(life, gpus(2))
    assert isinstance(life.ask(gpus(2)), Rejection)
    assert not isinstance(life.ask(gpus(1)), Rejection)


@pytest.mark.parametrize("in_full", [True, False])
def test_devices_near_all_numa_nodes_differ_by_number(in_full: bool) -> None:
    life = used(life_of([0b11] * 4, KubeletPolicy.SINGLE_NUMA_NODE, in_full=in_full, numa=2), [gpus(1)])
    for count in (1, 2, 3):
        assert not isinstance(life.ask(gpus(count)), Rejection), count


@each_row("in_full", [True, False])
@each_row("fingerprint", [True, False])
def test_a_yes_holds_on_a_node_that_was_in_use(in_full: bool, fingerprint: bool, pytestconfig: pytest.Config) -> None:
    said, seeds = 0, 2 * int(pytestconfig.getoption("--law-examples"))
    for seed in range(seeds):
        dice = Random(seed)
        numa = dice.choice((2, 2, 3, 4))
        wiring = [dice.randint(1, (1 << numa) - 1) for _ in range(dice.randint(2, 6))]
        policy = dice.choice((KubeletPolicy.SINGLE_NUMA_NODE, KubeletPolicy.RESTRICTED))
        life = life_of(wiring, policy, in_full=in_full, numa=numa)
        life.fingerprint = fingerprint
        used(life, [gpus(dice.choice((1, 1, 2))) for _ in range(dice.randint(1, 3))])
        if life.running and dice.random() < 0.5:
            life.end(dice.randint(0, 3))
            while life.news:
                life.hear()
        for spec in MORE:
            if not isinstance(life.ask(spec), Rejection):
                said += 1
                assert admits(life, spec), f"{seed}: {[bin(mask) for mask in wiring]} {policy} {spec}"
    assert said > seeds * 5 // 6


@pytest.mark.parametrize("in_full", [True, False])
def test_what_a_pod_held_is_free_when_it_is_gone_wherever_it_was(in_full: bool) -> None:
    """All GPUs are near both NUMA nodes: whichever of them it had, so many are free, and CPUs on one NUMA node or the other."""
    life = used(life_of([0b11] * 4, KubeletPolicy.SINGLE_NUMA_NODE, in_full=in_full, numa=2), [gpus(2), gpus(2)])
    assert isinstance(life.ask(gpus(1)), Rejection)
    life.end(0)
    while life.news:
        life.hear()
    assert not isinstance(life.ask(gpus(2)), Rejection)
    assert isinstance(life.ask(gpus(3)), Rejection)
