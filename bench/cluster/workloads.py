"""
kube-scheduler's own workloads, and some of ours, through the whole operator: pods a second and CPU a pod from the first to the last bind,
and memory.

The embedded API server stands in for a real one, and Kopf watches waiting pods, as by default. ``KOORD_NUMA_BENCH_NODES`` measures at
another number of nodes than 1,000; at 5,000 every workload has the size, of most of them this one, for which kube-scheduler's own
continuous integration has a threshold, and the rate must also reach that.
``KOORD_NUMA_BENCH_WORKLOAD`` measures those with this in their name.
"""

import os
from collections.abc import Iterator
from typing import Final

from bench.cluster._processes import ClusterProcess, SchedulerProcess, cluster, scheduler
from bench.cluster._shapes import Workload
from bench.cluster._suite import WORKLOADS
from bench.figure import Figure

NODES: Final = int(os.environ.get("KOORD_NUMA_BENCH_NODES", "0"))
CHOSEN: Final = os.environ.get("KOORD_NUMA_BENCH_WORKLOAD", "").lower()
LARGE: Final = 5_000


def figures() -> Iterator[Figure]:
    """Every workload on a cluster of its own."""
    for workload in WORKLOADS:
        if CHOSEN in workload.name.lower():
            # A cluster each: objects of one workload would be weight for the next.
            with cluster() as world, scheduler(world) as process:
                yield from _measured(workload, world, process)


def _measured(workload: Workload, world: ClusterProcess, process: SchedulerProcess) -> Iterator[Figure]:
    nodes = workload.large if NODES == LARGE else NODES or workload.nodes
    large = nodes >= LARGE
    world.ask("workload_nodes", workload.name, nodes)
    world.ask("workload_before", workload.name, nodes)
    process.settled()
    seconds, used, pods = world.ask("workload_measured", workload.name, process.pid)
    rate, cpu = (workload.large_rate, workload.large_cpu) if large else (workload.rate, workload.cpu)
    # Whichever is the more: the suite's own threshold at 5,000 nodes, or its measured rate with our factor.
    needed = max(workload.floor if large else 0.0, rate * workload.faster)
    note = f"{pods:,} pods on {nodes:,} nodes; {_theirs(workload, rate, cpu, large=large)}"
    yield Figure(f"workloads {workload.name} rate", pods / seconds, "1/s", needed, "higher", note)
    most = cpu * workload.cheaper or float("inf")  # # 0: kube-scheduler was not measured, nothing to reach
    yield Figure(
        f"workloads {workload.name} cpu", used / pods * 1000, "ms", most, note="a pod, of the scheduler's process"
    )
    yield Figure(f"workloads {workload.name} memory", process.memory, "MB", 900, note="resident")


def _theirs(workload: Workload, rate: float, cpu: float, *, large: bool) -> str:
    """What the target comes from."""
    parts = [f"kube-scheduler {rate:.0f}/s, {cpu:.1f} ms"] if rate else []
    parts += [f"its own threshold {workload.floor:.0f}/s"] if large and workload.floor else []
    return "; ".join(parts) or "no figure to compare with"
