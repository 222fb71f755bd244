"""CPUs of init containers that a container gets again on an empty NUMA node, compared with the kubelet's assignment."""

from random import Random
from typing import Final

import pytest

from koord_numa.core.cpu_topology import CpuTopology, cpu_topology_of
from koord_numa.core.cpus.kubelet_assignment import assign
from koord_numa.core.cpus.kubelet_options import StaticOptions
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.admit import DryRunAdmitted, Trust, dry_run
from koord_numa.core.kubelet.cpu_manager import MAX_CPUS, CpuReuse, reuse_on_empty_numa
from koord_numa.core.kubelet.state import KubeletState
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import app, init, node, pod, sidecar
from tests.core.kubelet.test_same_pool import held
from tests.tables import each_row

OPTIONS: Final = (
    StaticOptions(),
    StaticOptions(full_pcpus_only=True),
    StaticOptions(distribute_across_numa=True),
    StaticOptions(distribute_across_cores=True),
    StaticOptions(prefer_align_uncore=True),
    StaticOptions(prefer_align_uncore=True, full_pcpus_only=True),
)


def machine(dice: Random) -> tuple[CpuTopology, int]:
    """Two equal NUMA nodes, with the size of one: siblings are neighbours or far apart, caches of one size but perhaps for the last."""
    threads, cores = dice.choice((1, 2, 4)), dice.randint(1, 14)
    size, share = cores * threads, dice.randint(1, cores)
    apart = dice.random() < 0.5
    rows = []
    for cpu in range(2 * size):
        core = cpu % (2 * cores) if apart else cpu // threads
        numa = core // cores
        rows.append((cpu, core, numa, numa, 100 * numa + core % cores // share))
    return cpu_topology_of(rows), size


@each_row("seed", range(400), every=5)
def test_bounds_hold_under_all_options(seed: int) -> None:
    dice = Random(seed)
    some, size = machine(dice)
    numa = dice.choice((0, 1))
    pool, options = CpuSet(some.numa_bits[numa]), dice.choice(OPTIONS)
    counts = [dice.randint(1, size) for _ in range(dice.randint(2, 4))]
    reusable = 0
    for at, count in enumerate(counts):
        chosen = assign(some, pool, count, options)
        assert isinstance(chosen, CpuSet)
        if at:
            bounds = reuse_on_empty_numa(size, tuple(counts[:at]), count)
            assert bounds is not None
            assert bounds[0] <= (chosen.bits & reusable).bit_count() <= bounds[1], counts
        reusable |= chosen.bits


@each_row(
    ("inits", "needed", "again"),
    [
        ((3,), 6, (3, 3)),
        ((8,), 2, (2, 2)),
        ((8, 2), 4, (4, 4)),
        ((6,), 4, (3, 4)),  # the larger one takes a cache of 5 CPUs, the smaller one that of 4
        ((1,), 2, (0, 1)),  # the smallest cache has one core, of which the other takes none
    ],
)
def test_most_is_got_again_whatever_the_options(inits: tuple[int, ...], needed: int, again: tuple[int, int]) -> None:
    assert reuse_on_empty_numa(12, inits, needed) == again


def test_nothing_is_said_of_very_large_numa_nodes() -> None:
    assert reuse_on_empty_numa(2 * MAX_CPUS, (2,), 4) is None


@pytest.mark.parametrize("order", [CpuReuse.LEAST, CpuReuse.MOST])
def test_of_an_empty_numa_node_nothing_is_feared_to_stay_held(order: CpuReuse) -> None:
    """Exceptions are a CPU in use, a reserved CPU, and a CPU kept by a sidecar: its reuse is unknown without the options."""
    some = replace(node("2x1x12x1", KubeletPolicy.SINGLE_NUMA_NODE), ids_are_real=False)
    here = some.machine.numa_bits[0]
    beside = {
        "free": _beside(held(some, here, pod(init(3), app(6)), order)),
        "in use": _beside(held(some, here & ~1, pod(init(3), app(6)), order)),
        "a sidecar": _beside(held(some, here, pod(init(3), sidecar(1), app(6)), order)),
    }
    assert beside["free"] == 0
    if order is CpuReuse.LEAST:
        assert beside["in use"] == 3
        assert beside["a sidecar"] > 0


def test_the_worst_case_of_a_used_numa_node_is_assumed() -> None:
    """A bound of what is free is not what was free when the pod came."""
    some = replace(node("2x1x12x1", KubeletPolicy.SINGLE_NUMA_NODE), ids_are_real=False)
    left = {}
    for trust in Trust:
        answer = dry_run(KubeletState.empty(some), pod(init(3), app(6)), trust, CpuReuse.LEAST)
        assert isinstance(answer, DryRunAdmitted)
        left[trust] = answer.managers.cpus.bit_count()
    assert left == {Trust.EXACT: 18, Trust.INFERRED: 15}


def _beside(taken: dict[ContainerKind, int] | None) -> int:
    """Count the CPUs of init containers that other containers do not hold."""
    assert taken is not None
    return (taken[ContainerKind.INIT] & ~taken[ContainerKind.APP] & ~taken[ContainerKind.SIDECAR]).bit_count()
