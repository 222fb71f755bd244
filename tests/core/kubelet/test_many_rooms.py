"""CPUs that are dealt out in more ways than are tried: amounts tell of all of them, against each way."""

from itertools import product
from random import Random

import pytest

from koord_numa.core.kubelet import variants
from koord_numa.core.kubelet.admit import DryRunAdmitted, admit_pod, dry_run
from koord_numa.core.kubelet.cpu_manager import CpuReuse
from koord_numa.core.kubelet.hypothesis import Hypothesis, may_lie_otherwise
from koord_numa.core.kubelet.prediction import would_admit
from koord_numa.core.kubelet.state import KubeletAdmission, KubeletNode, KubeletState
from koord_numa.core.kubelet.variants import spread_rooms
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import GI, app, init, node, pod, sidecar

SHAPES = ("2x1x4x1", "3x1x4x1", "4x1x3x1", "2x2x3x1")
POLICIES = (KubeletPolicy.BEST_EFFORT, KubeletPolicy.RESTRICTED)


def _node(dice: Random, policy: KubeletPolicy, scope: KubeletScope) -> KubeletNode:
    shape = dice.choice(SHAPES)
    sockets, per_socket, *_ = map(int, shape.split("x"))
    memory = {numa: {"memory": dice.randint(3, 9) * GI} for numa in range(sockets * per_socket)}
    options = (dice.choice(("distribute-cpus-across-cores", "prefer-align-cpus-by-uncorecache")),)
    bound = memory if policy is KubeletPolicy.BEST_EFFORT or dice.random() < 0.5 else None
    return replace(node(shape, policy, scope, bound, options=options), ids_are_real=False, is_published=True)


def _some_pod(dice: Random) -> PodRequest:
    kinds = [dice.choice((init, init, sidecar)) for _ in range(dice.choice((0, 0, 0, 1, 2)))]
    parts = [kind(dice.choice((0.5, 1, 2, 3)), f"i{place}", memory=GI) for place, kind in enumerate(kinds)]
    return pod(*parts, app(dice.choice((0.5, 1, 1, 2, 3)), memory=dice.choice((1, 1, 2, 4)) * GI))


def _lived(dice: Random, here: KubeletNode) -> Hypothesis:
    """With a pod or two over several NUMA nodes."""
    state = KubeletState.empty(here)
    for number in range(dice.randint(1, 4)):
        wide = pod(app(dice.randint(4, 6), memory=dice.randint(1, 3) * GI)) if dice.random() < 0.5 else _some_pod(dice)
        state = admit_pod(state, str(number), wide).state
    uids = state.pods.items()
    return Hypothesis(
        state,
        spread=frozenset(uid for uid, it in uids if any(may_lie_otherwise(each, here) for each in it.grant.containers)),
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(40))
def test_a_yes_about_many_rooms_holds_in_each(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = Random(seed)
    policy, scope = POLICIES[seed % 2], dice.choice(list(KubeletScope))
    for _ in range(10):
        one = _lived(dice, _node(dice, policy, scope))
        if not one.spread:
            continue
        ways = [one, *spread_rooms(one, lambda counts: counts)]
        monkeypatch.setattr(variants, "MOST_ROOMS", -1)
        for asked in (_some_pod(dice) for _ in range(6)):
            if not isinstance(would_admit(asked, KubeletView("n", (one,))), KubeletAdmission):
                continue
            tied = any(each.kind is ContainerKind.INIT for each in asked.containers)
            for way, order in product(ways, (CpuReuse.LEAST, CpuReuse.MOST) if tied else (CpuReuse.BY_ID,)):
                assert isinstance(dry_run(way.state, asked, way.trust, order), DryRunAdmitted), asked
        monkeypatch.undo()
