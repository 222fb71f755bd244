"""Resources of pods in flight that do not count: the kubelet counts at most the rest, whichever pods leave at any time."""

from collections.abc import Iterator, Mapping
from itertools import chain, combinations
from random import Random

from koord_numa.core.kubelet.admit import admit_pod
from koord_numa.core.kubelet.belief import Belief, not_counted, refused_ones
from koord_numa.core.kubelet.hypothesis import Hypothesis
from koord_numa.core.kubelet.state import KubeletNode, KubeletState
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import total
from tests.core.kubelet.nodes import GI, app, gpus, init, node, pod, sidecar
from tests.tables import each_row

STRICT = (KubeletPolicy.SINGLE_NUMA_NODE, KubeletPolicy.RESTRICTED)


def _some_node(dice: Random) -> KubeletNode:
    numas = dice.choice((2, 3))
    near = [1 << numa for numa in range(numas) for _ in range(dice.choice((1, 2)))]
    return node(
        f"{numas}x1x{dice.choice((2, 3, 4))}x1",
        dice.choice(STRICT),
        dice.choice([*KubeletScope]),
        memory={numa: {"memory": dice.randint(3, 9) * GI} for numa in range(numas)} if dice.random() < 0.7 else None,
        devices={"vendor.com/gpu": gpus(*near)} if dice.random() < 0.7 else {},
    )


def _some_pod(dice: Random) -> PodRequest:
    parts = []
    for place in range(dice.choice([0, 0, 1, 2])):
        gpu = {"gpu": dice.choice((1, 1, 2))} if dice.random() < 0.3 else {}
        kind, cpus = dice.choice((init, init, sidecar, app)), dice.choice([0.5, 1, 1, 2, 3])
        parts.append(kind(cpus, f"c{place}", memory=dice.choice([1, 1, 2]) * GI, **gpu))
    parts.sort(key=lambda part: part.kind is ContainerKind.APP)
    gpu = {"gpu": dice.choice((1, 2))} if dice.random() < 0.4 else {}
    return pod(*parts, app(dice.choice([0.25, 0.5, 1, 1, 2, 3]), "last", memory=dice.choice([1, 2, 4]) * GI, **gpu))


def _departures(dice: Random, uids: list[str], coming: int) -> Iterator[Mapping[str, int]]:
    """Every set of pods that leaves before the first one comes, and again each pod before any of them."""
    for away in chain.from_iterable(combinations(uids, count) for count in range(len(uids) + 1)):
        yield dict.fromkeys(away, 0)
        yield {uid: dice.randrange(coming) for uid in away}


def _counts(state: KubeletState, coming: Mapping[str, PodRequest], ends: Mapping[str, int]) -> KubeletState:
    """The pods that a kubelet counts after these came, others gone before the one of the index that ``ends`` has."""
    for number, (uid, request) in enumerate(coming.items()):
        for gone in (gone for gone, end in ends.items() if end == number):
            state = state.without(gone)
        state = admit_pod(state, uid, request).state
    return state


@each_row("seed", range(12), every=2)
def test_the_kubelet_counts_no_more_than_pods_in_flight(seed: int) -> None:
    dice, told = Random(seed), 0
    for _ in range(25):
        state = KubeletState.empty(_some_node(dice))
        pods = {f"pod {number}": _some_pod(dice) for number in range(dice.randint(2, 9))}
        for uid, request in pods.items():
            state = admit_pod(state, uid, request).state
        uids = [*state.pods][:6]
        coming = {f"coming {number}": _some_pod(dice) for number in range(dice.choice((1, 1, 2, 3)))}
        belief = Belief([Hypothesis(state)])
        for uid, request in coming.items():
            belief.arrive(uid, request, 0.0)
        there = {uid: request for uid, request in pods.items() if uid in state.pods}
        asked = {uid: effective_requests(request) for uid, request in (there | coming).items()}
        less = not_counted(belief, refused_ones(belief), asked)
        told += len(less)
        for ends in _departures(dice, uids, len(coming)) if less else ():
            counted = total(asked[uid] for uid in _counts(state, coming, ends).pods)
            for name, amount in total(asked.values()).items():
                left_out = sum(asked[uid][name] for uid, names in less.items() if name in names)
                assert counted.get(name, 0) <= amount - left_out, (ends, less)
    assert told


def _full() -> tuple[Belief, dict[str, Mapping[str, int]]]:
    """Two NUMA nodes of two CPUs, in use; a pod with another CPU comes, beside some that have no CPU of their own."""
    state = KubeletState.empty(node("2x1x2x1"))
    pods = {"small": pod(app(0.5)), **{f"pod {number}": pod(app(1)) for number in range(4)}}
    for uid, request in pods.items():
        state = admit_pod(state, uid, request).state
    belief = Belief([Hypothesis(state)])
    pods["coming"] = pod(app(1, memory=2 * GI))
    belief.arrive("coming", pods["coming"], 0.0)
    return belief, {uid: effective_requests(request) for uid, request in pods.items()}


def test_a_pod_that_needs_an_equal_departure_is_not_counted() -> None:
    belief, asked = _full()
    # Each of those that would have to leave has a CPU, and none as much memory.
    assert not_counted(belief, refused_ones(belief), asked) == {"coming": {"cpu"}}


def test_two_pods_that_share_a_departure_are_not_both_counted() -> None:
    belief, asked = _full()
    belief.arrive("again", pod(app(1)), 0.0)
    asked["again"] = {"cpu": 1000, "memory": GI}
    less = not_counted(belief, refused_ones(belief), asked)
    assert [uid for uid, names in less.items() if "cpu" in names] == ["coming"]


def test_a_pod_that_some_state_admits_is_counted() -> None:
    belief, asked = _full()
    state = belief.hypotheses[0].state.without("pod 0")
    belief.arrivals[0].before = [*belief.arrivals[0].before, Hypothesis(state)]
    belief.depart("small", 1.0)
    assert not refused_ones(belief)
    assert not not_counted(belief, refused_ones(belief), asked)
