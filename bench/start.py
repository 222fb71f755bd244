"""How long a scheduler that starts in a full cluster takes until everything is known and it may decide."""

from collections.abc import Iterator
from typing import Final

from bench._cluster import SchedulerProcess, cluster
from bench.figure import Figure

NODES: Final = 1_000
PODS: Final = 10_000


def figures() -> Iterator[Figure]:
    """The time from the start of the process to ``/readyz``."""
    with cluster() as world:
        world.ask("nodes", NODES)
        world.ask("placed", PODS)
        process = SchedulerProcess(world, "bench")
        try:
            seconds, cpu = process.until_ready(), process.cpu
        finally:
            process.end()
        note = f"{PODS:,} pods, {NODES:,} nodes with topologies; {cpu:.1f} s of CPU"
        yield Figure("start ready", seconds, "s", 15, note=note)
