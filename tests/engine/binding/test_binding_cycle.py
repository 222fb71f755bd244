"""Every way in which the API server may answer a bind: what is given back, asked again, and told."""

import asyncio

import pytest

from koord_numa.core.objects.constraints import Constraints, LabelSelector, Operator, PodTerm, Requirement
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.value_objects import replace
from koord_numa.engine.binding.binding_cycle import OUTAGE
from koord_numa.ports import ClusterError, Conflict, Forbidden, Gone, Invalid, Unavailable, UnknownOutcome
from tests.cluster.objects import until
from tests.engine.failures import raise_once
from tests.engine.world import bound, make_node, make_pod, make_world


@pytest.mark.parametrize(
    ("failure", "retried_after"),
    [
        (Unavailable("overload"), 0.1),
        (Unavailable("overload", retry_after=7.0), 7.0),
        (Conflict("changed"), 0.1),
        (Forbidden("no", "create pods/binding"), 1.0),
        (Invalid("bad"), 1.0),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
async def test_a_failed_bind_gives_back_and_tries_later(failure: ClusterError, retried_after: float) -> None:
    world = make_world(make_node("node"))
    world.server.fail = raise_once(failure)
    world.waits(make_pod("pod"))
    await world.step()
    assert world.ledgers() == {"node": {}}
    assert await world.step() is None
    world.clock.now += retried_after
    assert await world.step() is not None
    assert world.nodes_of() == {"pod": "node"}


async def test_a_failed_bind_respects_terms_placed_meanwhile() -> None:
    zones = {"node": "a", "other": "b"}
    world = make_world(*(make_node(name, labels={"zone": zone}) for name, zone in zones.items()))
    web = LabelSelector((Requirement("app", Operator.IN, ("web",)),))
    keeps_away = Constraints(anti_affinity=(PodTerm("zone", web, ("default",)),))
    enemy = make_pod("enemy")
    enemy = replace(enemy, request=replace(enemy.request, constraints=keeps_away))

    def fail(call: str) -> None:
        if call == "bind before" and not world.engine.cache.pod("uid-enemy"):
            world.engine.handlers.bound_pods.observe("ADDED", bound(enemy, world.server.calls[-1].split()[-1]))
            raise Unavailable("overload")

    world.server.fail = fail
    world.waits(make_pod("pod", labels=(("app", "web"),)))
    await world.step()
    first = world.server.calls[0].split()[-1]
    world.clock.now += 1
    await world.step()
    assert world.nodes_of() == {"pod": next(name for name in zones if name != first)}


async def test_a_missing_right_is_said_by_its_rule() -> None:
    world = make_world(make_node("node"))
    world.server.fail = raise_once(Forbidden("no", "create pods/binding"))
    world.waits(make_pod("pod"))
    await world.step()
    assert world.diary.events == [("pod", "FailedScheduling", "koord-numa lacks the permission to create pods/binding")]


async def test_a_pod_that_is_gone_is_forgotten() -> None:
    world = make_world(make_node("node"))
    world.waits(make_pod("pod"))
    world.server.pods.clear()
    await world.step()
    assert (world.ledgers(), world.engine.waiting()) == ({"node": {}}, [])


async def test_a_pod_bound_by_another_scheduler_counts_there() -> None:
    world = make_world(make_node("node"), make_node("other"))
    world.waits(make_pod("pod"))
    world.server.pods["uid-pod"] = make_pod("pod", node="other")
    await world.step()
    assert {name: set(held) for name, held in world.ledgers().items()} == {"node": set(), "other": {"uid-pod"}}
    assert world.engine.waiting() == []


async def test_a_lost_answer_of_a_bind_that_happened_keeps_the_hold() -> None:
    world = make_world(make_node("node"))
    world.server.fail = raise_once(UnknownOutcome("timeout"), at="bind after")
    world.waits(make_pod("pod"))
    await world.step()
    assert world.server.calls == ["bind pod node", "read pod"]
    assert world.nodes_of() == {"pod": "node"}
    assert set(world.ledgers()["node"]) == {"uid-pod"}


async def test_a_lost_response_of_a_failed_bind_repeats_the_bind() -> None:
    world = make_world(make_node("node"))
    world.server.fail = raise_once(UnknownOutcome("timeout"), UnknownOutcome("timeout"))
    world.waits(make_pod("pod"))
    await world.step()
    assert world.server.calls == ["bind pod node", "read pod", "bind pod node", "read pod", "bind pod node"]
    assert world.nodes_of() == {"pod": "node"}


async def test_a_lost_response_stays_open_while_reads_fail() -> None:
    world = make_world(make_node("node"))
    held_while_asking = []

    def fail(call: str) -> None:
        held_while_asking.append(set(world.ledgers()["node"]))
        if call == "bind after":
            raise UnknownOutcome("timeout")
        if call == "read" and len(held_while_asking) < 6:
            raise Unavailable("down")

    world.server.fail = fail
    world.waits(make_pod("pod"))
    await world.step()
    assert world.nodes_of() == {"pod": "node"}
    assert held_while_asking == [{"uid-pod"}] * len(held_while_asking)


async def test_a_lost_answer_of_a_pod_that_is_gone_gives_back() -> None:
    world = make_world(make_node("node"))

    def fail(call: str) -> None:
        if call == "bind after":
            world.server.pods.clear()
            raise UnknownOutcome("timeout")

    world.server.fail = fail
    world.waits(make_pod("pod"))
    await world.step()
    assert (world.ledgers(), world.engine.waiting()) == ({"node": {}}, [])


AWAITS = ["bind before", "bind after", "read"]


@pytest.mark.parametrize("point", AWAITS)
@pytest.mark.parametrize("blow", [asyncio.CancelledError, KeyboardInterrupt, Gone], ids=lambda blow: blow.__name__)
async def test_whatever_breaks_at_any_await_the_ledger_is_as_before(point: str, blow: type[BaseException]) -> None:
    world = make_world(make_node("node"))
    world.waits(make_pod("pod"))
    before = world.ledgers()

    def fail(call: str) -> None:
        if call == "bind before" and point == "read":
            raise Conflict("changed")
        if call == point:
            raise blow

    world.server.fail = fail
    pod = world.engine.loop.next_pod()
    assert pod is not None
    try:
        await world.engine.loop.schedule_one(pod)
    except blow:
        assert pod.queued_in is not None
    assert world.ledgers() == before
    assert world.engine.cache.assumed == {}


async def test_confirmed_pods_that_no_event_shows_are_read_back() -> None:
    world = make_world(make_node("node"))
    world.waits(make_pod("gone"), make_pod("there"))
    await world.settle()
    del world.server.pods["uid-gone"]
    world.clock.now += 60
    await world.engine.assumed_pods.read_back_overdue()
    assert set(world.ledgers()["node"]) == {"uid-there"}
    assert world.engine.cache.assumed == {}


async def test_an_outage_pauses_all_pods_as_long_as_requested() -> None:
    world = make_world(make_node("node"))
    world.server.fail = raise_once(*(Unavailable("overload", retry_after=7.0) for _ in range(OUTAGE)))
    world.waits(*(make_pod(f"pod-{number}", created=float(number)) for number in range(OUTAGE + 1)))
    for _ in range(OUTAGE):
        assert await world.step() is not None
    assert await world.step() is None
    world.clock.now += 7.0
    await world.settle()
    assert set(world.nodes_of().values()) == {"node"}


async def test_one_pod_that_the_server_turns_away_delays_no_other() -> None:
    """A webhook may answer 429 or 503 to one pod for ever."""
    world = make_world(make_node("node", cpu=16))

    def fail(call: str) -> None:
        if call == "bind before" and world.server.calls[-1] == "bind bad node":
            raise Unavailable("overload", retry_after=3600.0)

    world.server.fail = fail
    world.waits(make_pod("bad"), *(make_pod(f"good-{number}") for number in range(9)))
    await world.settle()
    assert [name for name, node in world.nodes_of().items() if not node] == ["bad"]


async def test_a_read_back_that_takes_long_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world(make_node("node"))
    world.waits(make_pod("slow"), make_pod("there"))
    await world.settle()
    answer, read_pod = asyncio.Event(), world.server.read_pod

    async def slow(pod: PodKey) -> Pod:
        if pod.name == "slow":
            await answer.wait()
        return await read_pod(pod)

    monkeypatch.setattr(world.server, "read_pod", slow)
    world.clock.now += 60
    reading = asyncio.create_task(world.engine.assumed_pods.read_back_overdue())
    await until(lambda: set(world.engine.cache.assumed) == {"uid-slow"})
    answer.set()
    await reading
    assert world.engine.cache.assumed == {}
