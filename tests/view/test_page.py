"""The page in a real browser: what it shows against the API's objects, keyboard, small screens, and accessibility."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from playwright.async_api import Page, Route, expect

from koord_numa.app.runtime import Runtime
from koord_numa.engine.device_moves import DeviceMove
from koord_numa.view.documents import cluster_document, node_document, node_entry
from koord_numa.view.page import written_page
from tests.cluster.objects import until
from tests.e2e.world import JsonObject, World, pinned, world
from tests.engine.world import make_pod
from tests.operator.operating import operating
from tests.view.browser import browser_page, chromium, in_chromium, violations
from tests.view.test_devices_by_id import rack

pytestmark = [pytest.mark.e2e, *in_chromium]

__all__ = ["chromium"]  # a fixture that every test of this module uses

MACHINES: Final[JsonObject] = {
    "machines": [
        {
            "name": "own",
            "count": 2,
            "sockets": 2,
            "numa": 1,
            "cores": 4,
            "threads": 2,
            "memory": "16Gi",
            "labels": {"pool": "a"},
        },
        {"name": "theirs", "style": "kubelet", "sockets": 2, "numa": 1, "cores": 4, "threads": 2, "memory": "16Gi"},
    ]
}


VIEWS: Final = {
    "cluster": "Cluster",
    "nodes/own-0": "own-0",
    "waiting": "Pods that wait",
    "decisions": "Recent decisions",
    "waiting?pod=default/too-wide": "default/too-wide",
    "pods/own-": "Pods and nodes with \u201cown-\u201d",
}
"""Headings by view."""


@asynccontextmanager
async def scheduling(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[World, Runtime]]:
    """Three nodes, a pod that is placed and one that fits nowhere."""
    async with world(folder, MACHINES) as cluster:
        cluster.create([pinned("engine", 6, policy="SingleNUMANode"), pinned("too-wide", 12, policy="SingleNUMANode")])
        async with operating(cluster.server, folder, monkeypatch) as runtime:
            await until(lambda: cluster.unbound() == ["too-wide"])
            await until(lambda: runtime.scheduler.queue.numbers().unschedulable == 1)
            await until(lambda: not runtime.scheduler.cache.assumed)
            yield cluster, runtime


def url(runtime: Runtime) -> str:
    return f"http://127.0.0.1:{runtime.http_server.port}/"


async def accessible(page: Page) -> None:
    """No violation in either scheme, and no value that is missing shown as a word."""
    assert not re.search(r"\b(null|undefined|NaN)\b", await page.locator("body").inner_text())
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme)
        assert await violations(page) == []


async def test_every_view_shows_what_the_api_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scheduling(tmp_path, monkeypatch) as (cluster, runtime), browser_page() as page:
        await page.goto(url(runtime))
        await expect(page.locator("#live")).to_have_text("live")
        await expect(page.locator("a.node")).to_have_count(3)
        names = await page.locator("a.node b").all_inner_texts()
        assert sorted(names) == sorted(node["metadata"]["name"] for node in cluster.server.store.list("nodes"))
        history = page.get_by_role("region", name="The last hour").locator("figure")
        await expect(history).to_have_text(
            [re.compile("Scheduled 1 in"), re.compile("Rejected [1-9]"), re.compile("8 CPU")]
        )
        await accessible(page)

        bound = cluster.server.store.get("pods", "engine", "default")
        await page.get_by_role("link", name=re.compile(bound["spec"]["nodeName"])).click()
        await expect(page.get_by_role("heading", name=bound["spec"]["nodeName"], exact=True)).to_be_visible()
        await expect(page.get_by_role("list", name="Legend")).to_contain_text("reserved for the system")
        held = await page.locator(".cpu.held").all_inner_texts()
        status = bound["metadata"]["annotations"]["scheduling.koordinator.sh/resource-status"]
        assert f'"cpuset":"{held[0]}' in status
        assert len(held) == 6
        await expect(page.get_by_role("cell", name="default/engine")).to_be_visible()
        distances = page.get_by_role("region", name="Distances between NUMA nodes").locator("tbody tr")
        assert await distances.all_inner_texts() == ["NUMA 0\t10\t32", "NUMA 1\t32\t10"]
        await page.locator(".cpu.held").first.click()
        await expect(page.locator("output")).to_contain_text(f"CPU {held[0]} (core")
        await expect(page.locator("output")).to_contain_text("default/engine")
        assert page.url.endswith(f"?cpu={held[0]}")
        await page.get_by_label("What runs on CPU").fill("99")
        await expect(page.locator("output")).to_have_text(f"{bound['spec']['nodeName']} has no CPU 99.")
        await accessible(page)

        await page.goto(f"{url(runtime)}#/waiting")
        article = page.locator("article.waiting")
        await expect(article.get_by_role("heading", name="default/too-wide")).to_be_visible()
        assert (await page.locator("dl.facts div").all_inner_texts())[:3] == ["Pods\n1", "Shapes\n1", "Groups\n0"]
        await expect(article).to_contain_text("cannot meet NUMA policy SingleNUMANode")
        await expect(article.locator("li[data-kind=size]").first).to_contain_text("8 CPUs instead of 12")
        await expect(article.locator("li[data-kind=size] a").first).to_have_attribute(
            "href", re.compile("#/nodes/own-")
        )
        await accessible(page)

        await page.goto(f"{url(runtime)}#/decisions")
        await expect(page.get_by_role("heading", name="Recent decisions")).to_be_visible()
        row = page.get_by_role("row").filter(has_text="default/engine")
        await expect(row).to_contain_text(bound["spec"]["nodeName"])
        await expect(row.locator("li").first).to_contain_text("score")
        await accessible(page)


async def test_a_pod_is_found_and_its_decision_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scheduling(tmp_path, monkeypatch) as (cluster, runtime), browser_page() as page:
        node = cluster.server.store.get("pods", "engine", "default")["spec"]["nodeName"]
        await page.goto(url(runtime))
        await page.get_by_label("Find a pod").fill("engine")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name=node, exact=True)).to_be_visible()
        await expect(page.locator("a.chosen")).to_have_text("default/engine")
        await accessible(page)
        await page.locator("a.chosen").click()
        await expect(page.get_by_role("row").filter(has_text="default/engine")).to_have_count(1)
        await page.get_by_label("Find a pod").fill("default/")
        await page.keyboard.press("Enter")
        rows = page.get_by_role("region", name="Pods found").locator("tbody tr")
        await expect(rows).to_have_count(2)
        assert [await row.locator("td").all_inner_texts() for row in await rows.all()] == [
            ["default/engine", node],
            ["default/too-wide", "waits"],
        ]
        await accessible(page)
        await page.get_by_label("Find a pod").fill("too-wi")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", level=2)).to_have_text("default/too-wide")
        await expect(page.locator("article.waiting")).to_contain_text("cannot meet NUMA policy SingleNUMANode")
        await accessible(page)
        await page.get_by_label("Find a pod").fill("own-1")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", level=2)).to_have_text("own-1")
        await page.get_by_label("Find a pod").fill("own-")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("2 nodes: own-0, own-1")).to_be_visible()
        await page.get_by_label("Find a pod").fill("absent")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("The scheduler knows no such pod or node")).to_be_visible()


async def test_the_plan_of_a_rebind_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scheduling(tmp_path, monkeypatch) as (cluster, runtime), browser_page() as page:
        node = cluster.server.store.get("pods", "engine", "default")["spec"]["nodeName"]
        move = {"namespace": "default", "name": "engine", "from": "0-5", "to": "4-5,7,12-13,15"}
        rebind = {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "RebindResource",
            "metadata": {"name": "tidy"},
            "spec": {"nodeName": node, "rebindAction": "RebindCPU", "dryRun": True},
        }
        resource = "rebindresources.scheduling.koordinator.sh"
        cluster.server.store.create(rebind)
        await until(lambda: cluster.server.store.get(resource, "tidy").get("status", {}).get("phase") == "Succeed")
        cluster.server.store.patch(resource, "tidy", {"status": {"plan": [move]}}, "", "status")
        await until(lambda: any(one.plan for one in runtime.rebinds.known()))
        await page.goto(f"{url(runtime)}#/nodes/{node}")
        await expect(page.get_by_role("heading", name="After RebindResource tidy (Succeed)")).to_be_visible()
        assert await page.locator("#rebind .cpu.held").all_inner_texts() == ["4", "12", "5", "13", "7", "15"]
        await accessible(page)


async def test_changes_arrive_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koord_numa.app.api.FIRST", 1)
    async with scheduling(tmp_path, monkeypatch) as (cluster, runtime), browser_page() as page:

        async def changed_before(route: Route) -> None:
            await expect(page.get_by_text("1 of 1 node, reading 2 more")).to_be_visible()
            cluster.server.store.patch("nodes", "own-0", {"spec": {"unschedulable": True}})
            info = runtime.scheduler.cache.nodes["own-0"]
            await until(lambda: info.node is not None and info.node.unschedulable)
            await route.continue_()

        # A change after the page has loaded and before its stream opens.
        await page.route("**/api/v1/events", changed_before)
        await page.goto(url(runtime))
        await expect(page.locator("#live")).to_have_text("live")
        await expect(page.get_by_role("link", name=re.compile("own-0, the node is cordoned"))).to_be_visible()
        cluster.server.store.patch("nodes", "own-1", {"spec": {"unschedulable": True}})
        await expect(page.get_by_role("link", name=re.compile("own-1, the node is cordoned"))).to_be_visible()
        cluster.server.store.delete("nodes", "own-1")
        await expect(page.locator("a.node")).to_have_count(2)
        await expect(page.locator("dl.facts div").first).to_have_text("Nodes2")

        await page.goto(f"{url(runtime)}#/waiting")
        await expect(page.get_by_role("heading", name="default/too-wide")).to_be_visible()
        cluster.create([pinned("wider", 14, policy="SingleNUMANode")])
        await expect(page.get_by_role("heading", name="default/wider")).to_be_visible()
        cluster.server.store.delete("pods", "too-wide", "default")
        await expect(page.get_by_role("heading", name="default/too-wide")).to_have_count(0)

        trainers = [pinned(f"train-{number}", 6) for number in range(3)]
        for trainer in trainers:
            trainer["metadata"].setdefault("annotations", {}).update(
                {
                    "gang.scheduling.koordinator.sh/name": "train",
                    "gang.scheduling.koordinator.sh/min-available": "4",
                }
            )
        cluster.create(trainers)
        group = page.locator("article.waiting[data-group='default/train']")
        await expect(group).to_contain_text("3 of 4 pods exist, 0 with a node")
        await expect(page.get_by_role("heading", name="default/train-0")).to_have_count(0)
        await accessible(page)


async def test_the_keyboard_reaches_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scheduling(tmp_path, monkeypatch) as (_, runtime), browser_page() as page:
        await page.goto(url(runtime))
        await expect(page.locator("a.node")).to_have_count(3)
        await page.keyboard.press("/")
        await page.keyboard.type("pool=a")
        await expect(page.locator("a.node")).to_have_count(2)
        await page.keyboard.press("Control+A")
        await page.keyboard.press("Delete")
        await expect(page.locator("a.node")).to_have_count(3)
        await page.locator("a.node").first.focus()
        await page.keyboard.press("ArrowRight")
        focused = await page.evaluate("document.activeElement.closest('li').dataset.at")
        assert focused == "1"
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", level=2)).to_have_text("own-1")
        await page.keyboard.press("2")
        await expect(page.get_by_role("heading", name="Pods that wait")).to_be_visible()


async def test_small_screens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scheduling(tmp_path, monkeypatch) as (_, runtime), browser_page(width=360) as page:
        for view, heading in VIEWS.items():
            await page.goto(f"{url(runtime)}#/{view}")
            await expect(page.get_by_role("heading", level=2)).to_have_text(heading)
            assert (view, await page.evaluate("document.scrollingElement.scrollWidth") <= 360) == (view, True)
            for cores in await page.locator(".cores").all():
                columns = await cores.evaluate("it => getComputedStyle(it).gridTemplateColumns")
                assert len(columns.split()) == 4
            await accessible(page)


def many(count: int) -> dict[str, JsonObject]:
    numa = [
        {
            "id": at,
            "cpus": 64.0,
            "free": 8.0 * at,
            "memory": 1 << 38,
            "freeMemory": 1 << 37,
            "devices": {},
            "fits": 8 * at,
        }
        for at in range(8)
    ]
    nodes = [
        {"name": f"node-{at:05}", "labels": {"pool": f"p{at % 7}"}, "cpusOf": "scheduler", "policy": "", "scope": "pod",
         "state": "ok", "why": "", "numa": numa, "largest": "56 CPU", "pods": 12, "cpus": 512, "freeCPUs": 224}
        for at in range(count)
    ]  # fmt: skip
    totals = {
        "nodes": count,
        "numaNodes": 8 * count,
        "cpus": 512 * count,
        "freeCPUs": 224 * count,
        "largest": "56 CPU",
        "waiting": 0,
    }
    return {"/api/v1/cluster": {"generatedAt": "2026-01-01T00:00:00Z", "summary": totals, "nodes": nodes}}


async def test_thousands_of_nodes_scroll_in_an_offline_file(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    history = {"sampleSeconds": 30, "scheduled": [2, 3], "rejected": [0, 1], "largest": [8, 4]}
    path.write_text(written_page({**many(5000), "/api/v1/history": history}))
    async with browser_page(offline=True) as page:
        await page.goto(path.as_uri())
        await expect(page.locator("figure")).to_contain_text(
            [re.compile("Scheduled 5 in 60 s"), re.compile("Rejected 1 in 60 s"), re.compile("4.8 CPU")]
        )
        await expect(page.get_by_text("5,000 of 5,000 nodes")).to_be_visible()
        assert await page.locator("a.node").count() < 200
        await page.locator(".window").evaluate("pane => { pane.scrollTop = pane.scrollHeight; }")
        await expect(page.get_by_role("link", name=re.compile("node-04999"))).to_be_visible()
        await page.get_by_label("Filter").fill("pool=p3 node-0001")
        await expect(page.locator("a.node b")).to_have_text(["node-00010", "node-00017"])
        await page.reload()
        await expect(page.locator("a.node b")).to_have_text(["node-00010", "node-00017"])


async def test_where_a_request_has_room(tmp_path: Path) -> None:
    documents = many(11)
    for at, node in enumerate(documents["/api/v1/cluster"]["nodes"]):
        node["name"] = f"n-{at}"
        node["numa"] = [numa | {"devices": {"example.com/gpu": {"total": 4, "free": at % 3}}} for numa in node["numa"]]
        if at < 5:
            node["numa"] = [numa | {"fits": 8} for numa in node["numa"]]
    path = tmp_path / "page.html"
    path.write_text(written_page(documents))
    async with browser_page(offline=True) as page:
        await page.goto(f"{path.as_uri()}#/cluster?cpus=24")
        nodes = page.locator("a.node b")
        await expect(nodes).to_have_text([f"n-{at}" for at in range(5, 11)])
        await page.get_by_label("devices").fill("2")
        await expect(nodes).to_have_text(["n-5", "n-8"])
        await expect(page.get_by_label("Color by")).to_have_value("example.com/gpu")
        await expect(nodes.first.locator("xpath=../..").locator(".amounts")).to_have_text(
            "1Ti of 2Ti memory · 16 of 32 gpu"
        )
        await page.get_by_label("GiB memory").fill("200")
        await expect(nodes).to_have_count(0)
        await expect(page.get_by_text("0 of 11 nodes with this room on one NUMA node")).to_be_visible()
        await accessible(page)
        documents["/api/v1/cluster"]["nodes"] = []
        path.write_text(written_page(documents))
        await page.reload()
        await expect(page.get_by_text("No node is known")).to_be_visible()
        await page.goto(f"{path.as_uri()}#/nodes/absent")
        await expect(page.get_by_text("Node absent is not known to this scheduler")).to_be_visible()


async def test_nodes_are_grouped_by_a_label(tmp_path: Path) -> None:
    documents = many(21)
    del documents["/api/v1/cluster"]["nodes"][20]["labels"]["pool"]
    path = tmp_path / "page.html"
    path.write_text(written_page(documents))
    async with browser_page(offline=True) as page:
        await page.goto(path.as_uri())
        await page.get_by_label("Group by").select_option("pool")
        headings = page.locator(".window h3")
        await expect(headings.first).to_have_text("p0 3 nodes, 672 of 1,536 CPUs free")
        await page.reload()
        await expect(headings.first).to_have_text("p0 3 nodes, 672 of 1,536 CPUs free")
        names = await page.locator("a.node b").all_inner_texts()
        assert names[:6] == [f"node-{at:05}" for at in (0, 7, 14, 1, 8, 15)]
        await page.locator("a.node").first.focus()
        for _ in range(3):
            await page.keyboard.press("ArrowRight")
        await expect(page.locator("a.node:focus b")).to_have_text("node-00001")
        await page.locator(".window").evaluate("pane => { pane.scrollTop = pane.scrollHeight; }")
        await expect(headings.last).to_have_text("without the label 1 node, 224 of 512 CPUs free")
        await accessible(page)


def decision(number: int) -> JsonObject:
    return {
        "time": f"2026-01-01T00:{number // 60:02}:{number % 60:02}.000Z", "pod": f"default/pod-{number}", "uid": str(number),
        "node": "node", "numa": [0], "cpus": "0-3", "devices": [], "alignment": "aligned", "score": "7",
        "runnersUp": [{"node": "other", "score": 5, "why": "score 5: shape -2"}],
    }  # fmt: skip


async def test_decisions_are_paged(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    decisions = {"generatedAt": "", "decisions": [decision(number) for number in range(120)]}
    path.write_text(written_page({**many(1), "/api/v1/decisions": decisions}))
    async with browser_page(width=390, offline=True) as page:
        await page.goto(f"{path.as_uri()}#/decisions")
        rows = page.get_by_role("region", name="Recent decisions").locator("tbody tr")
        await expect(rows).to_have_count(50)
        await expect(rows.first.locator("td").nth(1)).to_have_text("default/pod-0")
        await page.get_by_role("link", name="Older").click()
        await expect(rows.first.locator("td").nth(1)).to_have_text("default/pod-50")
        await rows.first.get_by_text("other").first.click()
        await expect(rows.first.get_by_text("score 5: shape -2")).to_be_visible()
        await page.get_by_role("link", name="Older").click()
        await expect(rows).to_have_count(20)
        await expect(page.get_by_role("link", name="Older")).to_have_count(0)
        assert await page.evaluate("document.scrollingElement.scrollWidth") <= 390
        await accessible(page)


def closest(node: str, free: tuple[int, int]) -> JsonObject:
    numa = [
        {"numa": at, "resource": "cpu", "free": amount, "total": 16, "needed": 12, "freeText": f"{amount} CPUs",
         "totalText": "16 CPUs", "neededText": "12 CPUs"}
        for at, amount in enumerate(free)
    ]  # fmt: skip
    return {"node": node, "reason": "numa", "message": "no NUMA node fits", "detail": "", "largest": "", "numa": numa}


async def test_equal_nodes_and_numa_nodes_are_one_entry(tmp_path: Path) -> None:
    shape = {
        "pods": ["default/p"], "count": 1, "group": "", "priority": 0, "asks": "12 CPU", "policies": "-", "qos": "LSR",
        "waitedSeconds": 5, "why": "0/3 nodes are available", "reasons": [], "claims": [], "wouldFit": [],
        "closest": [closest("n-10", (8, 8)), closest("n-3", (8, 4)), closest("n-9", (8, 8))],
    }  # fmt: skip
    path = tmp_path / "page.html"
    waiting = {"generatedAt": "", "groups": [], "classes": [shape], "more": 0}
    path.write_text(written_page({**many(1), "/api/v1/waiting": waiting}))
    async with browser_page(offline=True) as page:
        await page.goto(f"{path.as_uri()}#/waiting?pod=default/p")
        nodes = page.locator("article.waiting details h4")
        await expect(nodes).to_have_text(["n-9, n-10 no NUMA node fits", "n-3 no NUMA node fits"])
        rows = [await row.locator("td").all_inner_texts() for row in await page.locator("tbody tr").all()]
        assert [row[:4] for row in rows] == [
            ["NUMA 0, 1", "cpu", "8 of 16 CPUs", "12 CPUs"],
            ["NUMA 0", "cpu", "8 of 16 CPUs", "12 CPUs"],
            ["NUMA 1", "cpu", "4 of 16 CPUs", "12 CPUs"],
        ]


async def test_no_text_of_an_object_becomes_markup(tmp_path: Path) -> None:
    documents = many(1)
    documents["/api/v1/cluster"]["nodes"][0]["name"] = "</script><img src=x onerror=alert(1)>"
    path = tmp_path / "page.html"
    path.write_text(written_page(documents))
    async with browser_page(offline=True) as page:
        await page.goto(path.as_uri())
        await expect(page.locator("a.node b")).to_have_text("</script><img src=x onerror=alert(1)>")
        assert await page.locator("img").count() == 0


async def test_devices_by_id_and_moves(tmp_path: Path) -> None:
    scheduler = rack().engine
    info = scheduler.cache.nodes["node"]
    entry, details = node_entry(info), node_document(info, scheduler.claims, "2026-01-01T00:00:00Z")
    assert entry is not None
    assert details is not None
    move = DeviceMove(make_pod("p", node="node"), "node", "other", "nvidia.com/gpu", 4)
    cluster = cluster_document([entry], 0, "2026-01-01T00:00:00Z", [move])
    path = tmp_path / "page.html"
    path.write_text(written_page({"/api/v1/cluster": cluster, "/api/v1/nodes/node": details}))
    async with browser_page(offline=True) as page:
        await page.goto(path.as_uri())
        moves = page.get_by_role("list", name="Moves that gather free devices")
        await expect(moves.get_by_role("listitem")).to_have_text([move.text])
        await accessible(page)
        await page.goto(f"{path.as_uri()}#/nodes/node")
        switches = page.get_by_role("region", name="Devices by id").locator("tbody tr")
        await expect(switches).to_have_count(3)
        assert [await row.locator(".device").all_inner_texts() for row in await switches.all()] == [
            ["gpu 0: free", "gpu 1: default/a, default/b, 50 % free", "rdma 0: default/a, 99 % free"],
            ["gpu 2: unhealthy", "rdma 1: free"],
            ["gpu 3: free"],
        ]
        assert await switches.locator("td:nth-child(-n + 2)").all_inner_texts() == [
            "0",
            "a",
            "1",
            "b",
            "\N{EN DASH}",
            "\N{EN DASH}",
        ]
        await expect(page.get_by_text("Free groups of GPUs: 0 of 4, 0 of 2, 2 of 1")).to_be_visible()
        await accessible(page)
