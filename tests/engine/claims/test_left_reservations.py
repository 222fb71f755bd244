"""
Reservations that a cycle has left behind when it was cut off. The pod's next cycle goes on with them; a pod that fits nowhere has none, and
gives them up where other pods use the claim.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from koord_numa.core.objects.claims import PodResourceClaim
from koord_numa.core.objects.request import Pod
from koord_numa.core.value_objects import replace
from koord_numa.engine.claims.lister import ClaimLister
from koord_numa.ports import Unavailable
from koord_numa.wire.resource_claims import parse_resource_claim
from tests.core.claims.worlds import claim_object, device, device_class, published, request
from tests.engine.claims.claim_server import FakeClaimWriter
from tests.engine.world import World, bound, make_node, make_pod, make_world

USER = make_pod("user", resource_claims=(PodResourceClaim("c", "claim"),))
FIRST, LATE = (replace(make_pod(name, cpu=90_000), resource_claims=USER.resource_claims) for name in ("first", "late"))
"""Two pods of one class that no node has room for."""


@asynccontextmanager
async def shared_claim(reserved_for: Pod, *waiting: Pod) -> AsyncIterator[tuple[World, FakeClaimWriter]]:
    """A node where a pod uses a claim, which a cycle that was cut off has reserved for another one too; these pods wait."""
    writer = FakeClaimWriter(ClaimLister(lambda: None, lambda _: None))
    world = make_world(make_node("node-1"), claim_writer=writer)
    claims = writer.lister = world.engine.claims
    claims.replace_slices([published("gpu", [device("a")])])
    claims.replace_classes([device_class("gpu")])
    claims.observe_claim(None, replace(parse_resource_claim(claim_object(request("r", "gpu"))), version="1"))
    claims.synced()
    world.waits(USER)
    await world.settle()
    world.engine.handlers.bound_pods.observe("MODIFIED", bound(USER, "node-1"))
    claim = claims.claims["default", "claim"]
    assert claim.reserved_for == (USER.key.uid,)
    reservations = (*claim.reserved_for, reserved_for.key.uid)
    claims.observe_claim("MODIFIED", replace(claim, version="9", reserved_for=reservations))
    world.waits(*waiting)
    assert world.engine._deallocation is not None
    writing = asyncio.create_task(world.engine._deallocation.run())
    yield world, writer
    writing.cancel()


async def turns() -> None:
    """Let what is noted be written."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_pod_that_fits_nowhere_gives_up_what_a_cycle_has_left() -> None:
    async with shared_claim(LATE, LATE) as (world, writer):
        await world.settle()
        await turns()
        assert writer.released == [LATE.key.uid]
        assert writer.deallocated == []  # another pod uses its devices


async def test_untried_pods_of_its_class_explore_too() -> None:
    async with shared_claim(LATE, FIRST, LATE) as (world, writer):
        await world.settle()
        await turns()
        assert world.pending(FIRST).attempts == 1
        assert world.pending(LATE).attempts == 0
        assert writer.released == [LATE.key.uid]


async def test_a_pod_to_be_bound_keeps_its_reservation() -> None:
    """Its cycle has begun since, or another leader has bound it."""
    async with shared_claim(LATE, LATE) as (world, writer):
        await world.settle()
        world.server.pods[LATE.key.uid] = bound(LATE, "node-1")
        await turns()
        assert writer.released == []
    async with shared_claim(LATE, LATE) as (world, writer):
        await world.settle()
        world.engine.handlers.bound_pods.observe("MODIFIED", bound(LATE, "node-1"))
        await turns()
        assert writer.released == []


async def test_a_failed_revert_is_repeated_by_the_next_attempt() -> None:
    async with shared_claim(LATE, LATE) as (world, writer):
        world.server.fail = failing
        await world.settle()
        await turns()
        assert writer.released == []
        world.server.fail = lambda call: None
        world.clock.now += 3600.0
        await world.settle()
        await turns()
        assert writer.released == [LATE.key.uid]


def failing(call: str) -> None:
    if call == "read":
        raise Unavailable("busy")
