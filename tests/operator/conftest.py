"""One simulated machine for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.world import World, world
from tests.operator.operating import ONE_PAIR


@pytest.fixture
async def rack(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path, ONE_PAIR) as made:
        yield made
