"""
From created to bound, through the embedded API server, as processes: pods a second, CPU per pod, and latency under steady arrivals.

The CPU figure counts everything that the scheduler's process does for a pod: both watches, the decision, the bind, the event.
"""

from collections.abc import Iterator
from statistics import quantiles
from typing import Final

from bench.cluster._processes import cluster, scheduler
from bench.figure import Figure

NODES: Final = 1_000
BACKLOG: Final = 10_000
ARRIVALS: Final = 6_000
RATE: Final = 300.0


def figures() -> Iterator[Figure]:
    """A backlog that a new leader finds, then arrivals on top of it."""
    with cluster() as world:
        world.ask("nodes", NODES)
        # The lease is held elsewhere while pods are created, so that the scheduler finds all of them at once, and warm.
        world.ask("reign")
        with scheduler(world) as process:
            before = process.settled()
            world.ask("create", BACKLOG)
            free = world.ask("abdicate")
            first, last = world.ask("all_bound")
            # Events are written after the binds and belong to the cost of a pod.
            world.ask("all_told")
            used = process.settled() - before
            yield Figure(
                "end-to-end rate",
                BACKLOG / (last - first),
                "1/s",
                1_000,
                "higher",
                f"{BACKLOG:,} pods on {NODES:,} nodes; first bind {first - free:.1f} s after the lease was free",
            )
            yield Figure("end-to-end cpu", used / BACKLOG * 1000, "ms", 1.25, note="of the scheduler's process, a pod")
            waits = sorted(world.ask("stream", ARRIVALS, RATE))
            cuts = quantiles(waits, n=100)
            yield Figure(
                "end-to-end p99",
                cuts[98] * 1000,
                "ms",
                150,
                note=f"at {RATE:.0f} arrivals/s; median {cuts[49] * 1000:.1f} ms, longest {waits[-1] * 1000:.0f} ms",
            )
