"""Time that a container runs on other CPUs than decided: real processes in cgroups, pinned through NRI and through CRI."""

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from bench.figure import Figure, NotMeasurableError
from koord_numa.node.nri_plugin import NriPlugin, PinningPlan
from koord_numa.node.pods import NodePods
from koord_numa.node.sysfs import read_host
from koord_numa.sandbox.machines import Shape
from koord_numa.sandbox.machines.node_services import write_sysfs
from koord_numa.wire import names
from koord_numa.wire.proto import nri_pb2
from tests.node.nodes import NODE
from tests.node.real_cgroups import first_cpus, real_node, unavailable
from tests.sandbox.machines.pods import place

CONTAINERS: Final = 40
PODS: Final = 250


def figures() -> Iterator[Figure]:
    """The agent's answer on a full node, and the start of real processes."""
    yield Figure(
        "pinning answer",
        _answer() * 1000,
        "ms",
        100,
        note=f"to CreateContainer at {PODS} pods, 256 CPUs; the longest of 200",
    )
    if why := unavailable():
        raise NotMeasurableError(why)
    elsewhere = asyncio.run(_through_nri())
    note = f"of {CONTAINERS} processes, by their own /proc/self/status"
    yield Figure("pinning nri started-elsewhere", elsewhere, "", 0, note=note)
    seconds = sorted(asyncio.run(_through_cri()))
    note = f"median {median(seconds) * 1000:.0f} ms of {CONTAINERS} processes, until sched_getaffinity is right"
    yield Figure("pinning cri longest", seconds[-1] * 1000, "ms", 500, note=note)


def _answer() -> float:
    """The longest time that the plugin takes to answer, on a node full of pods of which 60 are pinned."""
    with TemporaryDirectory() as folder:
        write_sysfs(Path(folder), Shape(sockets=2, cores=64, threads=2).build())
        host = read_host(Path(folder, "sys"))
    pods = NodePods(None, "n")  # type: ignore[arg-type]  # nothing is asked of an API server
    pods.observe("LIST", [_pod(number) for number in range(PODS)])
    plugin = NriPlugin(Path(), pods, lambda: PinningPlan(host), lambda: None)
    longest = 0.0
    for number in range(200):
        request = nri_pb2.CreateContainerRequest()
        request.pod.uid = f"u{number}"
        request.container.id = f"c{number}"
        begun = time.perf_counter()
        plugin._create(request)  # noqa: SLF001  (without the socket)
        longest = max(longest, time.perf_counter() - begun)
    return longest


def _pod(number: int) -> dict[str, Any]:
    status = {names.RESOURCE_STATUS: f'{{"cpuset":"{2 * number}-{2 * number + 1}"}}'} if number < 60 else {}
    return {"metadata": {"name": f"p{number}", "namespace": "default", "uid": f"u{number}", "annotations": status}}


async def _through_nri() -> int:
    """The number of processes that started on other CPUs."""
    elsewhere = 0
    async with real_node(nri=True) as (around, _, processes):
        for number in range(CONTAINERS):
            pod = place(around.server.store, NODE, f"p{number}", "1")
            elsewhere += first_cpus(await processes.first(pod.uid)) != "1"
            around.server.store.delete("pods", f"p{number}", "default")
    return elsewhere


async def _through_cri() -> list[float]:
    """Seconds from the start of each process until it may use its decided CPU only."""
    seconds = []
    async with real_node(nri=False) as (around, _, processes):
        for number in range(CONTAINERS):
            pod = place(around.server.store, NODE, f"p{number}", "1")
            pid = await processes.pid(pod.uid)
            begun = time.monotonic()
            while os.sched_getaffinity(pid) != {1}:  # noqa: ASYNC110  (of another process)
                await asyncio.sleep(0.001)
            seconds.append(time.monotonic() - begun)
            around.server.store.delete("pods", f"p{number}", "default")
    return seconds
