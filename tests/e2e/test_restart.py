"""A scheduler that starts again while exporters lag: it knows who runs from the pods, and where there is room only from old topologies."""

from pathlib import Path
from signal import SIGKILL

import pytest

from tests.cluster.objects import until
from tests.e2e.test_rack import answered, could_be_placed
from tests.e2e.world import KUBELET_PAIR, JsonObject, World, ended, pinned, world

pytestmark = pytest.mark.e2e

GPU = "nvidia.com/gpu"
MACHINES = {
    "machines": [
        {
            "name": "kubelet",
            "count": 2,
            **KUBELET_PAIR,
            "devices": {GPU: [0, 1]},
        }
    ]
}
ROOM = 14
"""So many pods of four CPUs fit on both machines: three and four on the NUMA nodes of each."""

WIDE = 14
"""So many CPUs each machine has left when eight such pods run, though not on one NUMA node."""


def pods(*numbers: int) -> list[JsonObject]:
    """Pods of four CPUs; the first four have a device each, and there are no more."""
    found = [pinned(f"pod-{number:02}", 4) for number in numbers]
    for pod in found[: max(0, 4 - numbers[0])]:
        amounts = pod["spec"]["containers"][0]["resources"]
        amounts["limits"] = amounts["requests"] = {**amounts["limits"], GPU: "1"}
    return found


def bound(cluster: World) -> set[str]:
    return {pod["metadata"]["name"] for pod in cluster.server.store.list("pods") if pod["spec"].get("nodeName")}


def full(cluster: World) -> bool:
    """Return true if all pods are placed. Exporters publish meanwhile."""
    cluster.rack.publish()
    return not cluster.unbound()


async def restart(cluster: World) -> None:
    """The scheduler is killed, and another one begins."""
    for process in cluster.schedulers:
        if process.returncode is None:
            await ended(process, SIGKILL)
    await cluster.schedule()


async def test_room_missing_in_old_topologies_is_not_given_away(tmp_path: Path) -> None:
    async with world(tmp_path, MACHINES) as cluster:
        await cluster.schedule()
        cluster.create(pods(*range(8)))
        await until(lambda: not cluster.unbound())
        await restart(cluster)  # topologies still show two empty machines
        cluster.create([pinned("wide-0", WIDE), pinned("wide-1", WIDE)])
        await until(lambda: answered(cluster))
        cluster.create(pods(*range(8, 24)))
        await until(lambda: answered(cluster))
        assert cluster.complaints() == []
        assert 8 < len(bound(cluster)) <= ROOM
        cluster.rack.publish()
        await until(lambda: len(bound(cluster)) == ROOM and answered(cluster))
        assert could_be_placed(cluster) == []
        assert cluster.complaints() == []
        assert set(cluster.binds().values()) == {1}


async def test_room_shown_in_old_topologies_is_given_away_later(tmp_path: Path) -> None:
    async with world(tmp_path, MACHINES) as cluster:
        await cluster.schedule()
        cluster.create(pods(*range(ROOM)))
        await until(lambda: full(cluster))
        for name in ("pod-01", "pod-02", "pod-09"):
            cluster.server.store.delete("pods", name)  # and its topology shows it for a while
        cluster.create(pods(*range(ROOM, ROOM + 8)))
        await restart(cluster)
        await until(lambda: answered(cluster))
        assert len(bound(cluster)) == ROOM - 3
        cluster.rack.publish()
        await until(lambda: len(bound(cluster)) == ROOM and answered(cluster))
        assert could_be_placed(cluster) == []
        assert cluster.complaints() == []
        assert set(cluster.binds().values()) == {1}
