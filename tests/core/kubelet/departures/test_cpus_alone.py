"""Pods that get nothing but CPUs: what numbers tell of them, against the kubelet's whole procedure."""

from random import Random

import pytest

from koord_numa.core.kubelet.admit import admit
from koord_numa.core.kubelet.departures.cpus_alone import finds_cpus
from koord_numa.core.kubelet.enough_room import has_room_whoever_leaves
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis
from koord_numa.core.kubelet.room import everything
from koord_numa.core.kubelet.state import KubeletState
from koord_numa.core.objects.vocabulary import KubeletPolicy
from tests.core.kubelet.departures.test_least_cpus import SHAPES, lived, restricted, some_pod, used, without_some
from tests.core.kubelet.nodes import app, init, pod, sidecar
from tests.core.kubelet.test_enough_room import admits


@pytest.mark.parametrize("seed", range(40))
def test_a_pod_that_finds_cpus_is_admitted_whoever_leaves_and_comes(seed: int) -> None:
    dice = Random(seed)
    told = 0
    for _ in range(12):
        state = lived(dice, restricted(dice.choice(SHAPES), by_socket=dice.random() < 0.5))
        coming = [some_pod(dice) for _ in range(dice.choice((0, 0, 1, 2)))]
        taken = sum(everything(each).cpus for each in coming)
        for asked in [some_pod(dice) for _ in range(6)]:
            if not finds_cpus(asked, Hypothesis(state), taken):
                continue
            told += 1
            for share in (0.0, 0.2, 0.5, 0.8):
                after = without_some(dice, state, share)
                for number, each in enumerate(coming):
                    after = without_some(dice, admit(after, f"coming {number}", each).state, share / 2)
                assert admits(after, asked), asked
    assert told


def test_an_app_wider_than_a_numa_node_finds_the_rest_wherever_its_init_container_goes() -> None:
    """NUMA nodes 0 and 1 have 1 CPU left, 2 and 3 all 4."""
    state = used(KubeletState.empty(restricted("4x1x4x1")), 2, 3)
    asked = pod(init(1), app(5))
    assert has_room_whoever_leaves(asked, Hypothesis(state))
    assert finds_cpus(asked, Hypothesis(state))
    assert admits(state, asked)
    assert not finds_cpus(pod(init(1), app(6)), Hypothesis(state))
    assert not admits(state, pod(init(1), app(6)))
    # A pod that comes may take of the NUMA node with the rest, but not of both.
    assert not finds_cpus(asked, Hypothesis(state), coming=1)
    assert not finds_cpus(pod(sidecar(1), app(5)), Hypothesis(state))


def test_a_socket_is_as_a_numa_node_where_cpus_are_aligned_by_socket() -> None:
    """3 CPUs are free in one socket, 6 in the other."""
    one = Hypothesis(used(KubeletState.empty(restricted("2x2x3x1", by_socket=True)), 2))
    asked = pod(init(3), app(2))
    assert finds_cpus(asked, one, coming=4)
    assert not finds_cpus(asked, one, coming=5)
    # An init container that is smaller may go to either, where the app must find the rest.
    assert finds_cpus(pod(init(1), app(3)), one)
    assert not finds_cpus(pod(init(1), app(3)), one, coming=1)
    # What needs two NUMA nodes may get them in two sockets.
    assert not finds_cpus(pod(init(1), app(4)), Hypothesis(KubeletState.empty(one.state.node)))


def test_devices_and_other_policies_are_not_told_by_cpus_alone() -> None:
    for policy in KubeletPolicy:
        one = Hypothesis(KubeletState.empty(restricted("4x1x4x1", policy=policy)))
        assert finds_cpus(pod(app(5)), one) is (policy is KubeletPolicy.RESTRICTED)
        assert not finds_cpus(pod(app(5, gpu=1)), one)
