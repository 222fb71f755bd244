"""Time without a scheduling replica after the leader is killed, and after it is stopped. A warm standby runs in both cases."""

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

from bench.cluster._processes import ClusterProcess, cluster, scheduler
from bench.figure import Figure
from koord_numa.settings import LeaseSettings

NODES: Final = 100
LEASE: Final = LeaseSettings()


def figures() -> Iterator[Figure]:
    """From the signal to the first bind of the next leader, with the times of a default configuration."""
    killed = _gap(signal.SIGKILL)
    # After a kill the lease must run out first; one second beyond it for the election and the first bind.
    limit = LEASE.duration + 1
    yield Figure("failover killed", killed, "s", limit, note=f"the lease lasts {LEASE.duration:.0f} s")
    yield Figure("failover stopped", _gap(signal.SIGTERM), "s", 1)


def _gap(number: signal.Signals) -> float:
    with ExitStack() as stack:
        world = stack.enter_context(cluster())
        world.ask("nodes", NODES)
        leader = stack.enter_context(scheduler(world, "leader"))
        # The first one must hold it before a second one is there to compete.
        _until_held(world)
        stack.enter_context(scheduler(world, "standby"))
        world.ask("create", 20)
        world.ask("all_bound")
        gone = leader.signal(number)
        world.ask("create", 20)
        first: float = world.ask("first_bound_after", gone)
        return first - gone


def _until_held(world: ClusterProcess) -> None:
    while world.ask("holder") != "leader":
        time.sleep(0.05)
