"""Walks for garbage pause while a cluster is read for the first time, and go on whatever happens."""

import asyncio
import gc
from collections.abc import Iterator

import pytest

from koord_numa.app.tasks import LOOK, THRESHOLDS, GarbageCollection


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.enable()
    gc.unfreeze()
    gc.set_threshold(*thresholds)


async def test_walks_begin_with_all_data_and_spare_recent_reads() -> None:
    known: list[bool] = []
    gc.unfreeze()
    GarbageCollection(lambda: bool(known))
    assert gc.get_threshold() == THRESHOLDS
    await asyncio.sleep(2 * LOOK)
    assert not gc.isenabled()
    known.append(True)
    await asyncio.sleep(2 * LOOK)
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0


async def test_walks_begin_after_a_while_despite_missing_data() -> None:
    gc.unfreeze()
    GarbageCollection(lambda: False, longest=LOOK)
    assert not gc.isenabled()
    await asyncio.sleep(3 * LOOK)
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


async def test_walks_go_on_when_the_process_is_about_to_end() -> None:
    collection = GarbageCollection(lambda: False)
    collection.resume()
    assert gc.isenabled()
    await asyncio.sleep(2 * LOOK)
    assert gc.isenabled()
