"""Containers get their CPUs before they start: the NRI plugin against a fake runtime over a real socket."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.node.agent import Agent
from koord_numa.node.nri_plugin import MAX_MESSAGE, TtrpcError, TtrpcLink
from koord_numa.sandbox.machines.simulated_node import container_id
from koord_numa.wire import names, parse_topology
from koord_numa.wire.proto import nri_pb2
from tests.node.descriptions import PLAIN, STATIC, effective
from tests.node.fake_nri import FakeNri, Plugin, nri_runtime
from tests.node.nodes import NODE, World, world
from tests.sandbox.machines.pods import bind, create, place


@dataclass(frozen=True)
class Creating:
    """A container that the runtime creates."""

    id: str
    pod_uid: str
    name: str = "c"


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110  (many conditions, none of which has an event)
            await asyncio.sleep(0.002)


@asynccontextmanager
async def agent_with_nri(around: World, runtime: FakeNri, **config: Any) -> AsyncIterator[Agent]:
    """An agent whose plugin is connected; its other loops do not run."""
    async with around.agent(apply=True, nri_socket=runtime.socket, **config) as agent:
        await agent.apply()
        assert agent.nri is not None
        plugin = asyncio.create_task(agent._pinning_at_creation(agent.nri))
        try:
            if not agent._why_not:
                await until(runtime.synchronized.is_set)
            yield agent
        finally:
            plugin.cancel()
            await asyncio.gather(plugin, return_exceptions=True)


def started_on(around: World, uid: str) -> str:
    return str(around.services.started_on.get(container_id(uid, "c"), ""))


async def test_containers_start_on_their_cpus(tmp_path: Path) -> None:
    """The annotation arrives with the request: the agent has not seen the pods."""
    async with (
        world(tmp_path, PLAIN) as around,
        nri_runtime(around) as runtime,
        agent_with_nri(around, runtime, apply_memory=True) as agent,
    ):
        store = around.server.store
        pinned = create(store, "a", {"cpu": "2"})
        amounts = [{"node": 1, "resources": {"cpu": "2"}}]
        bind(store, pinned, NODE, {"cpuset": "4-5", "numaNodeResources": amounts})
        await until(lambda: started_on(around, pinned.uid))
        near = create(store, "b", {"cpu": "500m"})
        bind(store, near, NODE, {"numaNodeResources": [{"node": 1, "resources": {"cpu": "500m"}}]})
        anywhere = create(store, "c", {"cpu": "500m"})
        bind(store, anywhere, NODE)
        await until(lambda: started_on(around, near.uid) and started_on(around, anywhere.uid))
        assert started_on(around, pinned.uid) == "4-5"
        assert started_on(around, near.uid) == "6-7,12-15"
        assert started_on(around, anywhere.uid) == "0-3,6-15"
        folder = around.services.cgroups._folders[container_id(pinned.uid, "c")]
        assert (folder / "cpuset.mems").read_text().strip() == "1"
        assert not around.services.updates
        await until(agent._applied.is_set)
        await agent.apply()
        assert not around.services.updates, "a round has nothing to correct"
        histogram = agent.metrics.pinned
        assert (histogram._sum.get(), histogram._buckets[0].get()) == (0, 1)
        await around.publish(agent)
        assert (
            str(parse_topology(around.topology() or {}).pinning)
            == "1 container pinned through NRI, at most 0 s unpinned"
        )


async def test_an_update_by_others_keeps_the_cpus(tmp_path: Path) -> None:
    async with (
        world(tmp_path, PLAIN) as around,
        nri_runtime(around) as runtime,
        agent_with_nri(around, runtime) as agent,
    ):
        pod = place(around.server.store, NODE, "a", "1-2")
        await until(lambda: started_on(around, pod.uid))
        assert agent._cri is not None
        await agent._cri.update(container_id(pod.uid, "c"), CpuSet.parse("0-15"))
        assert effective(around, pod.uid) == "1-2"
        # A rebind: the sandbox keeps the annotation of its start, and the API server has the new one.
        status = {"metadata": {"annotations": {names.RESOURCE_STATUS: '{"cpuset":"4-5"}'}}}
        around.server.store.patch("pods", "a", status, "default")
        around.see_pods(agent)
        await agent.apply()
        assert effective(around, pod.uid) == "4-5"


async def test_a_pod_shown_by_the_runtime_after_its_end_has_no_cpus(tmp_path: Path) -> None:
    """The runtime reports the start of a container late, or only after the agent has started again."""
    async with (
        world(tmp_path, PLAIN) as around,
        nri_runtime(around) as runtime,
        agent_with_nri(around, runtime) as agent,
    ):
        store = around.server.store
        deleted, finished, there = (place(store, NODE, name, cpu) for name, cpu in (("a", "1"), ("b", "2"), ("c", "3")))
        await until(lambda: all(started_on(around, pod.uid) for pod in (deleted, finished, there)))
        sandboxes = {pod.uid: runtime._sandbox(pod.uid) for pod in (deleted, finished, there)}
        store.delete("pods", "a", "default")
        store.patch("pods", "b", {"status": {"phase": "Succeeded"}}, "default", "status")
        agent.pods.observe("LIST", [pod for pod in store.list("pods") if pod["metadata"]["uid"] != there.uid])
        for uid, sandbox in sandboxes.items():
            container = nri_pb2.Container(id=container_id(uid, "c"), pod_sandbox_id=uid, name="c")
            event = nri_pb2.StateChangeEvent(event=nri_pb2.POST_START_CONTAINER, pod=sandbox, container=container)
            await runtime.plugins[0].call("StateChange", event, nri_pb2.Empty, runtime.timeout)
        assert {pod.uid for pod in agent.pods.all()} == {deleted.uid, there.uid}
        await agent.observe()
        assert {pod.uid for pod in agent.pods.all()} == {there.uid}


@pytest.mark.parametrize("part", [1, 1000])
async def test_a_new_connection_corrects_what_runs(part: int, tmp_path: Path) -> None:
    """Pods were started while no agent ran; some of them have their CPUs already."""
    async with world(tmp_path, PLAIN) as around, nri_runtime(around, part=part) as runtime:
        pods = [place(around.server.store, NODE, f"p{core}", f"{core},{core + 8}") for core in range(4)]
        await until(lambda: len(around.services.cgroups.containers) == 4)
        around.services.cgroups.set(container_id(pods[0].uid, "c"), CpuSet.parse("0,8"))
        async with around.agent(apply=True, nri_socket=runtime.socket) as agent:
            agent._may_apply.set()
            agent.host.read()
            assert agent.nri is not None
            plugin = asyncio.create_task(agent.nri.run())
            await until(runtime.synchronized.is_set)
            plugin.cancel()
            await asyncio.gather(plugin, return_exceptions=True)
        assert sorted(runtime.updates_at_synchronization) == sorted(container_id(pod.uid, "c") for pod in pods[1:])
        assert [effective(around, pod.uid) for pod in pods] == [f"{core},{core + 8}" for core in range(4)]


async def test_the_runtime_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without NRI the rounds do the work, and the plugin comes back with the runtime."""
    monkeypatch.setattr("koord_numa.node.nri_plugin.RETRY", 0.01)
    async with (
        world(tmp_path, PLAIN) as around,
        nri_runtime(around) as runtime,
        agent_with_nri(around, runtime) as agent,
    ):
        await runtime.stop()
        await until(lambda: not agent.nri.connected)  # type: ignore[union-attr]  # made for apply
        late = place(around.server.store, NODE, "late", "1-2")
        await until(lambda: started_on(around, late.uid))
        assert started_on(around, late.uid) == "0-15"
        around.see_pods(agent)
        await agent.apply()
        assert effective(around, late.uid) == "1-2"
        await runtime.start()
        await until(runtime.synchronized.is_set)
        early = place(around.server.store, NODE, "early", "3-4")
        await until(lambda: started_on(around, early.uid))
        assert started_on(around, early.uid) == "3-4"


