"""One cycle: look, decide, hold, bind, tell; and every way in which the API server may answer."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from koord_numa.core.objects.constraints import Constraints, Toleration
from koord_numa.core.objects.verdicts import Reason
from koord_numa.engine.binding.binding_cycle import OUTAGE
from koord_numa.ports import ClusterError, Conflict, Forbidden, Gone, Invalid, Unavailable, UnknownOutcome
from tests.engine.binding.test_pre_bind import Step
from tests.engine.world import World, bound, make_node, make_pod, make_world


async def test_a_pod_is_bound_to_the_node_that_fits_and_people_are_told() -> None:
    world = make_world(make_node("small", cpu=1), make_node("large", cpu=8))
    world.waits(make_pod("pod", cpu=4000))
    await world.settle()
    assert world.nodes_of() == {"pod": "large"}
    assert world.diary.reasons("pod") == ["Scheduled"]
    assert world.diary.events[0][2].startswith(
        "Successfully assigned default/pod to large: no NUMA alignment was attempted"
    )
    assert world.engine.cache.assumed["uid-pod"].confirmed == world.clock.now


async def test_a_pod_that_fits_nowhere_waits_with_numbers_and_is_told_once() -> None:
    world = make_world(make_node("node", cpu=2))
    world.waits(make_pod("pod", cpu=4000))
    await world.settle()
    world.engine.handlers.nodes.observe("MODIFIED", make_node("node", cpu=3))
    world.clock.now += 300
    await world.settle()
    assert world.diary.reasons("pod") == ["FailedScheduling", "FailedScheduling"]
    sentence = "0/1 nodes are available: 1 Insufficient cpu."
    assert world.diary.events[-1][2].startswith(sentence)
    assert world.engine.explain("uid-pod").startswith(sentence)
    assert world.nodes_of() == {"pod": ""}


async def test_room_that_comes_free_wakes_the_pod_that_waits_for_it() -> None:
    world = make_world(make_node("node", cpu=4))
    first, second = make_pod("first", cpu=3000), make_pod("second", cpu=3000, created=1.0)
    world.waits(first, second)
    await world.settle()
    assert world.nodes_of() == {"first": "node", "second": ""}
    world.engine.handlers.bound_pods.observe("DELETED", bound(first, "node"))
    world.clock.now += 60
    await world.settle()
    assert world.nodes_of() == {"first": "node", "second": "node"}


@pytest.mark.parametrize(
    "changes",
    [
        {"gated": True},
        {"deleting": True},
        {"mirror": True},
        {"node": "node"},
        {"phase": "Failed"},
        {"scheduler": "other"},
    ],
    ids=lambda changes: next(iter(changes)),
)
async def test_pods_that_are_not_to_be_placed_are_never_tried(changes: dict[str, object]) -> None:
    world = make_world(make_node("node"))
    world.waits(replace(make_pod("pod"), **changes))  # type: ignore[arg-type]  # changes are named fields
    assert world.engine.loop.next_pod() is None


async def test_a_gate_that_is_lifted_lets_the_pod_go() -> None:
    world = make_world(make_node("node"))
    world.waits(make_pod("pod", gated=True))
    await world.settle()
    world.engine.handlers.pending_pods.observe("MODIFIED", make_pod("pod"))
    world.server.pods["uid-pod"] = make_pod("pod")
    await world.settle()
    assert world.nodes_of() == {"pod": "node"}


async def test_a_malformed_pod_is_told_and_not_tried() -> None:
    world = make_world(make_node("node"))
    world.waits(make_pod("pod", problem="annotation x is not JSON"))
    assert world.engine.loop.next_pod() is None
    assert world.diary.events == [("pod", "FailedScheduling", "the pod cannot be understood: annotation x is not JSON")]


def raise_once(*failures: ClusterError, at: str = "bind before") -> Callable[[str], None]:
    """Each call of this kind raises the next failure, then none."""
    rest = list(failures)

    def fail(call: str) -> None:
        if call == at and rest:
            raise rest.pop(0)

    return fail


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


async def test_a_missing_right_is_said_by_its_rule() -> None:
    world = make_world(make_node("node"))
    world.server.fail = raise_once(Forbidden("no", "create pods/binding"))
    world.waits(make_pod("pod"))
    await world.step()
    assert world.diary.events == [("pod", "FailedScheduling", "koord-numa lacks the right to create pods/binding")]


async def test_a_pod_that_is_gone_is_forgotten() -> None:
    world = make_world(make_node("node"))
    world.waits(make_pod("pod"))
    world.server.pods.clear()
    await world.step()
    assert (world.ledgers(), world.engine.waiting()) == ({"node": {}}, [])


async def test_a_pod_that_another_scheduler_bound_is_counted_where_it_is() -> None:
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


async def test_a_lost_answer_of_a_bind_that_did_not_happen_is_asked_again() -> None:
    world = make_world(make_node("node"))
    world.server.fail = raise_once(UnknownOutcome("timeout"), UnknownOutcome("timeout"))
    world.waits(make_pod("pod"))
    await world.step()
    assert world.server.calls == ["bind pod node", "read pod", "bind pod node", "read pod", "bind pod node"]
    assert world.nodes_of() == {"pod": "node"}


async def test_a_lost_answer_stays_open_while_the_server_cannot_be_read() -> None:
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


async def test_nothing_is_decided_or_written_without_the_lease() -> None:
    world = make_world(make_node("node"))
    world.waits(make_pod("pod"))
    world.lease.held = False
    assert await world.step() is None
    world.lease.held = True
    pod = world.engine.loop.next_pod()
    assert pod is not None
    world.lease.held = False
    await world.engine.loop.schedule_one(pod)
    assert (world.server.calls, world.ledgers()) == ([], {"node": {}})
    world.lease.held = True
    await world.settle()
    assert world.nodes_of() == {"pod": "node"}


async def test_a_node_that_left_meanwhile_is_not_bound_to() -> None:
    world = make_world(make_node("node"))

    def cordon() -> None:
        world.engine.handlers.nodes.observe("MODIFIED", make_node("node", unschedulable=True))

    world.engine.loop.binding.steps = (Step("cordon", on_do=cordon),)
    world.waits(make_pod("pod"))
    await world.step()
    assert (world.server.calls, world.ledgers()) == ([], {"node": {}})
    world.engine.loop.binding.steps = ()
    world.engine.handlers.nodes.observe("MODIFIED", make_node("node"))
    world.clock.now += 1
    await world.settle()
    assert world.nodes_of() == {"pod": "node"}


async def test_a_pod_that_tolerates_the_cordon_is_bound() -> None:
    """Every pod of a DaemonSet does."""
    world = make_world(make_node("node", unschedulable=True))
    pod = make_pod("pod")
    tolerant = Constraints(tolerations=(Toleration(key="node.kubernetes.io/unschedulable", exists=True),))
    world.waits(replace(pod, request=replace(pod.request, constraints=tolerant)))
    await world.settle()
    assert world.nodes_of() == {"pod": "node"}


async def test_a_pod_that_is_created_anew_is_another_pod() -> None:
    world = make_world(make_node("node"))
    old = make_pod("pod")
    new = replace(old, key=replace(old.key, uid="uid-new"))
    world.waits(old)
    popped = world.engine.loop.next_pod()
    assert popped is not None
    assert popped.pod == old
    world.engine.handlers.pending_pods.observe("DELETED", old)
    world.server.pods.clear()
    world.waits(new)
    await world.engine.loop.schedule_one(popped)
    await world.settle()
    assert {uid: pod.node for uid, pod in world.server.pods.items()} == {"uid-new": "node"}
    assert set(world.ledgers()["node"]) == {"uid-new"}


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


async def test_a_kubelet_that_refuses_rests_for_that_class_only() -> None:
    world = make_world(make_node("node"))
    refused = make_pod("refused", cpu=2000)
    world.engine.handlers.bound_pods.observe("ADDED", bound(refused, "node"))
    world.engine.handlers.bound_pods.observe(
        "MODIFIED", bound(refused, "node", phase="Failed", reason="TopologyAffinityError")
    )
    world.waits(make_pod("twin", cpu=2000), make_pod("other", cpu=1000))
    await world.settle()
    assert world.nodes_of() == {"twin": "", "other": "node"}
    assert "1 node(s) had a kubelet that just refused such a pod" in world.engine.explain("uid-twin")
    assert world.diary.reasons("node") == ["KubeletRefusal"]
    world.clock.now += 31
    world.engine.assumed_pods.end_node_backoffs()
    await world.settle()
    assert world.nodes_of()["twin"] == "node"


async def test_old_refusals_found_at_the_start_say_nothing() -> None:
    world = make_world(make_node("node"), synced=False)
    old = make_pod("old", node="node", phase="Failed", reason="TopologyAffinityError")
    world.engine.handlers.bound_pods.observe(None, old)
    world.waits(make_pod("twin"))
    await world.settle()
    assert world.nodes_of()["twin"] == "node"


async def test_a_locked_node_waits_for_its_rebind() -> None:
    world = make_world(make_node("node"))
    world.engine.lock_node("node", "RebindResource repack works on it")
    world.waits(make_pod("pod"))
    await world.settle()
    assert world.nodes_of() == {"pod": ""}
    verdict = world.engine.queue.verdict(world.engine.handle.pending.get("uid-pod"))
    assert verdict is not None
    assert [rejection.reason for rejection in verdict.rejections.values()] == [Reason.LOCKED]
    world.engine.unlock_node("node")
    world.clock.now += 1
    await world.settle()
    assert world.nodes_of() == {"pod": "node"}


async def test_an_outage_pauses_everyone_for_as_long_as_the_server_asks() -> None:
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


async def run_until(world: World, done: Callable[[], bool]) -> None:
    """Run the real loop until something holds, then stop it and see it end."""
    running = asyncio.create_task(world.engine.run())
    for _ in range(10_000):
        if done():
            break
        await asyncio.sleep(0)
    await world.engine.stop()
    await asyncio.wait_for(running, 5)
    assert done()


async def test_the_loop_binds_everyone_and_ends_when_told() -> None:
    world = make_world(*(make_node(f"node-{i}", cpu=64, memory=128) for i in range(5)))
    world.waits(*(make_pod(f"pod-{i:03}", created=float(i)) for i in range(200)))
    await run_until(world, lambda: all(world.nodes_of().values()))
    assert len(world.diary.events) == 200


async def test_the_loop_hears_of_pods_that_come_while_it_is_idle() -> None:
    world = make_world(make_node("node"))
    running = asyncio.create_task(world.engine.run())
    for _ in range(20):
        await asyncio.sleep(0)
    world.waits(make_pod("late"))
    for _ in range(50):
        await asyncio.sleep(0)
    await world.engine.stop()
    await asyncio.wait_for(running, 5)
    assert world.nodes_of() == {"late": "node"}


async def test_conditions_are_written_beside_the_loop() -> None:
    world = make_world(make_node("node", cpu=1))
    world.waits(make_pod("big", cpu=4000))
    await run_until(world, lambda: any(call.startswith("condition big: 0/1 nodes") for call in world.server.calls))
    assert sum(call.startswith("condition") for call in world.server.calls) == 1


async def test_nothing_is_decided_before_everything_is_known() -> None:
    world = make_world(make_node("node"), synced=False)
    world.waits(make_pod("pod"))
    running = asyncio.create_task(world.engine.run())
    for _ in range(50):
        await asyncio.sleep(0)
    assert world.server.calls == []
    await world.engine.stop()
    await asyncio.wait_for(running, 5)
