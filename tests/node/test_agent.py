"""The agent on simulated nodes: what it sees, and the whole of it with its loops."""

import asyncio
from pathlib import Path

import orjson
import pytest
from aiohttp import ClientSession

from koord_numa.cluster.credentials import Credentials
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.vocabulary import CpuOwner
from koord_numa.node.agent import Agent, metrics_server
from koord_numa.node.api_client import NodeApi
from koord_numa.node.metrics import AgentMetrics
from koord_numa.node.observer import GRACE
from koord_numa.node.publisher import AgentConfig
from koord_numa.sandbox.apiserver import ApiServer, Fault
from koord_numa.sandbox.machines.simulated_node import container_id
from koord_numa.wire import names, parse_topology
from tests.node.descriptions import PLAIN, SHAPE, effective
from tests.node.nodes import NODE, world
from tests.sandbox.machines.pods import place


async def test_a_scheduler_owned_node(tmp_path: Path) -> None:
    async with world(tmp_path, PLAIN) as around, around.agent() as agent:
        place(around.server.store, NODE, "a", "1-2,9-10")
        await around.publish(agent)
        obj = around.topology() or {}
        topology = parse_topology(obj)
        assert topology.owner is CpuOwner.SCHEDULER
        assert topology.machine == SHAPE.build().machine
        notes = obj["metadata"]["annotations"]
        assert orjson.loads(notes[names.CPU_SHARED_POOLS]) == [
            {"socket": 0, "node": 0, "cpuset": "0,3,8,11"},
            {"socket": 1, "node": 1, "cpuset": "4-7,12-15"},
        ]
        assert orjson.loads(notes[names.BE_CPU_SHARED_POOLS])[0]["cpuset"] == "0-3,8-11"
        assert orjson.loads(notes[names.CPU_MANAGER_POLICY]) == {"policy": "none"}


async def test_metrics_over_tls_need_a_right() -> None:
    eve = {"Authorization": "Bearer sandbox:eve"}
    async with ApiServer() as server, NodeApi(Credentials(server.url)) as api:
        serving = metrics_server(AgentConfig(NODE, metrics_tls=True), api, AgentMetrics(), lambda: "it starts")
        await serving.start()

        async def get(path: str, headers: dict[str, str]) -> tuple[int, str]:
            url = f"https://127.0.0.1:{serving.port}{path}"
            async with ClientSession() as session, session.get(url, headers=headers, ssl=False) as answer:
                return answer.status, (await answer.text()).partition("\n")[0]

        assert await get("/healthz", {}) == (200, "ok")
        assert await get("/readyz", {}) == (503, "it starts")
        assert await get("/metrics", {}) == (401, "a bearer token is needed")
        assert await get("/metrics", {"Authorization": "Bearer forged"}) == (401, "the token is not valid")
        assert (await get("/metrics", eve))[0] == 200
        server.faults.add(Fault(verb="create", resource="tokenreviews", status=500))
        assert (await get("/metrics", {"Authorization": "Bearer sandbox:joe"}))[0] == 503
        server.faults.clear()
        server.faults.add(Fault(verb="get", resource="/metrics", status=403))
        assert await get("/metrics", {"Authorization": "Bearer sandbox:ann"}) == (403, "ann may not get /metrics")
        # A client that sends nothing does not delay others, and plain HTTP is no error of the agent.
        _, silent = await asyncio.open_connection("127.0.0.1", serving.port)
        assert (await get("/healthz", {}))[0] == 200
        silent.close()
        await serving.stop()


async def test_it_is_ready_once_the_topology_is_published(tmp_path: Path) -> None:
    async with world(tmp_path, PLAIN) as around, around.agent() as agent:
        serving = metrics_server(AgentConfig(NODE), around.api, agent.metrics, lambda: agent._not_ready)
        await serving.start()

        async def get(path: str) -> tuple[int, str]:
            async with ClientSession() as session, session.get(f"http://127.0.0.1:{serving.port}{path}") as answer:
                return answer.status, await answer.text()

        assert await get("/readyz") == (503, "the pods of this node are not listed\n")
        await agent.round()
        assert await get("/readyz") == (200, "ok\n")
        assert "koord_numa_node_agent_topology_writes_total 1.0" in (await get("/metrics"))[1]
        await serving.stop()


