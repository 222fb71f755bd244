"""
How long a scheduler that starts in a cluster of 5,000 nodes and 100,000 pods takes until everything is known, and what it occupies; and
how long until the first bind in a cluster of 1,000 nodes.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bench.cluster._processes import ClusterProcess, SchedulerProcess, cluster
from bench.figure import Figure

NODES: Final = 5_000
PODS: Final = 100_000
SMALLER: Final = 1_000
"""Nodes of the cluster for the first bind."""

STARTS: Final = 5


@contextmanager
def full_cluster() -> Iterator[tuple[ClusterProcess, SchedulerProcess]]:
    """Nodes that publish topologies in the size of real ones, running pods, and a scheduler that has just been started."""
    with cluster() as world:
        world.ask("nodes", NODES, "exporting")
        world.ask("placed", PODS, NODES)
        # Not by `scheduler`, which waits for readiness: that wait is the figure.
        process = SchedulerProcess(world, "bench")
        try:
            yield world, process
        finally:
            process.end()


def first_bind() -> Figure:
    """From the start of the process to the bind of a pod that waits; the best of some starts, because others use the machine too."""
    seconds, cpu = [], []
    for _ in range(STARTS):
        with cluster() as world:
            world.ask("nodes", SMALLER)
            world.ask("create", 1)
            process = SchedulerProcess(world, "bench")
            try:
                seconds.append(world.ask("all_bound")[1] - process.begun)
                cpu.append(process.cpu)
            finally:
                process.end(signal.SIGKILL)
    return Figure(
        "start first bind", min(seconds), "s", 1.5, note=f"{SMALLER:,} nodes; {min(cpu):.1f} s of CPU; best of {STARTS}"
    )


def figures() -> Iterator[Figure]:
    """From the start of the process to ``/readyz``, and its memory when it has settled."""
    yield first_bind()
    with full_cluster() as (_, process):
        seconds, cpu = process.until_ready(), process.cpu
        note = f"{PODS:,} pods, {NODES:,} nodes with topologies; {cpu:.1f} s of CPU"
        yield Figure("start ready", seconds, "s", 10, note=note)
        process.settled()
        yield Figure("start memory", process.memory, "MB", 900, note="resident, at rest")
