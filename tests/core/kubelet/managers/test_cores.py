"""How careful to be about whole cores."""

import pytest

from koord_numa.core.kubelet.managers.cores import WholeCores, whole_cores
from koord_numa.core.objects.node import KubeletConfig, Zone

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
    "unknown on any machine": (UNKNOWN, TWO, "", [], (8, 3)),
    "a pod with four CPUs runs": (UNKNOWN, TWO, "", [4], (4, 7)),
    "a pod with three CPUs runs": (UNKNOWN, TWO, "", [4, 3], (1, 10)),
    "the machine does not divide": (UNKNOWN, [zone(0, 6, 6, 6)], "", [], (2, 6)),
    "an odd machine": (UNKNOWN, [zone(0, 7, 7, 7)], "amd64", [], (1, 7)),
}


@pytest.mark.parametrize(("config", "zones", "architecture", "seen", "rule"), CASES.values(), ids=CASES)
def test_rules(
    config: KubeletConfig, zones: list[Zone], architecture: str, seen: list[int], rule: tuple[int, int | None]
) -> None:
    made = whole_cores(config, zones, architecture, seen)
    assert (made.threads, made.free) == rule


def test_the_assumption_is_said() -> None:
    assert whole_cores(UNKNOWN, TWO, "amd64", []) == WholeCores(
        2, 9, "CPU manager options are not published: CPUs are taken to be whole cores of 2 threads", "full-pcpus-only"
    )
