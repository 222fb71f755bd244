"""The options of the kubelet's static CPU manager policy that change which CPUs it hands out."""

from collections.abc import Mapping
from dataclasses import dataclass

from koord_numa.core.cpu_topology import CpuTopology


@dataclass(frozen=True, slots=True)
class StaticOptions:
    """The kubelet's ``cpuManagerPolicyOptions`` by what they do; all off is its default."""

    full_pcpus_only: bool = False
    distribute_across_numa: bool = False
    distribute_across_cores: bool = False
    prefer_align_uncore: bool = False
    align_by_socket: bool = False
    strict_reservation: bool = False

    @classmethod
    def of(cls, options: Mapping[str, bool]) -> "StaticOptions":
        """From the kubelet's option names; names it does not know change nothing here."""
        return cls(
            full_pcpus_only=options.get("full-pcpus-only", False),
            distribute_across_numa=options.get("distribute-cpus-across-numa", False),
            distribute_across_cores=options.get("distribute-cpus-across-cores", False),
            prefer_align_uncore=options.get("prefer-align-cpus-by-uncorecache", False),
            align_by_socket=options.get("align-by-socket", False),
            strict_reservation=options.get("strict-cpu-reservation", False),
        )

    def group(self, machine: CpuTopology) -> int:
        """How many CPUs belong together when they are distributed: whole cores under full-pcpus-only, else single CPUs."""
        # Unknown core sizes are reported as 0; a group has at least one CPU.
        return max(1, machine.threads_per_core) if self.full_pcpus_only else 1
