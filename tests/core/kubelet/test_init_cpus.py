"""Bounds on the CPUs of a pod with init containers, compared with the kubelet's own choice."""

from random import Random

from koord_numa.core.kubelet.admit import DryRunAdmitted, admit_pod, dry_run
from koord_numa.core.kubelet.cpu_manager import CpuReuse
from koord_numa.core.kubelet.node_config import NodeConfig, first_cpus
from koord_numa.core.kubelet.state import KubeletNode, KubeletState
from koord_numa.core.objects.node import NodeResourceTopology, Zone
from koord_numa.core.objects.vocabulary import CpuOwner, KubeletPolicy, KubeletScope
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import app, init, node, pod
from tests.tables import each_row

OPTIONS = (
    (),
    ("full-pcpus-only",),
    ("distribute-cpus-across-numa",),
    ("full-pcpus-only", "distribute-cpus-across-numa"),
    ("distribute-cpus-across-cores",),
    ("prefer-align-cpus-by-uncorecache",),
    ("align-by-socket",),
)
SHAPES = ("2x1x8x2", "2x2x4x2", "1x2x8x1", "1x1x8x2", "2x2x2x4")


def used(some: KubeletNode, dice: Random) -> KubeletState:
    """The node after pods of many kinds came and went."""
    state = KubeletState.empty(some)
    for number in range(dice.randint(0, 12)):
        state = admit_pod(state, f"u{number}", pod(init(dice.randint(1, 4)), app(dice.randint(1, 6)))).state
        if state.pods and dice.random() < 0.4:
            state = state.without(dice.choice(sorted(state.pods)))
    return state


def seen_by_a_scheduler(some: KubeletNode, state: KubeletState, architecture: str) -> KubeletState:
    """The state as one that knows the published configuration and how many CPUs are free on each NUMA node."""
    zones = tuple(
        Zone(numa, *({"cpu": 1000 * (cpus & bits).bit_count()} for cpus in (bits, bits & ~some.reserved, bits)))
        for numa, bits in some.machine.numa_bits.items()
    )
    topology = NodeResourceTopology("n", CpuOwner.KUBELET, zones=zones, kubelet=some.config)
    twin = NodeConfig.of(topology, some.allocatable, architecture).node
    free = [
        (numa, {"cpu": 1000 * (bits & state.managers.cpus).bit_count()})
        for numa, bits in some.machine.numa_bits.items()
    ]
    empty = KubeletState.empty(twin)
    return replace(empty, managers=replace(empty.managers, cpus=first_cpus(twin.machine, free)))


def masks_and_free(answer: DryRunAdmitted, some: KubeletNode) -> tuple[list[int | None], list[int]]:
    """The NUMA nodes by which each container got its CPUs, and how many each has free afterwards."""
    masks = [one.hint.mask if one.hint is not None else None for one in answer.grant.containers if one.cpus]
    return masks, [(answer.managers.cpus & bits).bit_count() for bits in some.machine.numa_bits.values()]


@each_row("seed", range(600), every=6)
def test_a_published_configuration_bounds_what_is_held(seed: int) -> None:
    """The kubelet's own choice on any machine, any CPUs in use, lies between both ends that a scheduler asks for."""
    dice = Random(seed)
    options = dice.choice([some for some in OPTIONS if "align-by-socket" not in some])
    some = node(
        dice.choice([shape for shape in SHAPES if not shape.endswith("4")]),
        dice.choice(tuple(KubeletPolicy)),
        dice.choice(tuple(KubeletScope)),
        options=options,
        reserved=dice.choice(("", "0", "0-1", "0,8")),
    )
    state = used(some, dice)
    step = 2 if "full-pcpus-only" in options else 1
    counts = [step * dice.randint(1, 8 // step) for _ in range(4)]
    asks = pod(
        init(counts[0], "a"), *[init(counts[1], "b")] * dice.randint(0, 1), app(counts[2], "c"), app(counts[3], "d")
    )
    real = dry_run(state, asks)
    known = seen_by_a_scheduler(some, state, "amd64")
    least, most = (dry_run(known, asks, reuse=order) for order in (CpuReuse.LEAST, CpuReuse.MOST))
    if not (
        isinstance(real, DryRunAdmitted) and isinstance(least, DryRunAdmitted) and isinstance(most, DryRunAdmitted)
    ):
        return
    (masks, free), (low, fewest), (high, largest) = (
        masks_and_free(answer, where) for answer, where in ((real, some), (least, known.node), (most, known.node))
    )
    if masks == low == high:
        assert sum(fewest) <= sum(free) <= sum(largest)
        if all(mask is not None and mask.bit_count() == 1 for mask in masks):
            assert all(least <= here <= most for least, here, most in zip(fewest, free, largest, strict=True))
