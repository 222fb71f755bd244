"""A new leader lists ResourceClaims again before it gives devices away."""

from pathlib import Path

import pytest

from koord_numa.sandbox.apiserver import Fault
from tests.cluster.objects import until
from tests.e2e.world import world
from tests.operator.operating import ONE_PAIR, operating


async def test_a_new_leader_lists_claims_after_it_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(tmp_path, ONE_PAIR) as rack, operating(rack.server, tmp_path, monkeypatch) as runtime:
        informer, lister = runtime.informers.claims, runtime.scheduler.claims
        assert informer is not None
        await until(lambda: runtime.lease.fresh() and lister.known)
        assert informer.relists > 1


async def test_only_pods_with_claims_wait_for_a_failing_claim_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, ONE_PAIR) as rack, operating(rack.server, tmp_path, monkeypatch) as runtime:
        lister = runtime.scheduler.claims
        await until(lambda: runtime.lease.fresh() and lister.known)
        rack.server.faults.add(Fault(status=403, resource="resourceclaims"))
        await runtime.lease.release()  # type: ignore[union-attr]  # this process takes part in an election
        await until(lambda: runtime.lease.fresh() and not lister.known)
        rack.server.faults.clear()
        await until(lambda: lister.known)
