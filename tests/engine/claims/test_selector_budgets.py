"""A claim pays for its selectors: one budget for all devices and nodes, turns for others, and pauses that grow."""

import pytest

from koord_numa.core.claims.pools import SELECTOR_LIMITS, BudgetUsedError, SelectorBudget, Selectors, TurnOverError
from koord_numa.core.objects.claims import PodResourceClaim
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Unschedulable
from koord_numa.core.value_objects import replace
from koord_numa.engine.claims.late_check import FIRST_PAUSE, LONGEST_PAUSE, OVER_BUDGET, ClaimBudget
from koord_numa.engine.queue.pending_pod import SLICE
from koord_numa.engine.ranking.node_ranking import Undecided
from koord_numa.engine.schedule_one import BUDGET_USED
from koord_numa.wire.resource_claims import parse_resource_claim
from koord_numa.wire.resource_slices import parse_resource_slice
from tests.core.claims.worlds import Json, cel, claim_object, device, device_class, request
from tests.engine.world import World, make_node, make_pod, make_world

NODES = 2
DEVICES = 40
DIGITS = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"


def slow(number: int, answer: str = "true") -> str:
    """About 50,000 units for each device, and another text for each number."""
    loops = f"{DIGITS}.all(a, {DIGITS}.all(b, {DIGITS}.all(c, [0, 1, 2, 3].all(d, a + b + c + d >= -{number}))))"
    return f"device.attributes['gpu'].serial >= 0 && {loops} && {answer}"


def devices_of(node: str) -> Json:
    devices = [device(f"d{number}", attributes={"serial": number}) for number in range(DEVICES)]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {"metadata": {"name": node}, "spec": {"driver": "gpu", "nodeName": node, "pool": pool, "devices": devices}}


def world_with(*selectors: str) -> World:
    names = [f"node-{number}" for number in range(NODES)]
    made = make_world(*(make_node(name) for name in names))
    claims = made.engine.claims
    parsed = [parse_resource_slice(devices_of(name)).parts for name in names]
    claims.replace_slices(each for each in parsed if each is not None)
    claims.replace_classes([device_class("gpu")])
    claim = claim_object(request("r", "gpu", selectors=[cel(text) for text in selectors]), name="heavy")
    claims.observe_claim(None, replace(parse_resource_claim(claim), version="1"))
    claims.synced()
    return made


def heavy_pod() -> Pod:
    return replace(make_pod("heavy"), resource_claims=(PodResourceClaim("c", "heavy"),))


def attempt(world: World) -> int:
    """Decide once about the heavy pod, which no node takes; returns the number of turns."""
    selector = world.engine.handle.selector
    request_class = world.engine.classes.of(heavy_pod())
    assert request_class is not None
    turns = 1
    while (answer := selector.choose_some(request_class, SLICE)) is Undecided.UNDECIDED:
        turns += 1
    assert answer is None
    return turns


def budget_of(world: World) -> ClaimBudget:
    request_class = world.engine.classes.of(heavy_pod())
    assert request_class is not None
    assert request_class.claims is not None
    return world.engine.handle.selector.budgets.of(request_class.request.namespace, request_class.claims)


def messages(world: World) -> set[str]:
    request_class = world.engine.classes.of(heavy_pod())
    assert request_class is not None
    return {it.message for it in world.engine.handle.selector.explain(request_class).rejections.values()}


def test_a_decision_ends_with_the_budget_and_yields() -> None:
    world = world_with(*(slow(number) for number in range(8)), slow(99, "false"))
    turns = attempt(world)
    assert turns >= SELECTOR_LIMITS.claim // (2 * 60_000)
    assert all("have used their budget" in message or message == OVER_BUDGET for message in messages(world))
    assert -2_000_000 < budget_of(world).budget.left <= 0
    assert attempt(world) == 1, "a claim that pauses costs nothing"


def test_pauses_grow_and_what_was_found_is_kept() -> None:
    world = world_with(slow(1, "false"))
    pauses = []
    for _ in range(20):
        attempt(world)
        until = budget_of(world).until
        if not until:
            break
        pauses.append(until - world.clock.now)
        world.clock.now = until
    assert pauses == [FIRST_PAUSE * 2**number for number in range(len(pauses))]
    assert 2 <= len(pauses) <= 2 + NODES * DEVICES * 60_000 // SELECTOR_LIMITS.claim
    assert messages(world) == {"cannot allocate all claims"}, "in the end every device has answered"
    assert max(pauses) <= LONGEST_PAUSE


async def test_such_a_claim_is_named_and_delays_no_other_pod() -> None:
    world = world_with(*(slow(number) for number in range(8)), slow(99, "false"))
    world.waits(heavy_pod(), make_pod("innocent"))
    await world.settle()
    assert world.nodes_of()["innocent"]
    verdict = world.engine.queue.verdict(world.pending(heavy_pod()))
    assert isinstance(verdict, Unschedulable)
    said = str(world.engine.handle.messages.current(world.pending(heavy_pod()).request_class, verdict))
    assert "its CEL selectors have used their budget" in said
    assert [name for name, reason, _ in world.diary.events if reason == BUDGET_USED] == ["ResourceClaim heavy"]
    assert world.engine.handle.selector.budgets.used == 1
    due = world.engine.queue.next_due(world.clock.now)
    assert due is not None
    assert due <= world.clock.now + FIRST_PAUSE


def test_compiling_is_charged() -> None:
    budget = SelectorBudget("default/c", left=100_000)
    selectors = Selectors(budget)

    def compile_many() -> None:
        for number in range(100):
            selectors.program(" || ".join(f"device.driver == 'd{number}-{at}'" for at in range(40)))

    with pytest.raises(BudgetUsedError, match="default/c"):
        compile_many()
    assert budget.left > -100_000


def test_an_answer_by_driver_is_charged_too() -> None:
    budget = SelectorBudget("default/c")
    selectors = Selectors(budget)
    loops = f"{DIGITS}.all(a, {DIGITS}.all(b, {DIGITS}.all(c, a + b + c >= 0)))"
    assert selectors.driver_answer(f"{loops} && device.driver == 'x'", "x") is True
    assert budget.left < SELECTOR_LIMITS.claim - 10_000


def test_a_turn_ends_between_two_evaluations() -> None:
    selectors = Selectors()
    for driver in ("turn-1", "turn-2"):
        selectors.program(f"device.driver == '{driver}'")
    selectors.begin_turn(1)
    assert selectors.driver_answer("device.driver == 'turn-1'", "turn-1") is True
    with pytest.raises(TurnOverError):
        selectors.driver_answer("device.driver == 'turn-2'", "turn-2")
    selectors.begin_turn(None)
    assert selectors.driver_answer("device.driver == 'turn-2'", "turn-2") is True
