"""Caution about whole cores."""

from random import Random

from koord_numa.core.cpus.kubelet_options import CoreEvidence, FreeCpus, WholeCores, core_rule, surely_whole
from koord_numa.core.objects.node import KubeletConfig, Zone
from tests.machines import machine
from tests.tables import each_row

UNKNOWN = KubeletConfig()
ON = KubeletConfig(cpu_policy="static", cpu_options={"full-pcpus-only": True})
OFF = KubeletConfig(cpu_policy="static", cpu_options={"full-pcpus-only": False})


def zone(numa: int, total: int, usable: int, free: int) -> Zone:
    """CPUs of one NUMA node."""
    return Zone(numa, *({"cpu": count * 1000} for count in (total, usable, free)))


TWO = [zone(0, 8, 7, 6), zone(1, 8, 8, 4)]
CASES: dict[str, tuple[KubeletConfig, list[Zone], str, list[int], tuple[int, int | None]]] = {
    "published as off": (OFF, TWO, "amd64", [], (1, None)),
    "published as on": (ON, TWO, "amd64", [], (2, 9)),
    "unknown on a machine with two threads at most": (UNKNOWN, TWO, "amd64", [], (2, 9)),
    "unknown on any machine": (UNKNOWN, TWO, "", [], (8, 4)),  # seven may share a core with the reserved one, of six
    "a pod with four CPUs runs": (UNKNOWN, TWO, "", [4], (4, 7)),
    "a pod with three CPUs runs": (UNKNOWN, TWO, "", [4, 3], (1, 10)),
    "the machine does not divide": (UNKNOWN, [zone(0, 6, 6, 6)], "", [], (2, 6)),
    "an odd machine": (UNKNOWN, [zone(0, 7, 7, 7)], "amd64", [], (1, 7)),
}


@each_row(("config", "zones", "architecture", "seen", "rule"), CASES.values(), ids=CASES)
def test_rules(
    config: KubeletConfig, zones: list[Zone], architecture: str, seen: list[int], rule: tuple[int, int | None]
) -> None:
    made = surely_whole(core_rule(config, zones, architecture, CoreEvidence(seen)), [FreeCpus.of(zones)])
    assert (made.threads, made.free) == rule


@each_row(
    ("states", "free"),
    [
        ([FreeCpus((0, 9)), FreeCpus((8, 1))], 7 + 1),
        ([FreeCpus((0, 8))], 8),  # no CPU is free beside the reserved one
        ([FreeCpus((0, 8), located=False)], 7),
        ([FreeCpus((0, 0), located=False)], 0),
    ],
)
def test_the_state_with_the_fewest_free_whole_cores_decides(states: list[FreeCpus], free: int) -> None:
    assert surely_whole(core_rule(ON, TWO, "amd64", CoreEvidence()), states).free == free


@each_row("seed", range(200), every=4)
def test_so_many_cpus_are_free_on_whole_cores_on_any_machine(seed: int) -> None:
    """Reserved CPUs anywhere, any CPUs in use."""
    dice = Random(seed)
    some = machine(dice.choice(("2x1x4x2", "1x2x3x4", "2x2x4x1", "2x1x2x8")))
    reserved = sum(1 << cpu.id for cpu in some.cpus if dice.random() < 0.15)
    free = sum(1 << cpu.id for cpu in some.cpus if dice.random() < dice.choice((0.2, 0.6, 1.0))) & ~reserved
    zones = [
        zone(numa, bits.bit_count(), (bits & ~reserved).bit_count(), (bits & free).bit_count())
        for numa, bits in some.numa_bits.items()
    ]
    spoiled = sum(core.bits for core in some.cores if core.bits & reserved)
    surely = surely_whole(core_rule(ON, zones, "", CoreEvidence([some.threads_per_core])), [FreeCpus.of(zones)]).free
    assert surely is not None
    assert surely <= (free & ~spoiled).bit_count()


def test_the_assumption_is_said() -> None:
    assert surely_whole(core_rule(UNKNOWN, TWO, "amd64", CoreEvidence()), [FreeCpus.of(TWO)]) == WholeCores(
        2, 9, "CPU manager options are not published: CPUs are taken to be whole cores of 2 threads", "full-pcpus-only"
    )
