"""The operator as people run it: processes that are started, stopped, killed and doubled. The first test starts the installed programs."""

import asyncio
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM

import pytest

from tests.cluster.objects import until
from tests.e2e.world import BIN, BRIEF_LEASE, PROGRAM, World, ended, kopf_watches, mixed_pods, world
from tests.preloaded import Running

pytestmark = pytest.mark.e2e

KOPF_RUN = (str(BIN / "kopf"), "run", "--all-namespaces", "--quiet", "-m", "koord_numa.operator")


def holder(cluster: World) -> str:
    lease = cluster.server.store.find("leases.coordination.k8s.io", "koord-numa", "koord-numa")
    return str(lease["spec"]["holderIdentity"]) if lease else ""


async def leader_and_standby(cluster: World) -> Running:
    """The process that leads, ``first``; ``second`` runs and has everything that it needs to take over."""
    first = await cluster.schedule(KOORD_NUMA_IDENTITY="first")
    await until(lambda: holder(cluster) == "first")
    await cluster.schedule(KOORD_NUMA_IDENTITY="second")
    await until(lambda: kopf_watches(cluster.server).count("noderesourcetopologies") >= 2)
    return first


@pytest.mark.parametrize("command", [pytest.param(PROGRAM, id="koord-numa run"), pytest.param(KOPF_RUN, id="kopf run")])
async def test_200_pods_on_20_machines(tmp_path: Path, command: tuple[str, ...]) -> None:
    async with world(tmp_path) as cluster:
        cluster.create(mixed_pods(100))
        process = await cluster.schedule(*command)
        cluster.create(mixed_pods(200)[100:])
        await until(lambda: not cluster.unbound())
        assert cluster.complaints() == []
        assert set(cluster.binds().values()) == {1}
        assert await ended(process, SIGTERM) == 0
        assert holder(cluster) == ""


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


async def test_the_same_run_twice_gives_the_same_placement(tmp_path: Path) -> None:
    """By processes with nothing in common: their hashes have other seeds, so that their sets have other orders."""
    placements = []
    for attempt in ("first", "second"):
        folder = tmp_path / attempt
        folder.mkdir()
        async with world(folder) as cluster:
            cluster.create(mixed_pods(60))
            await cluster.schedule(*PROGRAM)
            await until(lambda: not cluster.unbound())
            placements.append(
                {
                    pod["metadata"]["name"]: (
                        pod["spec"]["nodeName"],
                        pod["metadata"].get("annotations", {}).get("scheduling.koordinator.sh/resource-status"),
                    )
                    for pod in cluster.server.store.list("pods")
                }
            )
    assert placements[0] == placements[1]


async def test_a_stopped_leader_is_followed_at_once(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        first = await leader_and_standby(cluster)
        cluster.create(mixed_pods(20))
        await until(lambda: not cluster.unbound())
        stopping = asyncio.create_task(ended(first, SIGTERM))
        await until(lambda: holder(cluster) == "second")
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
        assert holder(cluster) == "second"
        assert cluster.complaints() == []
        assert set(cluster.binds().values()) == {1}


async def test_a_frozen_leader_does_not_act_when_it_wakes(tmp_path: Path) -> None:
    async with world(tmp_path, lease=BRIEF_LEASE) as cluster:
        frozen = await leader_and_standby(cluster)
        frozen.send_signal(SIGSTOP)
        await until(lambda: holder(cluster) == "second")
        cluster.create(mixed_pods(50))
        frozen.send_signal(SIGCONT)
        await until(lambda: not cluster.unbound())
        assert cluster.complaints() == []
        assert set(cluster.binds().values()) == {1}
