"""Debian's Chromium without a screen, driven by Playwright; tests are skipped with a reason where it is not installed."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, async_playwright, expect

from tests.cluster.objects import PATIENCE

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (apt-get install chromium)")

in_chromium: Final = (
    needs_chromium,
    pytest.mark.usefixtures("chromium"),
    pytest.mark.asyncio(loop_scope="session"),
)
"""Marks of tests that use ``browser_page``; their module has the fixture ``chromium``, too."""

_STARTED: Final[list[Browser]] = []

RULES: Final = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}}
"""axe-core's rules for levels A and AA."""


LONGEST: Final = PATIENCE
"""Seconds after which a test in the browser fails. Playwright evaluates scripts, and opens and closes pages, without a limit."""

ANSWER: Final = LONGEST / 3
"""Maximum seconds for one step: less than ``LONGEST``, so that a failure names the step."""


@asynccontextmanager
async def answering(what: str, seconds: float = ANSWER) -> AsyncIterator[None]:
    """Fail if Chromium does not answer in the block."""
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError:
        if limit.expired():
            pytest.fail(f"Chromium gave no answer within {seconds:.0f} s: {what}")
        raise


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[None]:
    """One browser for all tests of a process, in their one event loop: a start takes longer than most of these tests."""
    # Each module has a fixture of its own; the browser of the first one is closed last.
    if _STARTED:
        yield
        return
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        _STARTED.append(browser)
        yield
        _STARTED.remove(browser)
        async with answering("close the browser"):
            await browser.close()


@asynccontextmanager
async def browser_page(width: int = 1280, scheme: str = "light", *, offline: bool = False) -> AsyncIterator[Page]:
    """A page that shares nothing with others. Errors of its script, and requests to other hosts, fail the test at the end."""
    wrong: list[str] = []
    options: dict[str, Any] = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme, "offline": offline}
    async with answering("open a page"):
        context = await _STARTED[-1].new_context(**options)
        page = await context.new_page()
    page.set_default_timeout(1000 * ANSWER)
    expect.set_options(timeout=1000 * ANSWER)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    try:
        async with answering("the test", LONGEST):
            yield page
    finally:
        async with answering("close the page"):
            await context.close()
    assert wrong == []


async def violations(page: Page) -> list[str]:
    """Return the violations that axe-core finds on the page, a line each."""
    found = (await Axe().run(page, options=RULES)).response["violations"]
    return [f"{one['id']}: {node['html'][:120]}" for one in found for node in one["nodes"]]
