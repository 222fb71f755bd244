"""CPU time of a topology update while unschedulable pods wait, each of a class of its own."""

import asyncio
import gc
import time
from collections.abc import Iterator
from typing import Any, Final

from bench.engine._answering import AnsweringBinder
from bench.engine._requests import pod_request
from bench.engine.engine import Cluster, make_cluster
from bench.figure import Figure
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.value_objects import replace
from koord_numa.engine import Scheduler

NODES: Final = 500
CLASSES: Final = 100
TOPOLOGIES: Final = 400
A_SECOND: Final = 80.0
"""As many as 5,000 nodes publish that do so once a minute."""


def topology_beside(classes: int) -> float:
    """Milliseconds of CPU for a topology that changed, on nodes full of pods that are as important as those that wait."""
    cluster = make_cluster(NODES, full=0.98)
    engine, answering = cluster.engine, AnsweringBinder()
    silent: Any = engine.dependencies.binder
    silent.set_unschedulable = answering.set_unschedulable
    engine.handlers.budgets.replace([])
    for pod in [pod for info in engine.cache.nodes.values() for pod in info.pods.values()]:
        engine.handlers.bound_pods.observe("MODIFIED", replace(pod, started=True))
    return asyncio.run(_publishing(cluster, classes))


async def _publishing(cluster: Cluster, classes: int) -> float:
    engine = cluster.engine
    running = asyncio.create_task(engine.run())
    for number in range(classes):
        request = pod_request(60_000 + 10 * number, 200)
        pod = Pod(PodKey("bench", f"large-{number}", f"uid-l{number}"), request, scheduler="koord-numa")
        engine.handlers.pending_pods.observe("ADDED", pod)
    await _until_quiet()
    gc.collect()
    started = time.process_time()
    await _publish(engine)
    used = time.process_time() - started
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return 1000 * used / TOPOLOGIES


async def _until_quiet() -> None:
    """Every class has been tried on every node, and it has been found out that no eviction helps it."""
    while True:
        before = time.process_time()
        await asyncio.sleep(1.5)
        if time.process_time() - before < 0.1:
            return


async def _publish(engine: Scheduler) -> None:
    topologies = [info.published for info in engine.cache.nodes.values() if info.published is not None]
    for turn in range(TOPOLOGIES):
        topology = topologies[turn % len(topologies)]
        first, *others = topology.zones
        zones = (replace(first, overdrawn={"example.com/turn": turn}), *others)
        news = replace(topology, zones=zones, resource_version=f"v{turn}")
        engine.handlers.topologies.observe("MODIFIED", news)
        await asyncio.sleep(1 / A_SECOND)


def figures() -> Iterator[Figure]:
    """One line."""
    note = f"{CLASSES} classes wait that nothing helps; {topology_beside(0):.2f} ms without"
    yield Figure("hopeless-classes topology", topology_beside(CLASSES), "ms", 1.0, note=note)
