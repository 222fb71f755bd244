"""A gang whose scheduler crashes before or after any of its writes: the next scheduler completes it, and nothing is left half."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path

import pytest

from koord_numa.sandbox.apiserver import Effect, Fault
from koord_numa.settings import PodSource
from tests.cluster.objects import until
from tests.e2e.test_claims import Devices
from tests.e2e.test_gangs import MACHINES, OPTIONAL
from tests.e2e.world import CRDS, JsonObject, World, pinned, world
from tests.operator.operating import operating

pytestmark = [pytest.mark.chaos, pytest.mark.e2e]

SIZE = 3
FULL = 1000
"""Pods of a run of ``make chaos``, at least."""
WRITES = {"verb": "create,update,patch,delete", "resource": "pods,resourceclaims,podgroups"}
"""Fault filter that matches the writes of a scheduler about a gang."""


def objects(name: str) -> list[JsonObject]:
    """A PodGroup and its pods, with a claim each."""
    metadata = {"name": name, "namespace": "default"}
    spec = {"schedulingPolicy": {"gang": {"minCount": SIZE}}}
    made: list[JsonObject] = [
        {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": metadata, "spec": spec}
    ]
    for index in range(SIZE):
        pod = pinned(f"{name}-{index}", 2, policy="SingleNUMANode")
        pod["spec"]["schedulingGroup"] = {"podGroupName": name}
        pod["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimTemplateName": "gpu"}]
        pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "c"}]
        made.append(pod)
    return made


class Crashes:
    """A cluster in which gangs are scheduled by operators that end abruptly."""

    def __init__(self, cluster: World, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster, self.folder, self.monkeypatch = cluster, folder, monkeypatch

    @asynccontextmanager
    async def scheduler(self) -> AsyncIterator[None]:
        with self.monkeypatch.context() as patch:
            async with operating(self.cluster.server, self.folder, patch, pods=PodSource.INFORMER):
                yield

    def bound(self, name: str) -> int:
        pods = self.cluster.server.store.list("pods")
        return sum(bool(it["spec"].get("nodeName")) for it in pods if it["metadata"]["name"].startswith(f"{name}-"))

    def is_told(self, name: str) -> bool:
        status = self.cluster.server.store.get("podgroups.scheduling.k8s.io", name, "default").get("status") or {}
        return any(it["status"] == "True" for it in status.get("conditions") or ())

    async def writes(self) -> int:
        """Count the writes of a gang without a crash."""
        counter = self.cluster.server.faults.add(Fault(effect=Effect.DELAY, **WRITES))
        async with self.scheduler():
            self.create("whole")
            await until(lambda: self.bound("whole") == SIZE and self.is_told("whole"))
        found = self.cluster.server.faults.hits(counter)
        self.cluster.server.faults.clear()
        self.delete()
        return found

    async def crash(self, name: str, write: int, *, after: bool) -> None:
        """Schedule a gang. Nothing is written from this write on, or after it."""
        faults = self.cluster.server.faults
        self.create(name)
        lost = faults.add(Fault(effect=Effect.LOSE_ANSWER, skip=write, count=1, **WRITES)) if after else 0
        dropped = faults.add(Fault(effect=Effect.DROP, skip=write + after, **WRITES))
        async with self.scheduler():
            await until(lambda: faults.hits(lost if after else dropped) > 0)
        faults.clear()
        async with self.scheduler():
            await until(lambda: self.bound(name) == SIZE)

    def create(self, name: str) -> None:
        for each in objects(name):
            self.cluster.server.store.create(each)

    def delete(self) -> None:
        for kind in ("pods", "podgroups.scheduling.k8s.io"):
            for each in self.cluster.server.store.list(kind):
                self.cluster.server.store.delete(kind, each["metadata"]["name"], each["metadata"]["namespace"])


async def test_a_crash_at_any_write_leaves_no_partial_gang(
    chaos_pods: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if chaos_pods < FULL:
        pytest.skip("dozens of restarts, which make chaos runs")
    async with world(tmp_path, MACHINES, crds=(*CRDS, *OPTIONAL)) as cluster:
        devices = Devices(cluster.server, tmp_path, MACHINES, claims_cpus=False)
        crashes = Crashes(cluster, tmp_path, monkeypatch)
        count = await crashes.writes()
        assert count >= 3 * SIZE  # allocation, bind and status at least
        for write, after in product(range(count), (False, True)):
            await crashes.crash(f"w{write}{'b' if after else 'a'}", write, after=after)
            assert cluster.complaints() == []
            assert devices.complaints() == []
            crashes.delete()
