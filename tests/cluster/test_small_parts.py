"""Pauses, loop lag, and the answers over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from threading import Event

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter

from koord_numa.app.tasks import LoopLag
from koord_numa.cluster.client import Backoff
from koord_numa.cluster.serving import HttpServer, StatusProviders
from koord_numa.settings import BackoffSettings
from tests.cluster.objects import PATIENCE


def test_pauses_double_up_to_a_cap_and_begin_anew() -> None:
    backoff = Backoff(BackoffSettings(initial=1.0, max=5.0), random=lambda: 0.0)
    assert [backoff.pause() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.reset()
    assert backoff.pause() == 1.0


def test_a_pause_is_at_least_what_the_server_asked_for() -> None:
    assert Backoff(random=lambda: 0.0).pause(at_least=7.0) == 7.0


@given(chance=st.floats(0, 1, exclude_max=True), times=st.integers(1, 40))
def test_jitter_only_shortens_and_by_half_at_most(chance: float, times: int) -> None:
    plain, jittered = Backoff(random=lambda: 0.0), Backoff(random=lambda: chance)
    for _ in range(times):
        full = plain.pause()
        assert full / 2 <= jittered.pause() <= full


async def test_a_blocked_loop_is_noticed() -> None:
    told = asyncio.Event()
    lag = LoopLag(lambda seconds: told.set() if seconds > 0.1 else None)
    task = asyncio.create_task(lag.run())
    await asyncio.sleep(0)
    block = asyncio.get_running_loop().time() + 0.5
    while asyncio.get_running_loop().time() < block:
        pass
    await asyncio.wait_for(told.wait(), PATIENCE)
    assert lag.worst > 0.1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class FakeAnswers:
    """Answers that tests change."""

    def __init__(self) -> None:
        self.unhealthy: list[str] = []
        self.not_ready: list[str] = []
        self.warnings: list[str] = []
        self.registry = CollectorRegistry()
        self.nodes = CollectorRegistry()


@pytest.fixture
async def office() -> AsyncIterator[tuple[FakeAnswers, str]]:
    office = FakeAnswers()
    questions = StatusProviders(
        lambda: office.unhealthy,
        lambda: office.not_ready,
        office.registry,
        office.nodes,
        warnings=lambda: office.warnings,
    )
    server = HttpServer(questions, 0, "127.0.0.1")
    await server.start()
    yield office, f"http://127.0.0.1:{server.port}"
    await server.stop()


async def ask(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def test_health_and_readiness_are_two_things(office: tuple[FakeAnswers, str]) -> None:
    answers, url = office
    assert [await ask(f"{url}{path}") for path in ("/healthz", "/livez", "/readyz")] == [(200, "ok\n")] * 3
    answers.not_ready = ["pods are not known yet", "nodes are not known yet"]
    assert await ask(f"{url}/healthz") == (200, "ok\n")
    assert await ask(f"{url}/readyz") == (503, "pods are not known yet\nnodes are not known yet\n")
    answers.not_ready, answers.warnings = [], ["pod a/b: bound by another writer"]
    assert await ask(f"{url}/readyz") == (200, "ok\nwarning: pod a/b: bound by another writer\n")
    answers.unhealthy = ["a task has died"]
    assert await ask(f"{url}/healthz") == (503, "a task has died\n")


async def test_a_stuck_event_loop_fails_the_probe_by_its_silence() -> None:
    registry, started, release, finish = CollectorRegistry(), Event(), Event(), Event()
    server = HttpServer(StatusProviders(list, list, registry, registry), 0, "127.0.0.1")

    async def stuck_for_a_while() -> None:
        await server.start()
        started.set()
        release.wait(PATIENCE)
        await asyncio.to_thread(finish.wait, PATIENCE)
        await server.stop()

    other = asyncio.create_task(asyncio.to_thread(asyncio.run, stuck_for_a_while()))
    assert await asyncio.to_thread(started.wait, PATIENCE)
    url = f"http://127.0.0.1:{server.port}/healthz"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await ask(url)
    release.set()
    assert await ask(url) == (200, "ok\n")
    finish.set()
    await other


async def test_metrics_are_served(office: tuple[FakeAnswers, str]) -> None:
    answers, url = office
    Counter("seen", "Things seen.", registry=answers.registry).inc(3)
    Counter("nodes", "Nodes seen.", registry=answers.nodes).inc(2)
    pages = [await ask(f"{url}{path}") for path in ("/metrics", "/metrics/nodes")]
    assert [(status, "seen_total 3.0" in text, "nodes_total 2.0" in text) for status, text in pages] == [
        (200, True, False),
        (200, False, True),
    ]


async def test_a_port_that_is_taken_is_an_error(office: tuple[FakeAnswers, str]) -> None:
    answers, url = office
    port = int(url.rpartition(":")[2])
    second = HttpServer(StatusProviders(list, list, answers.registry, answers.nodes), port, "127.0.0.1")
    text = f"^cannot listen on port {port}: Address already in use; KOORD_NUMA_METRICS_PORT sets the port$"
    with pytest.raises(OSError, match=text):
        await second.start()
