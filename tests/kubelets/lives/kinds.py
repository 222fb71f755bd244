"""Kinds of drawn lives: the seed decides everything that a caller leaves open."""

from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final

from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from tests.kubelets.exporters.exported_life import Exporter

CPU_OPTIONS: Final = (
    "full-pcpus-only",
    "distribute-cpus-across-numa",
    "align-by-socket",
    "prefer-align-cpus-by-uncorecache",
    "strict-cpu-reservation",
    "distribute-cpus-across-cores",
)

EXPORTERS: Final = {
    "rte": Exporter.RTE,
    "rte-exclusive": Exporter.RTE_EXCLUSIVE,
    "nfd": Exporter.NFD,
    "nfd-without-fingerprint": Exporter.NFD_BARE,
}

LONGEST: Final = 120
"""Actions of a life, where no length is asked for."""


class Share(Enum):
    """In how many of the lives something happens."""

    NEVER = "never"
    SOMETIMES = "sometimes"
    ALWAYS = "always"

    def drawn(self, random: Random, often: float = 0.25) -> bool:
        """Return true if the option is on in this life. Every seed draws the same numbers, whatever the answer."""
        chance = random.random() < often
        return chance if self is Share.SOMETIMES else self is Share.ALWAYS


@dataclass(frozen=True, slots=True)
class Kinds:
    """
    From what a life is drawn. ``options`` are the CPU manager's, each on or off; one that ``demanded`` names is on
    where a kubelet would start with it. ``published``: are the options? ``numa`` and ``length`` are those of every life, 0
    leaves them open.
    """

    policies: tuple[KubeletPolicy, ...] = tuple(KubeletPolicy)
    scopes: tuple[KubeletScope, ...] = tuple(KubeletScope)
    exporters: tuple[Exporter, ...] = tuple(Exporter)
    options: tuple[str, ...] = CPU_OPTIONS
    demanded: tuple[str, ...] = ()
    published: Share = Share.SOMETIMES
    restarts: Share = Share.SOMETIMES
    foreign_refusals: Share = Share.SOMETIMES
    shared_devices: Share = Share.SOMETIMES
    numa: int = 0
    length: int = 0
