"""
kube-scheduler's own workloads through the whole operator: pods a second from first to last bind, CPU a pod, and memory.

The embedded API server stands in for a real one, and Kopf watches waiting pods, as by default. ``KOORD_NUMA_BENCH_NODES`` measures at
another number of nodes than 1,000; at 5,000 the targets are the thresholds of kube-scheduler's own continuous integration.
"""

import os
from collections.abc import Iterator
from typing import Final

from bench._cluster import ClusterProcess, SchedulerProcess, cluster, scheduler
from bench._shapes import WORKLOADS, Workload
from bench.figure import Figure

NODES: Final = int(os.environ.get("KOORD_NUMA_BENCH_NODES", "0"))
LARGE: Final = 5_000


def figures() -> Iterator[Figure]:
    """Every workload on a cluster of its own."""
    for workload in WORKLOADS:
        with cluster() as world, scheduler(world) as process:
            yield from _measured(workload, world, process)


def _measured(workload: Workload, world: ClusterProcess, process: SchedulerProcess) -> Iterator[Figure]:
    nodes = NODES or workload.nodes
    world.ask("workload_nodes", workload.name, nodes)
    world.ask("workload_before", workload.name)
    before = process.settled()
    first, last, pods = world.ask("workload_measured", workload.name)
    used = process.settled() - before
    rate, cpu = pods / (last - first), used / pods * 1000
    large = nodes >= LARGE
    needed = workload.floor if large else workload.rate * workload.faster
    theirs = (
        f"kube-scheduler {workload.rate:.0f}/s, {workload.cpu:.1f} ms" if workload.rate else "no figure to compare with"
    )
    note = f"{pods:,} pods on {nodes:,} nodes; " + ("its own threshold" if large else theirs)
    yield Figure(f"workloads {workload.name} rate", rate, "1/s", needed, "higher", note)
    if workload.cpu and not large:
        yield Figure(
            f"workloads {workload.name} cpu",
            cpu,
            "ms",
            workload.cpu * workload.cheaper,
            note="a pod, of the scheduler's process",
        )
    yield Figure(f"workloads {workload.name} memory", process.memory, "MB", 900, note=f"{cpu:.2f} ms of CPU a pod")
