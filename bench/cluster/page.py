"""
The page in a headless Chromium: 5,000 nodes of eight NUMA nodes, 20 MB of state, served over HTTP as the scheduler serves it.

``page first paint`` is the browser's first contentful paint; ``page first nodes`` is when nodes of the cluster can be read.
"""

import asyncio
import shutil
from collections.abc import Iterator
from typing import Any, Final

import orjson
from aiohttp import web

from bench.figure import Figure, NotMeasurableError
from koord_numa.app.api import FIRST
from koord_numa.view import Document
from koord_numa.view.documents import cluster_document
from koord_numa.view.page import served_page

NODES: Final = 5000
NUMA: Final = 8
LABELS: Final = 60
"""So many labels on each node make 20 MB of state."""

TURNS: Final = 3


def cluster(limit: int = NODES) -> Document:
    """``/api/v1/cluster`` of the scale above, or its first nodes."""
    numa = [
        {"id": at, "cpus": 64, "free": 8 * at, "memory": 1 << 38, "freeMemory": 1 << 37, "devices": {}, "fits": 8 * at}
        for at in range(NUMA)
    ]
    labels = {f"example.org/label-{at}": "x" * 24 for at in range(LABELS)}
    common = {
        "cpusOf": "scheduler",
        "policy": "",
        "scope": "pod",
        "state": "ok",
        "why": "",
        "largest": "56 CPU",
        "pods": 12,
        "cpus": 64.0 * NUMA,
        "freeCPUs": 32.0 * NUMA,
    }
    nodes = [{"name": f"node-{at:05}", "labels": labels, "numa": numa, **common} for at in range(NODES)]
    return cluster_document(nodes[:limit], 0, "2026-01-01T00:00:00Z", more=NODES - limit)


OBSERVER: Final = """
new MutationObserver((_, observer) => {
  if (!document.querySelector("a.node")) return;
  window.firstNodes = performance.now();
  observer.disconnect();
}).observe(document, { childList: true, subtree: true });
"""
"""Records when nodes are in the document. A question from outside would wait until the page has read its whole state."""


async def first_paint(body: bytes, chromium: str) -> tuple[float, float]:
    # The best: a shared machine makes turns slower, never faster.
    """Seconds to the first contentful paint and to the first nodes, the best of some turns in fresh contexts."""
    from playwright.async_api import async_playwright  # noqa: PLC0415  (only here, and only where there is a browser)

    async def page(_: web.Request) -> web.Response:
        return web.Response(text=served_page("n", cluster(FIRST)), content_type="text/html")

    async def state(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    async def events(_: web.Request) -> web.Response:
        return web.Response(status=204)  # the page does not try again then

    application = web.Application()
    application.add_routes([web.get("/", page), web.get("/api/v1/cluster", state), web.get("/api/v1/events", events)])
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    try:
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
            found = [await _turn(browser, url) for _ in range(TURNS)]
            await browser.close()
    finally:
        await runner.cleanup()
    return min(paint for paint, _ in found), min(nodes for _, nodes in found)


async def _turn(browser: Any, url: str) -> tuple[float, float]:
    # A fresh context has no cache and no stored state.
    context = await browser.new_context()
    page = await context.new_page()
    await page.add_init_script(OBSERVER)
    # `commit`, not `load`: the nodes come while the page is still loading its state.
    await page.goto(url, wait_until="commit")
    await page.wait_for_selector("a.node")
    paint = await page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    nodes = await page.evaluate("window.firstNodes")
    await context.close()
    return paint / 1000, nodes / 1000


def figures() -> Iterator[Figure]:
    """Both, against one second."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise NotMeasurableError("Chromium is not installed")
    body = orjson.dumps(cluster())
    paint, nodes = asyncio.run(first_paint(body, chromium))
    note = f"{NODES} nodes, {len(body) / 1e6:.1f} MB"
    yield Figure("page first paint", paint, "s", 1.0, note=note)
    yield Figure("page first nodes", nodes, "s", 1.0, note=note)
