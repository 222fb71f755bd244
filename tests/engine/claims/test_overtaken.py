"""Claims that another scheduler allocates while a decision about them is on its way."""

from koord_numa.core.objects.claims import PodResourceClaim
from koord_numa.core.objects.request import PodKey
from koord_numa.core.value_objects import replace
from tests.engine.claims.test_cycle import POD, World


async def test_devices_of_a_discarded_decision_are_reported_free() -> None:
    """Another scheduler gives the claim another device: pods that wait for the first one have to hear of it."""
    world = World()
    placement = world.placed_on()
    world.step.reserve(POD, placement)
    assert world.in_use == ["a"]
    world.changes.clear()
    (decided,) = placement.allocations
    other = replace(
        decided, results=tuple(replace(it, device=it.device._replace(device="b")) for it in decided.results)
    )
    world.lister.observe_claim("MODIFIED", replace(world.claim(version="2"), allocation=other))
    assert world.in_use == ["b"]
    assert "devices" in world.changes


async def test_devices_that_are_written_as_decided_are_no_news() -> None:
    world = World()
    placement = world.placed_on()
    world.step.reserve(POD, placement)
    world.changes.clear()
    await world.step.do(POD, placement)
    assert "devices" not in world.changes


async def test_the_end_of_a_cycle_keeps_assumptions_of_another_pod() -> None:
    """The claim was given up in between, and is being allocated for another pod."""
    world = World()
    placement = world.placed_on()
    world.step.reserve(POD, placement)
    await world.step.do(POD, placement)
    world.lister.observe_claim("MODIFIED", world.claim(version="9"))
    other = replace(POD, key=PodKey("default", "other", "uid-other"), resource_claims=(PodResourceClaim("c", "claim"),))
    world.step.reserve(other, world.placed_on(other))
    world.step.unreserve(POD, placement)
    assert world.in_use == ["a"]
    world.step.unreserve(other, placement)
    assert world.in_use == []
