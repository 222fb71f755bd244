"""Never two leaders, and soon a new one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from koord_numa.cluster.client import Api
from koord_numa.cluster.leader_election import LeaderElection, LeaseConfig, NoElection
from koord_numa.ports import ClusterError
from koord_numa.sandbox.apiserver import ApiServer, Effect, Fault
from tests.cluster.objects import PATIENCE, JsonObject, until

LEASES = "leases.coordination.k8s.io"


class FakeTime:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def term(identity: str) -> LeaseConfig:
    return LeaseConfig("elect", "kube-system", identity, duration=15, renew=10, retry=2, look=0.01, settle=0.0)


def steady(identity: str) -> LeaseConfig:
    """Soon elected, and not soon lost."""
    return LeaseConfig("elect", "kube-system", identity, duration=60, renew=45, retry=0.1, look=0.05, settle=0.05)


def quick(identity: str) -> LeaseConfig:
    """Soon elected and soon lost."""
    return LeaseConfig("elect", "kube-system", identity, duration=1.0, renew=0.6, retry=0.1, look=0.05, settle=0.05)


def record(server: ApiServer) -> JsonObject:
    spec: JsonObject = server.store.get(LEASES, "elect", "kube-system")["spec"]
    return spec


@asynccontextmanager
async def running(election: LeaderElection) -> AsyncIterator[LeaderElection]:
    task = asyncio.create_task(election.run())
    try:
        yield election
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


async def test_the_first_leads_at_once(server: ApiServer, api: Api, time: FakeTime) -> None:
    election = LeaderElection(api, term("a"), time)
    assert not election.fresh()
    await election._try(time())
    assert (election.fresh(), election.holder) == (True, "a")
    assert record(server)["holderIdentity"] == "a"


async def test_a_new_leader_lets_its_watches_catch_up(api: Api, time: FakeTime) -> None:
    election = LeaderElection(api, LeaseConfig("elect", "kube-system", "a", settle=0.3), time)
    await election._try(time())
    assert not election.fresh()
    time.now += 0.3
    assert election.fresh()


async def test_freshness_ends_before_the_lease_does(api: Api, time: FakeTime) -> None:
    election = LeaderElection(api, term("a"), time)
    await election._try(time())
    time.now += 9.99
    assert election.fresh()
    time.now += 0.01
    assert not election.fresh()


async def test_time_counts_from_before_the_request(api: Api, time: FakeTime) -> None:
    election = LeaderElection(api, term("a"), time)
    begun = time()
    time.now += 6
    await election._try(begun)
    time.now += 4
    assert not election.fresh()


async def test_a_renewed_lease_is_not_taken(server: ApiServer, api: Api, time: FakeTime) -> None:
    first, second = LeaderElection(api, term("a"), time), LeaderElection(api, term("b"), time)
    await first._try(time())
    for _ in range(10):
        time.now += 5
        await first._try(time())
        await second._try(time())
        assert (first.fresh(), second.fresh()) == (True, False)
    assert record(server)["leaseTransitions"] == 0


async def test_a_lease_that_is_not_renewed_is_taken_after_its_duration(
    server: ApiServer, api: Api, time: FakeTime
) -> None:
    first, second = LeaderElection(api, term("a"), time), LeaderElection(api, term("b"), time)
    await first._try(time())
    await second._try(time())
    time.now += 14.9
    await second._try(time())
    assert (first.fresh(), second.fresh()) == (False, False)
    time.now += 0.1
    await second._try(time())
    assert (first.fresh(), second.fresh()) == (False, True)
    assert (record(server)["holderIdentity"], record(server)["leaseTransitions"]) == ("b", 1)


async def test_a_frozen_leader_finds_out_by_itself(api: Api) -> None:
    frozen, other = FakeTime(), FakeTime()
    first, second = LeaderElection(api, term("a"), frozen), LeaderElection(api, term("b"), other)
    await first._try(frozen())
    await second._try(other())
    other.now += 15
    await second._try(other())
    frozen.now += 16
    assert (first.fresh(), second.fresh()) == (False, True)
    await first._try(frozen())
    assert (first.fresh(), first.holder) == (False, "b")


async def test_another_machines_clock_is_never_trusted(server: ApiServer, api: Api, time: FakeTime) -> None:
    first = LeaderElection(api, term("a"), time)
    await first._try(time())
    server.store.patch(LEASES, "elect", {"spec": {"renewTime": "2001-01-01T00:00:00.000000Z"}}, "kube-system")
    second = LeaderElection(api, term("b"), time)
    await second._try(time())
    assert not second.fresh()


async def test_a_release_lets_the_other_lead_at_once(server: ApiServer, api: Api, time: FakeTime) -> None:
    first, second = LeaderElection(api, term("a"), time), LeaderElection(api, term("b"), time)
    await first._try(time())
    await second._try(time())
    await first.release()
    await second._try(time())
    assert (first.fresh(), second.fresh()) == (False, True)


async def test_a_release_after_a_renewal_whose_answer_never_came(server: ApiServer, api: Api, time: FakeTime) -> None:
    election = LeaderElection(api, term("a"), time)
    await election._try(time())
    server.store.patch(LEASES, "elect", {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}}, "kube-system")
    await election.release()
    assert record(server)["holderIdentity"] == ""


async def test_a_release_after_a_first_claim_whose_answer_never_came(
    server: ApiServer, api: Api, time: FakeTime
) -> None:
    election = LeaderElection(api, term("a"), time)
    server.faults.add(Fault(effect=Effect.LOSE_ANSWER, verb="create", count=1))
    with pytest.raises(ClusterError):
        await election._try(time())
    assert record(server)["holderIdentity"] == "a"
    await election.release()
    assert record(server)["holderIdentity"] == ""


async def test_a_release_leaves_the_lease_of_another_holder(server: ApiServer, api: Api, time: FakeTime) -> None:
    election = LeaderElection(api, term("a"), time)
    await election._try(time())
    server.store.patch(LEASES, "elect", {"spec": {"holderIdentity": "b"}}, "kube-system")
    await election.release()
    assert (record(server)["holderIdentity"], election.fresh()) == ("b", False)


async def test_a_standby_releases_nothing(server: ApiServer, api: Api, time: FakeTime) -> None:
    first, second = LeaderElection(api, term("a"), time), LeaderElection(api, term("b"), time)
    await first._try(time())
    await second._try(time())
    await second.release()
    assert record(server)["holderIdentity"] == "a"


async def test_of_two_candidates_one_wins(server: ApiServer, api: Api, time: FakeTime) -> None:
    elections = [LeaderElection(api, term(name), time) for name in "abcdefgh"]
    await asyncio.gather(*(election._try(time()) for election in elections))
    assert sum(election.fresh() for election in elections) == 1


async def test_a_renewal_whose_answer_was_lost(server: ApiServer, api: Api, time: FakeTime) -> None:
    election = LeaderElection(api, term("a"), time)
    await election._try(time())
    lost = server.faults.add(Fault(effect=Effect.LOSE_ANSWER, verb="update", count=1))
    time.now += 5
    async with running(election):
        await until(lambda: election._until == time.now + 10)
    assert server.faults.hits(lost) == 1
    assert (election.fresh(), election.transitions, record(server)["leaseTransitions"]) == (True, 1, 0)


async def test_a_deleted_lease_is_created_again(server: ApiServer, api: Api, time: FakeTime) -> None:
    election = LeaderElection(api, term("a"), time)
    await election._try(time())
    server.store.delete(LEASES, "elect", "kube-system")
    await election._try(time())
    assert (election.fresh(), record(server)["holderIdentity"]) == (True, "a")


async def test_a_missing_right_is_named(server: ApiServer, api: Api) -> None:
    server.faults.add(Fault(status=403, resource="leases"))
    async with running(LeaderElection(api, steady("a"))) as election:
        await until(lambda: "get leases.coordination.k8s.io" in election.problem)
        assert not election.fresh()
        server.faults.clear()
        await until(election.fresh)
        assert election.problem == ""


async def test_an_outage_ends_leadership_and_it_comes_back(server: ApiServer, api: Api) -> None:
    async with running(LeaderElection(api, quick("a"))) as election:
        await until(election.fresh)
        await server.suspend()
        await until(lambda: not election.fresh())
        await server.start()
        await until(election.fresh)


async def test_the_elected_candidate_is_told(server: ApiServer, api: Api) -> None:
    told: list[bool] = []
    election = LeaderElection(api, steady("a"), elected=lambda: told.append(election.fresh()))
    async with running(election):
        await until(lambda: told)
    assert told == [True]


async def test_a_new_leader_catches_up_before_it_acts(server: ApiServer, api: Api) -> None:
    caught_up = asyncio.Event()
    election = LeaderElection(api, steady("a"), prepare=lambda: waited(caught_up))
    async with running(election):
        await until(lambda: election.holder == "a" and record(server)["renewTime"] != record(server)["acquireTime"])
        assert not election.fresh()
        caught_up.set()
        await until(election.fresh)


async def test_a_candidate_that_loses_the_lease_does_not_act(server: ApiServer, api: Api) -> None:
    caught_up = asyncio.Event()
    election = LeaderElection(api, steady("a"), prepare=lambda: waited(caught_up))
    async with running(election):
        await until(lambda: election.holder == "a")
        await election.release()
        caught_up.set()
        assert not election.fresh()


async def test_an_exception_while_catching_up_ends_the_process(server: ApiServer, api: Api) -> None:
    async def broken() -> None:
        raise ZeroDivisionError("a bug")

    election = LeaderElection(api, steady("a"), prepare=broken)
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(election.run(), PATIENCE)
    assert not election.fresh()


async def waited(event: asyncio.Event) -> None:
    await event.wait()


async def test_never_two_at_once_while_requests_fail(server: ApiServer, tmp_path: Path) -> None:
    server.faults.add(Fault(status=503, resource="leases", probability=0.2, seed=1))
    server.faults.add(Fault(effect=Effect.LOSE_ANSWER, resource="leases", probability=0.1, seed=2))
    server.faults.add(Fault(effect=Effect.DELAY, seconds=0.4, resource="leases", probability=0.2, seed=3))
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    leaders: set[str] = set()
    async with await Api.connect(kubeconfig) as one, await Api.connect(kubeconfig) as two:
        elections = [LeaderElection(one, quick("a")), LeaderElection(two, quick("b"))]
        async with running(elections[0]), running(elections[1]):
            looks = 0
            async with asyncio.timeout(PATIENCE):
                while looks < 250 or not leaders:
                    fresh = [election.config.identity for election in elections if election.fresh()]
                    assert len(fresh) <= 1
                    leaders.update(fresh)
                    looks += 1
                    await asyncio.sleep(0.01)


def test_alone_is_always_fresh() -> None:
    assert NoElection().fresh()
