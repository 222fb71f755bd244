"""Pick logical CPUs by Koordinator's orchestration policies."""

from koord_numa.core.cpus.bind_policies import CpuPick, CpuPolicies, Downgrade, pick_cpus, shaped
from koord_numa.core.cpus.cpu_request import (
    UNOCCUPIED,
    CpuOccupancy,
    CpuRequest,
    NotEnoughCpus,
    layout_of,
)
from koord_numa.core.cpus.take import take_cpus

__all__ = [
    "UNOCCUPIED",
    "CpuOccupancy",
    "CpuPick",
    "CpuPolicies",
    "CpuRequest",
    "Downgrade",
    "NotEnoughCpus",
    "layout_of",
    "pick_cpus",
    "shaped",
    "take_cpus",
]
