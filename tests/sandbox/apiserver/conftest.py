"""A fresh server and a raw client for each test."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from koord_numa.sandbox.apiserver import ApiServer
from tests.sandbox.apiserver.client import Api


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """A running server; bookmarks come quickly."""
    async with ApiServer(bookmark_interval=0.2) as running:
        yield running


@pytest.fixture
async def api(server: ApiServer) -> AsyncIterator[Api]:
    """A client of that server."""
    async with aiohttp.ClientSession(server.url) as session:
        yield Api(session)
