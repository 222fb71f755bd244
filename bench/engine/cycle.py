"""
The functions and modules that one warm scheduling cycle runs, from the event of the pod to the confirmed bind.

``python -m bench.engine.cycle`` prints them by module, in the order of the calls. Generator expressions and
comprehensions count as part of their function.
"""

import asyncio
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

from bench.engine._answering import AnsweringBinder, scheduler_with
from bench.engine._requests import pod_request
from bench.engine.loop import plain_nodes
from bench.figure import Figure
from koord_numa.core.cpu_topology import regular_topology
from koord_numa.core.objects.node import NodeResourceTopology, Zone
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.objects.vocabulary import CpuOwner
from koord_numa.engine import Scheduler

NODES: Final = 100
WARM_UP: Final = 20
"""Pods of the same class that are placed before."""
PACKAGE: Final = "koord_numa"


def _scheduler_owned(scheduler: Scheduler) -> None:
    plain_nodes(scheduler, NODES)
    machine = regular_topology(2, 1, 16, 2)
    share = {"cpu": 32_000, "memory": 128 << 30}
    for number in range(NODES):
        topology = NodeResourceTopology(
            node=f"node-{number:05}",
            owner=CpuOwner.SCHEDULER,
            zones=tuple(Zone(numa, share, share, share) for numa in machine.numa_ids),
            machine=machine,
            distances=machine.distances,
        )
        scheduler.handlers.topologies.observe("ADDED", topology)


async def _cycle() -> dict[str, list[str]]:
    """Return the functions that run for the last pod, by module."""
    binder = AnsweringBinder()
    scheduler = scheduler_with(binder)
    _scheduler_owned(scheduler)
    request = pod_request(2000, 2)
    running = asyncio.create_task(scheduler.run())
    found: dict[str, list[str]] = {}

    def called(frame: FrameType, event: str, _: Any) -> None:
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname
        if event == "call" and module.partition(".")[0] == PACKAGE and not name.endswith(">"):
            names = found.setdefault(module, [])
            if name not in names:
                names.append(name)

    for number in range(WARM_UP + 1):
        pod = Pod(PodKey("bench", f"p{number}", f"uid-{number}"), request, scheduler="koord-numa")
        binder.pods[pod.key.uid] = pod
        bound = asyncio.Event()
        binder.on_bound = bound.set
        if number == WARM_UP:
            sys.setprofile(called)
        scheduler.handlers.pending_pods.observe("ADDED", pod)
        await bound.wait()
        # The turn of the loop in which the cycle ends.
        await asyncio.sleep(0)
    sys.setprofile(None)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return found


def figures() -> Iterator[Figure]:
    """Distinct functions and modules of one cycle on nodes whose CPUs the scheduler assigns."""
    found = asyncio.run(_cycle())
    yield Figure(
        "cycle-functions", sum(map(len, found.values())), "functions", 280.0, note="a pod with CPUs of its own"
    )
    yield Figure("cycle-modules", len(found), "modules", 45.0, note="a pod with CPUs of its own")


if __name__ == "__main__":
    for module, functions in asyncio.run(_cycle()).items():
        print(module)
        for name in functions:
            print(f"    {name}")
