"""Events between two steps of a pod's cycle, and reads that are overtaken."""

import asyncio
from collections.abc import Mapping

from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.value_objects import replace
from koord_numa.engine.binding.binding_cycle import ARRIVAL_SECONDS, REQUESTS
from koord_numa.ports import Conflict, UnknownOutcome
from tests.engine.world import bound, make_node, make_pod, make_world


async def test_a_pod_changed_after_dequeue_is_tried_once() -> None:
    """Its decision begins a turn of the event loop later; a watch event may come in between."""
    world = make_world(make_node("node"), make_node("other"))
    pod, answers = make_pod("pod"), asyncio.Event()
    bind = world.server.bind

    async def slow_bind(key: PodKey, node: str, annotations: Mapping[str, str]) -> None:
        await answers.wait()
        await bind(key, node, annotations)

    world.server.bind = slow_bind  # type: ignore[assignment, method-assign]  # the server of this test is slow
    world.waits(pod)
    pending = world.engine.loop.next_pod()
    assert pending is not None
    world.engine.handlers.pending_pods.observe("MODIFIED", replace(pod, resource_version="2"))
    cycle = asyncio.create_task(world.engine.loop.schedule_one(pending))
    await asyncio.sleep(0)
    assert pending.binding
    assert world.engine.loop.next_pod() is None
    answers.set()
    await cycle
    assert [call for call in world.server.calls if call.startswith("bind")] == ["bind pod node"]


async def test_a_pod_malformed_after_dequeue_is_not_bound() -> None:
    world = make_world(make_node("node"))
    pod = make_pod("pod")
    world.waits(pod)
    pending = world.engine.loop.next_pod()
    assert pending is not None
    world.engine.handlers.pending_pods.observe("MODIFIED", replace(pod, resource_version="2", problem="odd"))
    await world.engine.loop.schedule_one(pending)
    await world.settle()
    assert world.nodes_of() == {"pod": ""}


async def test_a_pod_deleted_during_a_read_after_a_conflict_is_freed() -> None:
    """The watch has told of the deletion before the answer of the read comes."""
    world = make_world(make_node("node"))
    pod = make_pod("pod")
    world.waits(pod)
    read = world.server.read_pod

    async def bind(*_: object) -> None:
        world.server.pods[pod.key.uid] = bound(pod, "node")
        raise Conflict("bound by another scheduler")

    async def overtaken(key: PodKey) -> Pod:
        seen = await read(key)
        world.engine.handlers.bound_pods.observe("DELETED", world.server.pods.pop(key.uid))
        return seen

    world.server.bind, world.server.read_pod = bind, overtaken  # type: ignore[method-assign, assignment]  # as above
    await world.settle()
    world.server.read_pod = read  # type: ignore[method-assign]  # as above
    world.clock.now += world.engine.settings.settle_seconds + 1
    await world.engine.assumed_pods.read_back_overdue()
    assert world.ledgers() == {"node": {}}


async def test_a_long_read_does_not_prove_that_a_bind_failed() -> None:
    """Its answer is as old as its question: the bind was on its way when the pod was looked at, and arrives before the answer does."""
    world = make_world(make_node("node"))
    pod = make_pod("pod")
    world.waits(pod)
    read, binds = world.server.read_pod, 0

    async def lost(*_: object) -> None:
        nonlocal binds
        binds += 1
        raise UnknownOutcome("no answer")

    async def slow(key: PodKey) -> Pod:
        seen = await read(key)
        if binds == REQUESTS and not seen.node:
            world.server.pods[key.uid] = bound(pod, "node")
            world.clock.now += ARRIVAL_SECONDS + 1
        return seen

    world.server.bind, world.server.read_pod = lost, slow  # type: ignore[method-assign, assignment]  # as above
    await world.settle()
    assert world.engine.cache.pod(pod.key.uid) is not None
    assert world.diary.reasons("pod")[-1] == "Scheduled"
