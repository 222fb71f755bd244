"""
Cost of a cluster of 5,000 nodes and 100,000 pods without scheduling, and its effect on the time until a pod is bound.

Every node publishes its topology once a minute, in the size of real ones, and sends a heartbeat of its Node every five minutes; pods
start elsewhere at 100 a second with four updates of their status each. All of it through the whole operator, as its process's CPU time.
"""

from collections.abc import Iterator, Mapping
from statistics import quantiles
from typing import Final

from bench.cluster._processes import ClusterProcess, SchedulerProcess
from bench.cluster.start import NODES, full_cluster
from bench.figure import Figure

SECONDS: Final = 30.0

TOPOLOGIES: Final = {"topologies": NODES / 60}
HEARTBEATS: Final = {"nodes": NODES / 300}
STATUSES: Final = {"pods": 400.0}
EVERYTHING: Final = {**TOPOLOGIES, **HEARTBEATS, **STATUSES}

RATE: Final = 100.0
"""Pods a second, where some come."""
NOTICED: Final = 10.0
"""Milliseconds by which updates may delay a bind: so many a busy machine adds by itself."""


def figures() -> Iterator[Figure]:
    """Topologies alone, statuses alone, all together, then pods beside them."""
    with full_cluster() as (world, process):
        process.until_ready()
        yield from _at_rest(world, process)
        yield _beside_pods(world)


def _at_rest(world: ClusterProcess, process: SchedulerProcess) -> Iterator[Figure]:
    used, counts = _used(world, process, TOPOLOGIES)
    # Divided by what was sent, not by the rate: a busy machine sends less.
    each = used / counts["topologies"] * 1000
    yield Figure("standing-still topology", each, "ms", 0.6, note=f"of CPU an update, {NODES / 60:.0f} a second")
    used, counts = _used(world, process, STATUSES)
    yield Figure(
        "standing-still pod status", used / counts["pods"] * 1000, "ms", 0.2, note="of CPU an update, 400 a second"
    )
    # Together they share wake-ups and writes, so the sum is no third figure.
    used, _ = _used(world, process, EVERYTHING)
    note = f"topologies {NODES / 60:.0f}/s, heartbeats {NODES / 300:.0f}/s, pod statuses 400/s"
    yield Figure("standing-still all", used / SECONDS, "cores", 0.15, note=note)
    yield Figure("standing-still memory", process.memory, "MB", 900, note="resident, afterwards")


def _beside_pods(world: ClusterProcess) -> Figure:
    """The 99th percentile of the times from created to bound, without these updates and then with them."""
    without, beside = (
        quantiles(world.ask("stream_beside", SECONDS, RATE, updates), n=100)[98] * 1000 for updates in ({}, EVERYTHING)
    )
    note = f"at {RATE:.0f} arrivals/s beside all of these; {without:.1f} ms without"
    return Figure("standing-still p99", beside, "ms", without + NOTICED, note=note)


def _used(world: ClusterProcess, process: SchedulerProcess, rates: Mapping[str, float]) -> tuple[float, dict[str, int]]:
    """Seconds of CPU that so many updates of each kind have cost."""
    before = process.settled()
    counts: dict[str, int] = world.ask("background", SECONDS, rates)
    return process.settled() - before, counts
