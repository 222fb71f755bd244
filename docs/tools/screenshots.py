# noqa: INP001  (a script: nothing imports it)
"""
Takes the pictures of the page that the documents show: ``make docs-output``. Nodes and waiting pods are those of
``koord-numa demo``, clusters of 6 and 1,000 nodes those of a sandbox that ``koord-numa run`` has filled.

A browser's pictures differ from machine to machine in single points, so that no test compares them; what the page shows is tested in
``tests/view``.
"""

import asyncio
import json
import random
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from aiohttp import ClientSession
from playwright.async_api import Browser, async_playwright
from regenerate import ROOT, kept_demo, start

IMAGES: Final = ROOT / "docs" / "images"

Shot: TypeAlias = tuple[str, Literal["light", "dark"], int, int]
"""View, color scheme, and width and height in points."""

SHOTS: Final[dict[str, Shot]] = {
    "page-node": ("#/nodes/xeon-1", "dark", 1280, 760),
    "page-phone": ("#/nodes/xeon-0", "dark", 390, 700),
}
"""Pictures of the demo."""

CLUSTERS: Final[dict[str, tuple[int, Shot]]] = {
    "page-6-nodes": (6, ("#/cluster", "light", 1280, 620)),
    "page-1000-nodes": (1000, ("#/cluster?group=topology.kubernetes.io/zone", "dark", 1280, 900)),
}
"""Numbers of nodes of the clusters in the pictures."""

XEON: Final = {"numa": 1, "cores": 24, "memory": "192Gi"}
EPYC: Final = {"numa": 4, "cores": 8, "memory": "96Gi"}
GPU: Final = {"numa": 1, "cores": 32, "memory": "512Gi", "devices": {"nvidia.com/gpu": [0] * 4 + [1] * 4}}
PINNED: Final = {**XEON, "style": "kubelet"}
KINDS: Final[tuple[dict[str, Any], ...]] = (XEON, GPU, PINNED, EPYC, XEON, PINNED)
"""Machines of the nodes, in turn."""

READERS: Final[set[asyncio.Task[bytes]]] = set()
"""Tasks that read the output of commands, so that their pipes never fill up."""

ZONES: Final = 3
PODS_PER_NODE: Final = 5


def machines(nodes: int) -> dict[str, Any]:
    """Return the machine file of a cluster with nodes of every kind in every zone."""
    entries = []
    for number in range(nodes):
        turn, kind = divmod(number, len(KINDS))
        labels = {"topology.kubernetes.io/zone": f"zone-{turn % ZONES + 1}"}
        entries.append({"name": f"worker-{number + 1}", "sockets": 2, "threads": 2, "labels": labels, **KINDS[kind]})
    return {"machines": entries}


def pods(nodes: int) -> dict[str, Any]:
    """Return pods of many sizes that fill most of the cluster, and one that fits nowhere."""
    choose = random.Random(42)  # noqa: S311  (no secret)
    sizes = [choose.choice((4, 8, 12, 16, 16, 24, 30)) for _ in range(PODS_PER_NODE * nodes)]
    items = [pod(f"pod-{number}", cpus, choose.random() < 1 / 8) for number, cpus in enumerate(sizes)]
    return {"apiVersion": "v1", "kind": "List", "items": [*items, pod("too-wide", 100, gpu=False)]}


def pod(name: str, cpus: int, gpu: bool) -> dict[str, Any]:
    """Return a pod with its own CPUs on one NUMA node."""
    amounts = {"cpu": str(cpus), "memory": f"{cpus * 3}Gi", **({"nvidia.com/gpu": "1"} if gpu else {})}
    policy = {"scheduling.koordinator.sh/numa-topology-spec": '{"numaTopologyPolicy":"SingleNUMANode"}'}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"koordinator.sh/qosClass": "LSR"},
            "annotations": policy,
        },
        "spec": {
            "schedulerName": "koord-numa",
            "containers": [{"name": "main", "image": "none", "resources": {"requests": amounts, "limits": amounts}}],
        },
    }


@asynccontextmanager
async def filled(nodes: int, folder: Path) -> AsyncIterator[str]:
    """The URL of the page of a scheduler that has placed all pods that fit."""
    kubeconfig = folder / f"{nodes}.kubeconfig"
    for name, content in (("machines", machines(nodes)), ("pods", pods(nodes))):
        (folder / f"{name}.json").write_text(json.dumps(content))
    files = ("--machines", str(folder / "machines.json"), "--load", str(folder / "pods.json"))
    sandbox = await start("sandbox", *files, "--kubeconfig", str(kubeconfig))
    try:
        await line_with("KUBECONFIG", sandbox)
        scheduler = await start("run", "--no-leader-elect", "--metrics-port", "0", "--kubeconfig", str(kubeconfig))
        try:
            yield await settled(scheduler)
        finally:
            scheduler.terminate()
            await scheduler.wait()
    finally:
        sandbox.terminate()
        await sandbox.wait()


async def settled(scheduler: asyncio.subprocess.Process) -> str:
    """Return the URL of the page when the numbers of placed and waiting pods no longer change."""
    url = (await line_with("serving the page", scheduler)).split()[-1]
    async with ClientSession(url) as session:
        before: dict[str, Any] = {}
        seen: dict[str, Any] = {"waiting": 0}
        while not seen["waiting"] or seen != before:
            await asyncio.sleep(5)
            before = seen
            async with session.get("/api/v1/cluster") as answer:
                seen = (await answer.json())["summary"]
    return url


async def line_with(text: str, process: asyncio.subprocess.Process) -> str:
    """Return the first line of the output that contains the text. Later output is read and dropped."""
    assert process.stdout is not None  # noqa: S101  (a pipe was asked for)
    line = ""
    while text not in line:
        if process.stdout.at_eof():
            raise SystemExit(line)
        line = (await process.stdout.readline()).decode()
    READERS.add(asyncio.create_task(process.stdout.read()))
    return line


async def take(browser: Browser, url: str, name: str, shot: Shot) -> None:
    """Write the picture of one view."""
    view, scheme, width, height = shot
    shown = await browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    await shown.goto(url + view)
    await shown.wait_for_selector("#live:not(:text('loading'))")
    await shown.wait_for_selector("h2")
    await shown.screenshot(path=IMAGES / f"{name}.png")
    await shown.close()


async def main() -> None:
    """Write every picture, where there is a Chromium."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("Chromium is not installed: the pictures of the page stay as they are")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        async with kept_demo() as (_, kubeconfig):
            page = await start("page", "-o", str(path), kubeconfig=kubeconfig)
            await page.communicate()
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
            for name, (nodes, shot) in CLUSTERS.items():
                async with filled(nodes, Path(folder)) as url:
                    await take(browser, f"{url}/", name, shot)
            for name, demo in SHOTS.items():
                await take(browser, path.as_uri(), name, demo)
            shown = await browser.new_page(viewport={"width": 1000, "height": 900})
            await shown.goto(path.as_uri() + "#/waiting")
            article = shown.locator("article.waiting", has=shown.get_by_role("heading", name="default/too-wide"))
            await article.screenshot(path=IMAGES / "page-waiting.png")
            await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
