"""From which NUMA nodes of a socket CPUs may come, as counts of free CPUs tell it, against the kubelet's own choice."""

from collections import Counter
from collections.abc import Mapping
from random import Random

from koord_numa.core.kubelet.admit import DryRunAdmitted, dry_run
from koord_numa.core.kubelet.cpu_manager import CpuReuse
from koord_numa.core.kubelet.demand import pod_demand
from koord_numa.core.kubelet.hypothesis import cpus_by_numa
from koord_numa.core.kubelet.node_config import NodeConfig, Room, config_variants, first_cpus, located
from koord_numa.core.kubelet.state import Grant, KubeletNode, KubeletState
from koord_numa.core.objects.node import NodeResourceTopology, Zone
from koord_numa.core.objects.vocabulary import CpuOwner, KubeletPolicy, KubeletScope
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import app, init, node, pod, sidecar
from tests.core.kubelet.test_init_cpus import used
from tests.tables import each_row

SHAPES = ("1x4x4x2", "2x2x4x2", "2x4x3x2", "1x4x6x1", "2x2x3x1", "1x2x8x2", "1x3x2x4")
OPTIONS = (("align-by-socket",), ("align-by-socket", "full-pcpus-only"), ("align-by-socket", "strict-cpu-reservation"))
RESERVED = ("", "0", "0-1", "0,8", "3,5")
SEEDS = 600


def twin(some: KubeletNode, counts: Mapping[int, int], architecture: str) -> KubeletState:
    """The node as one that knows sockets, options and how many CPUs each NUMA node has, with so many free."""
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
    frame = NodeConfig.of(topology, some.allocatable, architecture)
    lowest = {numa: min(n for n in numas if socket_of[n] == socket_of[numa]) for numa in numas}
    made_up = next(
        each for each, _ in config_variants(frame) if {cpu.numa: cpu.socket for cpu in each.machine.cpus} == lowest
    )
    free = [(numa, {"cpu": 1000 * count}) for numa, count in counts.items()]
    empty = KubeletState.empty(made_up)
    return replace(empty, managers=replace(empty.managers, cpus=first_cpus(made_up.machine, free)))


def rooms_of(state: KubeletState, dice: Random) -> dict[int, Room]:
    """Return the free CPUs on each NUMA node, some of which are known only between bounds."""
    unknown = dice.choice((0, 0, 1, 3))
    found = {}
    for numa, bits in state.node.machine.numa_bits.items():
        free, most = (state.managers.cpus & bits).bit_count(), (bits & ~state.node.reserved).bit_count()
        found[numa] = Room(max(0, free - dice.randint(0, unknown)), min(most, free + dice.randint(0, unknown)))
    return found


def compared(dice: Random) -> Counter[str]:
    """Count the containers of a pod that are narrowed to some NUMA nodes rightly, wrongly, and not at all."""
    options, scope = dice.choice(OPTIONS), dice.choice(tuple(KubeletScope))
    shape = dice.choice(SHAPES)
    some = node(shape, KubeletPolicy.RESTRICTED, scope, options=options, reserved=dice.choice(RESERVED))
    state = used(some, dice)
    step = dice.choice((1, 2, 4))
    kinds = dice.choice(((app,), (app, app), (sidecar, app), (init, app), (init, init, app), (init, app, app)))
    asked = pod(*(kind(step * dice.randint(1, 4)) for kind in kinds))
    real, rooms = dry_run(state, asked), rooms_of(state, dice)
    believed = {numa: dice.randint(room.least, room.most) for numa, room in rooms.items()}
    seen = twin(some, believed, "" if shape.endswith("x4") else dice.choice(("", "amd64")))
    found: Counter[str] = Counter()
    for order in (CpuReuse.LEAST, CpuReuse.MOST):
        foreseen = dry_run(seen, asked, reuse=order)
        if isinstance(real, DryRunAdmitted) and isinstance(foreseen, DryRunAdmitted):
            found += _matched(located(foreseen.grant, pod_demand(asked), rooms, seen.node), real.grant, some)
    return found


def _matched(mine: Grant, theirs: Grant, some: KubeletNode) -> Counter[str]:
    found: Counter[str] = Counter()
    every = sum(1 << numa for numa in some.machine.numa_ids)
    for one, other in zip(mine.containers, theirs.containers, strict=True):
        counts = cpus_by_numa(other.cpus.bits, some)
        held = sum(1 << numa for numa, count in zip(some.machine.numa_ids, counts, strict=True) if count)
        known = one.numas or every
        found["wrong" if held & ~known else "open" if known == every else "narrowed"] += 1
    return found


@each_row("seed", range(0, SEEDS, 50), every=3)
def test_a_container_has_no_cpus_of_a_numa_node_that_is_left_out(seed: int) -> None:
    found: Counter[str] = Counter()
    for number in range(seed, seed + 50):
        one = compared(Random(number))
        assert not one["wrong"], number
        found += one
    assert found["narrowed"]
