"""From which NUMA nodes of a socket CPUs come, as numbers of free CPUs tell it, against the kubelet's own choice."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from koord_numa.core.kubelet.inference.config_variants import config_variants
from koord_numa.core.kubelet.inference.hypothesis import cpus_by_numa
from koord_numa.core.kubelet.inference.node_config import NodeConfig, first_cpus
from koord_numa.core.kubelet.managers.admit import DryRunAdmitted, dry_run
from koord_numa.core.kubelet.managers.cpus import CpuReuse
from koord_numa.core.kubelet.managers.kubelet_node import KubeletNode
from koord_numa.core.kubelet.managers.manager_state import KubeletState
from koord_numa.core.kubelet.sharing.socket_cpus import located
from koord_numa.core.objects.node import NodeResourceTopology, Zone
from koord_numa.core.objects.vocabulary import CpuOwner, KubeletPolicy, KubeletScope
from tests.core.kubelet.managers.test_init_cpus import used
from tests.core.kubelet.nodes import app, init, node, pod, sidecar

SHAPES = ("1x4x4x2", "2x2x4x2", "2x4x3x2", "1x4x6x1", "2x2x3x1", "1x2x8x2")
OPTIONS = (("align-by-socket",), ("align-by-socket", "full-pcpus-only"), ("align-by-socket", "strict-cpu-reservation"))
RESERVED = ("", "0", "0-1", "0,8", "3,5")

SEEDS = 600


def twin(some: KubeletNode, state: KubeletState) -> KubeletState:
    """The state as one that knows sockets, options and how many CPUs are free on each NUMA node."""
    numas = some.machine.numa_bits
    socket_of = {
        numa: next(n for n, all_ in some.machine.socket_bits.items() if bits & all_) for numa, bits in numas.items()
    }
    zones = tuple(
        Zone(numa, *({"cpu": 1000 * (cpus & bits).bit_count()} for cpus in (bits, bits & ~some.reserved, bits)))
        for numa, bits in numas.items()
    )
    distances = {(a, b): 10 if a == b else 11 if socket_of[a] == socket_of[b] else 20 for a in numas for b in numas}
    topology = NodeResourceTopology("n", CpuOwner.KUBELET, zones=zones, kubelet=some.config, distances=distances)
    frame = NodeConfig.of(topology, some.allocatable, "amd64")
    lowest = {numa: min(n for n in numas if socket_of[n] == socket_of[numa]) for numa in numas}
    made_up = next(
        each for each, _ in config_variants(frame) if {cpu.numa: cpu.socket for cpu in each.machine.cpus} == lowest
    )
    free = [(numa, {"cpu": 1000 * (bits & state.managers.cpus).bit_count()}) for numa, bits in numas.items()]
    empty = KubeletState.empty(made_up)
    return replace(empty, managers=replace(empty.managers, cpus=first_cpus(made_up.machine, free)))


def compared(dice: Random) -> Counter[str]:
    """How many containers of one pod on one node are certain and right, certain and wrong, or open."""
    options = dice.choice(OPTIONS)
    some = node(
        dice.choice(SHAPES),
        KubeletPolicy.RESTRICTED,
        dice.choice(tuple(KubeletScope)),
        options=options,
        reserved=dice.choice(RESERVED),
    )
    state = used(some, dice)
    step = dice.choice((1, 2))
    kinds = dice.choice(((app,), (app, app), (sidecar, app), (init, app), (init, init, app), (init, app, app)))
    asked = pod(*(kind(step * dice.randint(1, 4)) for kind in kinds))
    real, seen = dry_run(state, asked), twin(some, state)
    found: Counter[str] = Counter()
    for order in (CpuReuse.LEAST, CpuReuse.MOST):
        foreseen = dry_run(seen, asked, reuse=order)
        if not isinstance(real, DryRunAdmitted) or not isinstance(foreseen, DryRunAdmitted):
            continue
        grant = located(foreseen.grant, seen.managers.cpus, seen.node)
        for mine, theirs in zip(grant.containers, real.grant.containers, strict=True):
            same = cpus_by_numa(mine.cpus.bits, seen.node) == cpus_by_numa(theirs.cpus.bits, some)
            found["open" if not mine.certain else "right" if same else "wrong"] += 1
    return found


@pytest.mark.parametrize("seed", range(0, SEEDS, 50))
def test_what_numbers_tell_is_what_the_kubelet_does(seed: int) -> None:
    found: Counter[str] = Counter()
    for number in range(seed, seed + 50):
        one = compared(Random(number))
        assert not one["wrong"], number
        found += one
    assert found["right"]
    assert found["open"]
