# noqa: INP001  (a script: nothing imports it)
"""
Takes the pictures of the page that the documents show: ``make docs-output``. The page is written from the cluster of ``koord-numa demo``.

A browser's pictures differ from machine to machine in single points, so that no test compares them; what the page shows is tested in
``tests/view``.
"""

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Final

from playwright.async_api import async_playwright
from regenerate import ROOT, look_around, start

IMAGES: Final = ROOT / "docs" / "images"

SHOTS: Final = {
    "page-cluster": ("#/cluster", "light", 1000, 420),
    "page-node": ("#/nodes/xeon-1", "dark", 1000, 760),
    "page-phone": ("#/nodes/xeon-0", "dark", 360, 640),
}
"""For each picture the view, the colour scheme, and width and height in points."""


async def main() -> None:
    """Write every picture, where there is a Chromium."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("Chromium is not installed: the pictures of the page stay as they are")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        async with look_around() as kubeconfig:
            page = await start("page", "-o", str(path), kubeconfig=kubeconfig)
            await page.communicate()
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
            for name, (view, scheme, width, height) in SHOTS.items():
                shown = await browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]  # a literal type
                await shown.goto(path.as_uri() + view)
                await shown.wait_for_selector("h2")
                await shown.screenshot(path=IMAGES / f"{name}.png")
                await shown.close()
            shown = await browser.new_page(viewport={"width": 1000, "height": 900})
            await shown.goto(path.as_uri() + "#/waiting")
            article = shown.locator("article.waiting", has=shown.get_by_role("heading", name="default/too-wide"))
            await article.screenshot(path=IMAGES / "page-waiting.png")
            await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
