"""The stream of changes for pages: number of readers, and completeness of changes."""

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from koord_numa.app.api import READERS, SAMPLES, History, LiveFeed, NodeChanges, NodeEntries, ViewApi
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import PodKey
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import CpuOwner
from koord_numa.core.value_objects import replace
from koord_numa.engine.device_moves import DeviceMove
from koord_numa.engine.metrics import LoggedDecision, Result
from koord_numa.view.waiting import decisions_document
from tests.cluster.objects import until
from tests.engine.world import make_node, make_pod, make_topology, make_world


async def test_a_burst_of_pages_does_not_pass_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare, together = web.StreamResponse.prepare, asyncio.Event()
    beginning: list[web.BaseRequest] = []

    async def held(self: web.StreamResponse, request: web.BaseRequest) -> object:
        if self.content_type == "text/event-stream":
            beginning.append(request)
            await together.wait()
        return await prepare(self, request)

    monkeypatch.setattr(web.StreamResponse, "prepare", held)
    feed = LiveFeed(NodeEntries(make_world(make_node("node")).engine))
    app = web.Application()
    app.router.add_get("/events", feed.serve)
    async with TestServer(app) as server, ClientSession() as session, AsyncExitStack() as open_pages:
        url = server.make_url("/events")
        asked = [asyncio.create_task(session.get(url).__aenter__()) for _ in range(2 * READERS)]
        await until(lambda: len(beginning) + sum(task.done() for task in asked) == 2 * READERS)
        together.set()
        answers = await asyncio.gather(*asked)
        for answer in answers:
            open_pages.callback(answer.close)
        assert Counter(answer.status for answer in answers) == {200: READERS, 503: READERS}
        await feed.stop()


async def test_a_new_report_of_moves_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although no node and no waiting pod has changed."""
    monkeypatch.setattr("koord_numa.app.api.INTERVAL", 0.01)
    world = make_world(make_node("node"))
    moves: list[DeviceMove] = []
    feed = LiveFeed(NodeEntries(world.engine), lambda: tuple(moves))
    app = web.Application()
    app.router.add_get("/events", feed.serve)
    async with TestServer(app) as server, ClientSession() as session, session.get(server.make_url("/events")) as page:
        await asyncio.sleep(0.05)
        moves.append(DeviceMove(make_pod("p", node="node"), "node", "other", "nvidia.com/gpu", 4))
        assert await page.content.readline() == b"event: change\n"
        change = json.loads((await page.content.readline()).removeprefix(b"data: "))
        assert [move["text"] for move in change["moves"]] == [moves[0].text]
        await feed.stop()


async def test_a_request_for_the_cluster_takes_no_change_from_pages() -> None:
    """Both refresh the entries."""
    world = make_world(make_node("a"), make_node("b"))
    entries = NodeEntries(world.engine)
    await entries.refresh()
    sent = dict(entries.entries)
    world.engine.handlers.nodes.observe("MODIFIED", make_node("a", unschedulable=True))
    await entries.refresh()
    await entries.refresh()
    assert [(entry["name"], entry["state"]) for entry in entries.changes_since(sent).nodes] == [("a", "cordoned")]
    assert not entries.changes_since(dict(entries.entries))


async def test_the_first_nodes_are_sent_alone() -> None:
    world = make_world(*(make_node(f"node-{number}") for number in (10, 9, 100, 1)))
    app = web.Application()
    app.add_routes(ViewApi(world.engine, lambda *_: None, list).routes())
    async with TestServer(app) as server, ClientSession() as session:
        answers = []
        for query in ("?limit=2", "?limit=9", "", "?limit=x"):
            async with session.get(server.make_url(f"/api/v1/cluster{query}")) as answer:
                found = await answer.json()
            answers.append(([node["name"] for node in found["nodes"]], found["summary"]["nodes"], found["more"]))
    everything = (["node-1", "node-9", "node-10", "node-100"], 4, 0)
    assert answers == [(["node-1", "node-9"], 2, 2), everything, everything, everything]


async def test_a_node_is_removed_while_its_pods_remain() -> None:
    """The cache keeps the node for its pods after the Node object has gone."""
    world = make_world(make_node("node"))
    world.engine.handlers.bound_pods.observe("ADDED", make_pod("p", node="node"))
    entries = NodeEntries(world.engine)
    await entries.refresh()
    sent = dict(entries.entries)
    world.engine.handlers.nodes.observe("DELETED", make_node("node"))
    await entries.refresh()
    assert "node" in world.engine.cache.nodes
    assert entries.changes_since(sent) == NodeChanges(removed=("node",))


async def test_the_history_is_counted_per_sample_and_bounded() -> None:
    world = make_world(make_node("a", cpu=12), make_node("b", cpu=16))
    for topology in (make_topology("a"), make_topology("b", cores=4)):
        world.engine.handlers.topologies.observe("ADDED", topology)
    attempts, history = world.engine.metrics.attempts, History(world.engine)
    attempts[Result.SCHEDULED, "koord-numa"].add(0.001)
    attempts[Result.SCHEDULED, "other"].add(0.001)
    await history.take()
    attempts[Result.UNSCHEDULABLE, "koord-numa"].add(0.001)
    attempts[Result.ERROR, "koord-numa"].add(0.001)
    world.engine.handlers.nodes.observe("MODIFIED", make_node("b", unschedulable=True))
    found = await history.read()
    assert {name: found[name] for name in ("scheduled", "rejected", "largest")} == {
        "scheduled": [2, 0],
        "rejected": [0, 1],
        "largest": [8, 4],
    }
    # The node with the most free CPUs has the smaller NUMA nodes.
    world.engine.handlers.nodes.observe("ADDED", make_node("c", cpu=16))
    world.engine.handlers.topologies.observe("ADDED", make_topology("c", numa=4, cores=2))
    world.engine.handlers.topologies.observe("MODIFIED", make_topology("a", cores=3))
    assert (await history.read())["largest"] == [8, 6]
    world.engine.handlers.nodes.observe("DELETED", make_node("a"))
    assert (await history.read())["largest"] == [8, 4]
    for _ in range(SAMPLES):
        await history.take()
    assert [len((await history.read())[name]) for name in ("scheduled", "rejected", "largest")] == [SAMPLES] * 3


def test_decisions_name_who_chooses_the_cpus() -> None:
    world = make_world(make_node("own"), make_node("theirs"))
    for topology in (make_topology("own"), replace(make_topology("theirs"), owner=CpuOwner.KUBELET)):
        world.engine.handlers.topologies.observe("ADDED", topology)
    placements = (Placement("own", CpuSet.parse("0-1")), Placement("own"), Placement("theirs"), Placement("removed"))
    log = [LoggedDecision(0.0, PodKey("default", "p", "uid"), placement) for placement in placements]
    found = decisions_document(log, "now", world.engine.cache.nodes)["decisions"]
    assert [entry["cpus"] for entry in reversed(found)] == ["0-1", "shared", "by the kubelet", "shared"]