async def test_a_pod_that_runs_elsewhere_is_told_once(tmp_path: Path) -> None:
    async with world(tmp_path, PLAIN) as around, around.agent() as agent:
        pod = place(around.server.store, NODE, "a", "1-2")
        around.see_pods(agent)
        await agent.observe()
        assert not agent._differences  # a container that starts is given a moment
        for _ in range(3):
            around.clock.now += GRACE
            await agent.observe()
        why = "no agent applies cpusets on this node"
        told = {"default/a": {"decided": "1-2", "observed": "0-15", "why": why}}
        assert agent._differences == told
        await around.publish(agent)
        notes = (around.topology() or {})["metadata"]["annotations"]
        assert orjson.loads(notes[names.CPUSET_DIFFERENCES]) == told
        (difference,) = parse_topology(around.topology() or {}).differences.values()
        assert str(difference) == f"decided 1-2, runs on 0-15: {why}"
        events = around.server.store.list("events.events.k8s.io")
        assert [(event["reason"], event["regarding"]["uid"]) for event in events] == [("CpusetMismatch", pod.uid)]
        around.services.cgroups.set(container_id(pod.uid, "c"), CpuSet.parse("1-2"))
        await agent.observe()
        await around.publish(agent)
        assert names.CPUSET_DIFFERENCES not in (around.topology() or {})["metadata"]["annotations"]
        assert len(around.server.store.list("events.events.k8s.io")) == 2


async def test_the_whole_agent(tmp_path: Path) -> None:
    """With its loops and its own clock: a pod is pinned and shown without a call of a round."""
    async with world(tmp_path, PLAIN) as around:
        config = AgentConfig(
            node=NODE,
            sysfs=around.services.sysfs,
            cgroups=around.services.cgroups.root,
            kubelet_config=around.services.kubelet_config,
            podresources=around.services.podresources,
            cri_socket=around.services.cri,
            apply=True,
        )
        agent, stop = Agent(config, around.api), asyncio.Event()
        running = asyncio.create_task(agent.run(stop))
        pod = place(around.server.store, NODE, "a", "1-2")
        while effective(around, pod.uid) != "1-2" or around.topology() is None:
            assert not running.done()
            await asyncio.sleep(0.01)
        stop.set()
        await running
        assert effective(around, pod.uid) == "1-2"  # a restart changes nothing


async def test_a_container_without_a_cgroup_is_told_and_is_not_pinned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As where the kubelet makes its cgroups in a place that the agent does not know."""
    async with world(tmp_path, PLAIN) as around, around.agent(apply=True) as agent:
        pod = place(around.server.store, NODE, "a", "1-2")
        hidden = around.services.cgroups.root / "kubepods.slice"
        hidden.rename(around.services.cgroups.root / "elsewhere")
        for _ in range(2):
            await agent.round()
            around.clock.now += GRACE
        assert agent.metrics.missing._value.get() == 1
        assert agent.metrics.pinned._sum.get() == 0
        (event,) = around.server.store.list("events.events.k8s.io")
        assert event["regarding"]["uid"] == pod.uid
        assert event["note"].startswith("decided 1-2, container c has no cgroup: no kubepods below")
        assert "container c has no cgroup" in caplog.text
        (told,) = parse_topology(around.topology() or {}).differences.values()
        assert str(told).startswith("decided 1-2: no kubepods below")
        # Found again: it gets its CPUs, and counts as pinned only now.
        (around.services.cgroups.root / "elsewhere").rename(hidden)
        await agent.round()
        await agent.round()
        assert agent.metrics.pinned._sum.get() == 2 * GRACE
        assert agent.metrics.missing._value.get() == 0