@pytest.mark.parametrize("seed", range(3))
async def test_random_faults(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Kills of the agent at any await, and restarts of the runtime: no container starts elsewhere while NRI is up, none stays elsewhere.

    Real processes and slow answers: ``tests/chaos/test_node_agent.py``.
    """
    monkeypatch.setattr("koord_numa.node.nri_plugin.RETRY", 0.002)
    random = Random(seed)
    async with world(tmp_path, PLAIN) as around, nri_runtime(around, timeout=0.5) as runtime:
        free = list(range(1, 16))
        placed: dict[str, tuple[Any, str]] = {}
        while free:
            async with agent_with_nri(around, runtime) as agent:
                for _ in range(random.randrange(1, 4)):
                    fault = random.choice(("none", "none", "runtime", "delete"))
                    if fault == "runtime":
                        await runtime.stop()
                        await runtime.start()
                    elif fault == "delete" and placed:
                        name = random.choice(sorted(placed))
                        around.server.store.delete("pods", name, "default")
                        free.append(int(placed.pop(name)[1]))
                        around.see_pods(agent)
                    if free:
                        cpu = str(free.pop(0))
                        placed[f"p{cpu}"] = (place(around.server.store, NODE, f"p{cpu}", cpu), cpu)
                        for _ in range(random.randrange(60)):
                            await asyncio.sleep(0)
                    if random.random() < 0.3:
                        await agent.apply()
                # Killed here, possibly within a request: nothing is released, and nothing is remembered.
            await until(lambda: all(started_on(around, pod.uid) for pod, _ in placed.values()))
            answered = [one for one in placed.values() if container_id(one[0].uid, "c") in runtime.answered]
            assert all(started_on(around, pod.uid) == cpu for pod, cpu in answered)
            if random.random() < 0.3 and len(placed) > 8:
                break
        assert runtime.answered, "NRI was up now and then"
        async with agent_with_nri(around, runtime) as agent:
            around.see_pods(agent)
            await agent.apply()
            assert {pod: effective(around, pod.uid) for pod, _ in placed.values()} == dict(placed.values())


@pytest.mark.parametrize(
    ("version", "other"), [("0.10.0", "NRI plugin balloons"), ("", "another NRI plugin or the kubelet")]
)
async def test_two_plugins_for_one_field(version: str, other: str, tmp_path: Path) -> None:
    """The container starts all the same; an event names both."""
    async with world(tmp_path, PLAIN) as around, nri_runtime(around, version=version) as runtime:
        runtime.plugins.append(Plugin("balloons", "10", cpus="0-7"))
        async with agent_with_nri(around, runtime) as agent:
            pod = place(around.server.store, NODE, "a", "1-2")
            await until(lambda: started_on(around, pod.uid))
            assert not runtime.refusals
            assert started_on(around, pod.uid) == "0-7"
            await agent.observe()
            (event,) = around.server.store.list("events.events.k8s.io")
            assert (event["reason"], event["type"], event["regarding"]["uid"]) == ("CpusetConflict", "Warning", pod.uid)
            assert event["note"] == f"container c: {other} sets cpuset.cpus to 0-7, NRI plugin koord-numa decided 1-2"


async def test_an_update_that_two_plugins_refuse_is_reported_once(tmp_path: Path) -> None:
    async with (
        world(tmp_path, PLAIN) as around,
        nri_runtime(around) as runtime,
        agent_with_nri(around, runtime) as agent,
    ):
        pod = place(around.server.store, NODE, "a", "1-2")
        await until(lambda: started_on(around, pod.uid))
        around.see_pods(agent)
        runtime.plugins.append(Plugin("balloons", "10", cpus="0-7"))
        around.services.cgroups.set(container_id(pod.uid, "c"), CpuSet.parse("0-7"))
        for _ in range(3):
            await agent.apply()
            await agent.observe()
        (event,) = around.server.store.list("events.events.k8s.io")
        assert '"balloons" and "koord-numa" both tried to set' in event["note"]


async def test_nothing_is_changed_where_cpus_are_not_ours(tmp_path: Path) -> None:
    """A static kubelet: the plugin does not even connect. It leaves requests alone if the kubelet becomes static later."""
    async with world(tmp_path, STATIC) as around, nri_runtime(around) as runtime, agent_with_nri(around, runtime):
        await asyncio.sleep(0.02)
        assert not runtime.plugins
    async with (
        world(tmp_path / "later", PLAIN) as around,
        nri_runtime(around) as runtime,
        agent_with_nri(around, runtime) as agent,
    ):
        agent._may_apply.clear()
        pod = place(around.server.store, NODE, "a", "1-2")
        await until(lambda: started_on(around, pod.uid))
        assert started_on(around, pod.uid) == "0-15"


@pytest.mark.parametrize("text", ["", "{", "3", '{"cpuset":"1-"}', '{"cpuset":"1-2","numaNodeResources":3}'])
async def test_a_malformed_annotation_changes_nothing(text: str, tmp_path: Path) -> None:
    async with (
        world(tmp_path, PLAIN) as around,
        nri_runtime(around) as runtime,
        agent_with_nri(around, runtime),
    ):
        pod = create(around.server.store, "a", {"cpu": "2"}, annotations={names.RESOURCE_STATUS: text})
        assert await runtime.create(Creating("id", pod.uid), "", "") == ("", "")
        assert len(runtime.plugins) == 1


async def test_messages_of_any_size_and_division() -> None:
    """One call and its answer, larger than a frame, in pieces of every small size."""
    text = "x" * 20_000
    for pieces in (1, 7, 4096, 100_000):
        client, server = await _pair(pieces)
        reading = [asyncio.create_task(link.run()) for link in (client, server)]
        request = nri_pb2.RegisterPluginRequest(plugin_name=text)
        answer = await client.call("s/Echo", request, nri_pb2.RegisterPluginRequest, 5)
        assert answer.plugin_name == text
        with pytest.raises(TtrpcError, match="s/Other is not implemented"):
            await client.call("s/Other", request, nri_pb2.Empty, 5)
        with pytest.raises(TtrpcError, match="ZeroDivisionError"):
            await client.call("s/Fails", request, nri_pb2.Empty, 5)
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"\0\0\0\1" + (MAX_MESSAGE + 100).to_bytes(4, "big"), id="a frame that is too large"),
        pytest.param(b"\0\0\0\1\0\0\0\x0a\xff\xff\xff\xff\0\0\0\1\1\0", id="a message that is too large"),
        pytest.param(b"\0\0\0\1\0\0\0\x0b\0\0\0\1\0\0\0\1\1\0\xff", id="no protobuf"),
    ],
)
async def test_a_stream_that_is_not_understood_ends(sent: bytes) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(sent)
    with pytest.raises(TtrpcError):
        await TtrpcLink(reader, _FakeChunkWriter(asyncio.StreamReader(), 1), {}).run()  # type: ignore[arg-type]  # writes in pieces, as a socket does


async def test_calls_fail_when_the_connection_ends() -> None:
    reader = asyncio.StreamReader()
    link = TtrpcLink(reader, _FakeChunkWriter(asyncio.StreamReader(), 1), {})  # type: ignore[arg-type]  # as above
    reading = asyncio.create_task(link.run())
    call = asyncio.create_task(link.call("s/m", nri_pb2.Empty(), nri_pb2.Empty, 5))
    await asyncio.sleep(0)
    reader.feed_data(b"\0\0\0\x09\0\0\0\1x\0\0")  # a frame of an unknown connection, and half a header
    reader.feed_eof()
    with pytest.raises(TtrpcError, match="closed"):
        await call
    await reading


class _FakeChunkWriter:
    """A writer that delivers in pieces of one size."""

    def __init__(self, reader: asyncio.StreamReader, size: int) -> None:
        self._reader = reader
        self._size = size

    def write(self, data: bytes) -> None:
        for start in range(0, len(data), self._size):
            self._reader.feed_data(data[start : start + self._size])

    async def drain(self) -> None:
        await asyncio.sleep(0)

    def close(self) -> None:
        self._reader.feed_eof()


async def _pair(pieces: int) -> tuple[TtrpcLink, TtrpcLink]:
    to_client, to_server = asyncio.StreamReader(), asyncio.StreamReader()
    kind = nri_pb2.RegisterPluginRequest
    methods = {"s/Echo": (kind, lambda request: request), "s/Fails": (kind, lambda _: 1 // 0)}
    client = TtrpcLink(to_client, _FakeChunkWriter(to_server, pieces), {})  # type: ignore[arg-type]  # as above
    server = TtrpcLink(to_server, _FakeChunkWriter(to_client, pieces), methods, serves=2)  # type: ignore[arg-type]  # as above
    return client, server
