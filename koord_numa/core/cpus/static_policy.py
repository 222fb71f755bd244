"""Which CPUs the kubelet's static CPU manager hands out of a pool, by its options. Who may get any is not decided here."""

from functools import lru_cache

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpus.cpu_request import NotEnoughCpus
from koord_numa.core.cpus.distributed import take_distributed
from koord_numa.core.cpus.kubelet_packed import take_packed
from koord_numa.core.cpus.static_options import StaticOptions
from koord_numa.core.cpuset import CpuSet


@lru_cache(maxsize=2_048)
def assign(machine: CpuTopology, available: CpuSet, count: int, options: StaticOptions) -> CpuSet | NotEnoughCpus:
    """
    The CPUs that the kubelet takes for a container of ``count`` whole CPUs.

    As ``takeByTopology`` in the kubelet's policy_static.go: distribution over NUMA nodes excludes uncore alignment. Remembered, as replays
    and questions choose from the same CPUs in many states that differ elsewhere.
    """
    if options.distribute_across_numa:
        return take_distributed(machine, available, count, options.group(machine), options)
    return take_packed(machine, available, count, options)
