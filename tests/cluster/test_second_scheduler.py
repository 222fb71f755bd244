"""A second acting scheduler of the same names is noticed, wherever it keeps its Lease, and no write outlives the lease."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from koord_numa.cluster.client import Api
from koord_numa.cluster.leader_election import LeaderElection, LeaseConfig, LeaseConflicts, NoElection, Rival
from koord_numa.cluster.writers import ApiBinder, ApiRebindWriter
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.rebind.plan import PodRevision
from koord_numa.ports import NotLeader, UnknownOutcome
from koord_numa.sandbox.apiserver import ApiServer, Effect, Fault
from koord_numa.wire.pods import parse_pod
from tests.cluster.objects import pod
from tests.cluster.test_leader_election import LEASES, FakeTime

NAMES = ("koord-numa", "packing")


def config(namespace: str, identity: str, names: tuple[str, ...] = NAMES) -> LeaseConfig:
    return LeaseConfig("koord-numa", namespace, identity, settle=0.0, scheduler_names=names)


async def hold(api: Api, config: LeaseConfig) -> LeaderElection:
    """Become the holder of a lease."""
    time = FakeTime()
    election = LeaderElection(api, config, time)
    await election._try(time())
    assert election.fresh()
    return election


@pytest.fixture
def found() -> list[Rival]:
    return []


async def test_a_second_scheduler_with_another_lease_is_noticed(api: Api, found: list[Rival]) -> None:
    ours = config("koord-numa", "a")
    await hold(api, ours)
    await hold(api, config("kube-system", "b", ("packing",)))
    conflicts = LeaseConflicts(api, ours, found.append)
    await conflicts.look()
    await conflicts.look()
    assert found == [*conflicts.rivals] == [Rival("kube-system", "koord-numa", "b", ("packing",))]
    assert "b holds lease kube-system/koord-numa" in str(found[0])


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"holderIdentity": ""}, id="released"),
        pytest.param({"renewTime": "2001-01-01T00:00:00.000000Z"}, id="held long ago"),
        pytest.param({"renewTime": None}, id="without a time"),
    ],
)
async def test_a_lease_that_is_not_held_is_no_second_scheduler(
    server: ApiServer, api: Api, found: list[Rival], spec: dict[str, str | None]
) -> None:
    await hold(api, config("kube-system", "b"))
    server.store.patch(LEASES, "koord-numa", {"spec": spec}, "kube-system")
    conflicts = LeaseConflicts(api, config("koord-numa", "a"), found.append)
    await conflicts.look()
    assert (conflicts.rivals, found) == ((), [])


async def test_schedulers_of_other_names_are_no_rivals(api: Api, found: list[Rival]) -> None:
    await hold(api, config("kube-system", "b", ("another",)))
    conflicts = LeaseConflicts(api, config("koord-numa", "a"), found.append)
    await conflicts.look()
    assert found == []


async def test_a_rival_with_another_clock_is_noticed_by_its_renewals(
    server: ApiServer, api: Api, found: list[Rival]
) -> None:
    await hold(api, config("kube-system", "b"))
    time = FakeTime()
    conflicts = LeaseConflicts(api, config("koord-numa", "a"), found.append, time)
    for renewed in ("2001-01-01T00:00:00.000000Z", "2001-01-01T00:00:10.000000Z"):
        server.store.patch(LEASES, "koord-numa", {"spec": {"renewTime": renewed}}, "kube-system")
        await conflicts.look()
        time.now += 10
    assert len(found) == 1
    time.now += 10
    await conflicts.look()
    assert conflicts.rivals == ()


async def test_a_missing_namespace_is_made_for_the_lease(server: ApiServer, api: Api) -> None:
    assert server.store.find("namespaces", "koord-numa", "") is None
    await hold(api, config("koord-numa", "a"))
    assert server.store.get(LEASES, "koord-numa", "koord-numa")["spec"]["holderIdentity"] == "a"


async def test_the_reserve_of_a_lease_is_what_remains_for_writes(api: Api) -> None:
    time = FakeTime()
    election = LeaderElection(api, config("kube-system", "a"), time)
    assert election.remaining() <= 0
    await election._try(time())
    assert election.remaining() == 15.0
    time.now += 9.0
    assert election.remaining() == 6.0
    time.now += 1.0
    assert election.remaining() <= 0
    assert NoElection().remaining() == float("inf")


def left(seconds: float) -> Callable[[], float]:
    return lambda: seconds


async def test_a_bind_that_cannot_end_before_the_lease_is_not_sent(server: ApiServer, api: Api) -> None:
    key = parse_pod(server.store.create(pod("a"))).key
    with pytest.raises(NotLeader, match="the lease ends in 0"):
        await ApiBinder(api, left(0.2)).bind(key, "n", {})
    assert not [asked for asked in server.requests if asked.subresource == "binding"]


async def test_a_bind_delayed_beyond_the_lease_is_not_executed(server: ApiServer, tmp_path: Path) -> None:
    key = parse_pod(server.store.create(pod("a"))).key
    server.faults.add(Fault(effect=Effect.DELAY, subresource="binding", seconds=None))
    async with await Api.connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as api:
        with pytest.raises(UnknownOutcome):
            await ApiBinder(api, left(0.8)).bind(key, "n", {"x": "1"})
        read: Any = (await ApiBinder(api, left(0.8)).read_pod(key)).node
        assert read == ""
    (asked,) = [asked for asked in server.requests if asked.subresource == "binding"]
    assert asked.status != 201


@pytest.mark.parametrize("connected", [False, True])
async def test_a_bind_of_a_suspended_process_is_withheld(server: ApiServer, api: Api, connected: bool) -> None:
    """Its deadline is set, then the lease ends: the server would count the deadline from when the bind arrives."""
    key = parse_pod(server.store.create(pod("a"))).key
    if connected:
        await ApiBinder(api).read_pod(key)
    looks = iter([10.0, 0.1])
    with pytest.raises(NotLeader, match="ended before the request could be sent"):
        await ApiBinder(api, lambda: next(looks)).bind(key, "n", {})
    assert (await ApiBinder(api).read_pod(key)).node == ""
    assert not api.cut_off


@pytest.mark.parametrize(
    ("remaining", "promised"), [(10.0, "9000ms"), (7.77, "6900ms"), (0.5, "400ms"), (60.0, "15000ms")]
)
async def test_the_server_is_promised_less_than_the_lease_has_left(
    server: ApiServer, api: Api, remaining: float, promised: str
) -> None:
    key = parse_pod(server.store.create(pod("a"))).key
    await ApiBinder(api, left(remaining)).bind(key, "n", {})
    (asked,) = [asked for asked in server.requests if asked.subresource == "binding"]
    assert f"timeout={promised}" in asked.query


async def test_new_cpus_for_a_placed_pod_are_fenced_as_well(server: ApiServer, api: Api) -> None:
    found = parse_pod(server.store.create(pod("a", node="n")))
    with pytest.raises(NotLeader):
        await ApiRebindWriter(api, left(0.1)).patch_cpus(PodRevision(found, "{}"), CpuSet(1))
