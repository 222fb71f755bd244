"""Of devices near one NUMA node each strict policies let a pod tell only numbers apart, also where their order is not by NUMA node."""

from random import Random

from koord_numa.core.kubelet.admit import DryRunAdmitted, Trust, dry_run
from koord_numa.core.kubelet.bounds import STRICT, Sight
from koord_numa.core.kubelet.cpu_manager import CpuReuse
from koord_numa.core.kubelet.state import KubeletNode, KubeletState
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import app, gpus, init, node, pod, sidecar
from tests.tables import each_row


def _drawn(dice: Random) -> PodRequest:
    containers = [app(dice.randint(1, 3), gpu=dice.randint(1, 4))]
    for number in range(dice.randint(0, 2)):
        kind = dice.choice((init, sidecar))
        containers.insert(0, kind(dice.choice((0.5, 1, 2)), f"{kind.__name__}{number}", gpu=dice.randint(0, 3)))
    return pod(*containers)


def _decided(on: KubeletNode, taken: int, cpus: int, request: PodRequest) -> object:
    """Return the verdict and, per container, its hint and its holdings near each NUMA node."""
    state = KubeletState.empty(on)
    state = replace(state, managers=replace(state.managers, cpus=cpus, devices={"vendor.com/gpu": taken}))
    answer = dry_run(state, request, Trust.EXACT, CpuReuse.BY_ID)
    if not isinstance(answer, DryRunAdmitted):
        return None
    pool = on.devices["vendor.com/gpu"]
    return [
        (
            one.hint and one.hint.mask,
            len(one.cpus),
            sorted(pool.devices[pool.places[name]].near for ids in one.devices.values() for name in ids),
        )
        for one in answer.grant.containers
    ]


@each_row("policy", STRICT)
@each_row("scope", list(KubeletScope))
@each_row("seed", range(6), every=2)
def test_what_looks_alike_is_treated_alike(seed: int, scope: KubeletScope, policy: KubeletPolicy) -> None:
    dice = Random(seed)
    compared = refused = 0
    for _ in range(12):
        # The plugin's order, mixed; some devices may be near no NUMA node.
        near = [dice.choice((1, 2, 4, 1, 2, 4, None if dice.random() < 0.2 else 1)) for _ in range(dice.randint(3, 7))]
        on = node("3x1x4x1", policy, scope, devices={"vendor.com/gpu": gpus(*near)})
        on = replace(on, ids_are_real=False)
        request, cpus = _drawn(dice), on.machine.bits & dice.getrandbits(12)
        sight = Sight(request, on)
        known: dict[object, object] = {}
        for taken in range(1 << len(near)):
            state = KubeletState.empty(on)
            state = replace(state, managers=replace(state.managers, cpus=cpus, devices={"vendor.com/gpu": taken}))
            seen, decided = sight.of(state), _decided(on, taken, cpus, request)
            compared += seen in known
            refused += decided is None
            assert known.setdefault(seen, decided) == decided
    assert compared
    assert refused
