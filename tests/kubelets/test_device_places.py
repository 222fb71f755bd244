"""A pod is asked at one NUMA node after the other; all ways in which devices may be shared, asked one by one, answer the same."""

from collections.abc import Iterator
from itertools import product
from random import Random
from typing import Any

import pytest

from koord_numa.core.kubelet.admit import DryRunAdmitted, dry_run
from koord_numa.core.kubelet.demand import pod_demand
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis
from koord_numa.core.kubelet.sharing.bounds import Bounds
from koord_numa.core.kubelet.sharing.choices import shared_in_all_ways, wanted
from koord_numa.core.kubelet.sharing.layouts import wide
from koord_numa.core.kubelet.sharing.places import MOST_STEPS, Unit, reached
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.wire import parse_pod
from tests.kubelets.shared_devices import SharedLife
from tests.kubelets.strategies import GPU, container
from tests.kubelets.test_shared_devices import life_of

PLENTY = 100_000

ASKED: tuple[dict[str, Any], ...] = (
    {"containers": [container("app", 1, 1, 1)]},
    {"containers": [container("app", 3, 1, 1)]},
    {"containers": [container("app", 1, 1, 2)]},
    {"containers": [container("app", 1, 1, 1), container("more", 3, 1)]},
    {"containers": [container("more", 2, 1), container("app", 1, 1, 1)]},
    {"initContainers": [container("init", 2, 1)], "containers": [container("app", 3, 1, 1)]},
)


def one_by_one(one: Hypothesis, request: PodRequest) -> Iterator[Hypothesis]:
    """Every way to choose how many devices in use are near each NUMA node."""
    names = wanted(one, pod_demand(request))
    ways = [Bounds.of(one, name).ways(PLENTY) or () for name in names]
    for chosen in product(*ways):
        state = one
        for name, way in zip(names, chosen, strict=True):
            state = wide(state, name, way)
        yield state


def admitted(states: Iterator[Hypothesis], request: PodRequest) -> bool:
    return all(isinstance(dry_run(state.state, request, state.trust), DryRunAdmitted) for state in states)


def in_use(seed: int) -> SharedLife:
    """A node of up to five NUMA nodes with pods whose devices no topology has shown."""
    dice = Random(seed)
    numa = dice.choice((3, 4, 5))
    wiring = [dice.randint(1, (1 << numa) - 1) for _ in range(dice.randint(3, 5))]
    policy = dice.choice((KubeletPolicy.SINGLE_NUMA_NODE, KubeletPolicy.RESTRICTED))
    life = life_of(wiring, policy, in_full=dice.random() < 0.5, numa=numa)
    for _ in range(dice.randint(1, 3)):
        life.place({"containers": [container("app", dice.randint(1, 3), 1, dice.choice((1, 1, 2)))]})
    return life


def hypotheses(life: SharedLife) -> tuple[Hypothesis, ...]:
    """The states that the kubelet may be in."""
    seen = life.seen()
    assert seen is not None
    assert isinstance(seen.offer, KubeletView)
    return seen.offer.hypotheses


@pytest.mark.parametrize("seeds", [range(20), range(20, 40)])
def test_asking_at_one_place_after_the_other_answers_like_asking_in_every_way(seeds: range) -> None:
    said = {True: 0, False: 0}
    for seed in seeds:
        life = in_use(seed)
        for one in hypotheses(life):
            for spec in ASKED:
                request = parse_pod(life.pod("question", spec)).request
                if not wanted(one, pod_demand(request)):
                    continue
                answer = admitted(shared_in_all_ways(one, pod_demand(request)), request)
                assert answer == admitted(one_by_one(one, request), request), f"{seed}: {life.wiring} {spec}"
                said[answer] += 1
    assert min(said.values()) > 10, said


def test_a_pod_is_asked_in_few_steps() -> None:
    life = life_of(
        [1 << numa | 1 << (numa + 1) % 8 for numa in range(8)], KubeletPolicy.SINGLE_NUMA_NODE, in_full=False, numa=8
    )
    for _ in range(4):
        life.place(ASKED[0])
    ways = 0
    for one in hypotheses(life):
        found = reached(one, pod_demand(parse_pod(life.pod("question", ASKED[0])).request), {GPU: Unit(1)})
        assert found is not None
        assert len(found) <= 8 < MOST_STEPS
        ways = max(ways, len(Bounds.of(one, GPU).ways(PLENTY) or ()))
    assert ways > MOST_STEPS
