"""The operator as people run it: processes that are started, stopped, killed and doubled. The first test starts the installed programs."""

import asyncio
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM

import pytest

from tests.cluster.objects import until
from tests.e2e.world import BRIEF_LEASE, PROGRAM, World, ended, kopf_watches, mixed_pods, world
from tests.preloaded import Running

pytestmark = pytest.mark.e2e


async def leader_and_standby(cluster: World) -> Running:
    """The process that leads, ``first``; ``second`` runs and has everything that it needs to take over."""
    first = await cluster.schedule(KOORD_NUMA_IDENTITY="first")
    await until(lambda: cluster.holder() == "first")
    await cluster.schedule(KOORD_NUMA_IDENTITY="second")
    await until(lambda: kopf_watches(cluster.server).count("noderesourcetopologies") >= 2)
    return first


async def test_200_pods_on_20_machines(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        cluster.create(mixed_pods(100))
        process = await cluster.schedule(*PROGRAM)
        cluster.create(mixed_pods(200)[100:])
        await until(lambda: not cluster.unbound())
        assert cluster.complaints() == []
        assert set(cluster.binds().values()) == {1}
        assert await ended(process, SIGTERM) == 0
        assert cluster.holder() == ""


async def test_killed_in_the_middle_and_started_again(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        pods = mixed_pods(200)
        cluster.create(pods[:120])
        process = await cluster.schedule()
        await until(lambda: len(cluster.unbound()) < 60)
        await ended(process, SIGKILL)
        left = cluster.unbound()
        cluster.create(pods[120:])
        await cluster.schedule()
        await until(lambda: not cluster.unbound())
        assert left
        assert cluster.complaints() == []
        assert set(cluster.binds().values()) == {1}


async def test_a_stopped_leader_is_followed_at_once(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        first = await leader_and_standby(cluster)
        cluster.create(mixed_pods(20))
        await until(lambda: not cluster.unbound())
        stopping = asyncio.create_task(ended(first, SIGTERM))
        await until(lambda: cluster.holder() == "second")
        cluster.create(mixed_pods(40)[20:])
        await until(lambda: not cluster.unbound())
        assert await stopping == 0
        assert cluster.complaints() == []


async def test_a_killed_leader_is_followed_and_nothing_is_bound_twice(tmp_path: Path) -> None:
    async with world(tmp_path, lease=BRIEF_LEASE) as cluster:
        leader = await leader_and_standby(cluster)
        cluster.create(mixed_pods(200))
        await until(lambda: len(cluster.unbound()) < 150)
        await ended(leader, SIGKILL)
        await until(lambda: not cluster.unbound())
        assert cluster.holder() == "second"
        assert cluster.complaints() == []
        assert set(cluster.binds().values()) == {1}


async def test_a_frozen_leader_does_not_act_when_it_wakes(tmp_path: Path) -> None:
    async with world(tmp_path, lease=BRIEF_LEASE) as cluster:
        frozen = await leader_and_standby(cluster)
        frozen.send_signal(SIGSTOP)
        await until(lambda: cluster.holder() == "second")
        cluster.create(mixed_pods(50))
        frozen.send_signal(SIGCONT)
        await until(lambda: not cluster.unbound())
        assert cluster.complaints() == []
        assert set(cluster.binds().values()) == {1}
