"""A leader that is told to stop while a bind is on its way, longer than it can wait for: nothing is taken back, the lease runs out."""

import asyncio
from pathlib import Path

import pytest

from koord_numa.sandbox.apiserver import Effect, Fault
from tests.cluster.objects import until
from tests.e2e.test_claims import CLAIMS, MACHINES, Devices, pod
from tests.e2e.world import world
from tests.operator.operating import SETTINGS, operating, placed

pytestmark = pytest.mark.e2e

LEASES = "leases.coordination.k8s.io"


async def test_an_interrupted_bind_keeps_reservation_and_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koord_numa.app.runtime.SETTLE", 0.05)
    async with world(tmp_path, MACHINES) as cluster:
        devices = Devices(cluster.server, tmp_path)
        async with operating(cluster.server, tmp_path, monkeypatch) as runtime:
            cluster.create([pod("before", "gpu")])
            await until(lambda: placed(cluster.server, "before"))
            cluster.server.faults.add(Fault(effect=Effect.DELAY, seconds=None, subresource="binding", count=1))
            cluster.create([pod("cut-off", "pair")])
            await until(lambda: sum(asked.subresource == "binding" for asked in cluster.server.requests) == 2)
            await runtime.stop()
            lease = cluster.server.store.get(LEASES, SETTINGS.lease.name, SETTINGS.lease.namespace)
            assert lease["spec"]["holderIdentity"] == runtime.identity
            assert not runtime.lease.fresh()
        [claim] = [it for it in cluster.server.store.list(CLAIMS) if it["metadata"]["name"].startswith("cut-off-")]
        assert [it["name"] for it in claim["status"]["reservedFor"]] == ["cut-off"]
        cluster.server.faults.clear()
        for _ in range(20):  # the bind arrives now, if the server has not given it up with its connection
            await asyncio.sleep(0)
        assert devices.complaints() == []
