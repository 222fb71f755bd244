"""Containers as processes in real cgroups: the CPUs and the memory that they have from their first instruction on."""

import asyncio
import os
from time import monotonic

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.resources import CPU
from tests.node.nodes import NODE
from tests.node.real_cgroups import TWO_NUMA_NODES, first_cpus, memory_nodes, real_node, unavailable, with_memory
from tests.sandbox.machines.pods import bind, create, place

pytestmark = pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "available")


async def test_nri_pins_before_the_first_instruction() -> None:
    async with real_node(nri=True) as (around, agent, processes):
        pinned = place(around.server.store, NODE, "a", "1")
        assert first_cpus(await processes.first(pinned.uid)) == "1"
        shared = create(around.server.store, "b", {"cpu": "100m"})
        bind(around.server.store, shared, NODE)
        assert first_cpus(await processes.first(shared.uid)) == "0"
        while not agent.metrics.pinned._buckets[0].get():  # noqa: ASYNC110  (a metric)
            await asyncio.sleep(0.005)
        assert agent.metrics.pinned._sum.get() == 0


async def test_cri_pins_after_the_start() -> None:
    async with real_node(nri=False) as (around, agent, processes):
        begun = monotonic()
        pinned = place(around.server.store, NODE, "a", "1")
        pid = await processes.pid(pinned.uid)
        async with asyncio.timeout(20):
            while os.sched_getaffinity(pid) != {1}:  # noqa: ASYNC110  (of another process)
                await asyncio.sleep(0.002)
            while not agent.metrics.pinned._sum.get():  # noqa: ASYNC110  (a metric)
                await asyncio.sleep(0.002)
        assert agent.metrics.pinned._sum.get() <= monotonic() - begun


@pytest.mark.skipif(
    not CpuSet.of([0, 1]) <= with_memory(), reason="needs NUMA nodes 0 and 1: here, every page is local"
)
async def test_memory_is_touched_on_the_numa_nodes_of_the_pod() -> None:
    """First touch: a page is on the NUMA node of the process that first writes to it, so that late pinning is too late."""
    async with real_node(TWO_NUMA_NODES, nri=True, apply_memory=True) as (around, _, processes):
        pod = create(around.server.store, "a", {"cpu": "1"})
        amounts = [{"node": 1, "resources": {CPU: "1"}}]
        bind(around.server.store, pod, NODE, {"cpuset": "1", "numaNodeResources": amounts})
        assert memory_nodes(await processes.first(pod.uid)) == {1}
