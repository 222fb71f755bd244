"""PreBind steps: reserved with the decision, done before the bind, undone in reverse order whatever fails."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement
from koord_numa.engine.binding.pre_bind import pre_bound
from koord_numa.ports import ClusterError, Conflict, Forbidden, Invalid, UnknownOutcome
from tests.cluster.objects import until
from tests.engine.world import World, make_node, make_pod, make_world


@dataclass
class Step:
    """A step that takes note. ``on_do`` may raise."""

    name: str
    calls: list[str] = field(default_factory=list)
    on_do: Callable[[], None] = lambda: None
    timeout: float = 5.0
    hangs: bool = False

    def applies(self, pod: Pod, placement: Placement) -> bool:
        return pod.key.name != "plain"

    def reserve(self, pod: Pod, placement: Placement) -> None:
        self.calls.append(f"reserve {self.name}")

    def unreserve(self, pod: Pod, placement: Placement) -> None:
        self.calls.append(f"unreserve {self.name}")

    def post_bind(self, pod: Pod, placement: Placement) -> None:
        self.calls.append(f"post {self.name}")

    async def do(self, pod: Pod, placement: Placement) -> None:
        self.calls.append(f"do {self.name}")
        self.on_do()
        if self.hangs:
            await asyncio.Event().wait()

    async def undo(self, pod: Pod, placement: Placement) -> None:
        self.calls.append(f"undo {self.name}")


def raising(error: ClusterError, times: int = 1) -> Callable[[], None]:
    rest = [error] * times

    def fail() -> None:
        if rest:
            raise rest.pop()

    return fail


def world_with(*steps: Step) -> tuple[World, list[str]]:
    calls: list[str] = []
    for step in steps:
        step.calls = calls
    world = make_world(make_node("node"))
    world.engine.loop.binding.steps = steps
    return world, calls


FORTH = ["reserve a", "reserve b", "do a", "do b"]
BACK = ["undo b", "undo a", "unreserve b", "unreserve a"]


async def test_steps_run_in_order_before_the_bind_and_stay_done() -> None:
    world, calls = world_with(Step("a"), Step("b"))
    world.waits(make_pod("pod"))
    await world.settle()
    assert (calls, world.nodes_of()) == ([*FORTH, "post a", "post b"], {"pod": "node"})


async def test_a_bind_that_fails_undoes_all_steps_in_reverse_order() -> None:
    world, calls = world_with(Step("a"), Step("b"))

    def fail(call: str) -> None:
        if call == "bind before":
            raise Invalid("no")

    world.server.fail = fail
    world.waits(make_pod("pod"))
    await world.step()
    assert (calls, world.ledgers()) == ([*FORTH, *BACK], {"node": {}})


async def test_a_step_that_fails_undoes_itself_and_those_before_it() -> None:
    world, calls = world_with(Step("a", on_do=raising(Forbidden("no", "patch pods"))), Step("b"))
    world.waits(make_pod("pod"))
    await world.step()
    assert calls == ["reserve a", "reserve b", "do a", "undo a", "unreserve b", "unreserve a"]
    assert [message for who, _, message in world.diary.events if who == "pod"] == ["a: no; missing rule: patch pods"]
    world.clock.now += 1.0
    await world.settle()
    assert world.nodes_of() == {"pod": "node"}


async def test_a_conflict_may_mean_that_the_decision_is_old() -> None:
    step = Step("a", on_do=raising(Conflict("changed")))
    world, calls = world_with(step)
    world.waits(make_pod("pod"))
    await world.step()
    assert calls == ["reserve a", "do a", "undo a", "unreserve a"]
    assert await world.step() is not None
    assert world.nodes_of() == {"pod": "node"}


async def test_a_step_of_unknown_outcome_runs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koord_numa.engine.binding.pre_bind.REPEAT_SECONDS", 0.0)
    world, calls = world_with(Step("a", on_do=raising(UnknownOutcome("timeout"), times=2)))
    world.waits(make_pod("pod"))
    await world.settle()
    assert (calls, world.nodes_of()) == (["reserve a", "do a", "do a", "do a", "post a"], {"pod": "node"})


@asynccontextmanager
async def running(world: World) -> AsyncIterator[None]:
    """The engine with its loops."""
    task = asyncio.create_task(world.engine.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_step_that_hangs_delays_no_other_pod() -> None:
    world, calls = world_with(Step("a", hangs=True, timeout=600.0))
    async with running(world):
        world.waits(make_pod("slow"), make_pod("plain"))
        await until(lambda: bool(world.nodes_of()["plain"]))
        assert calls == ["reserve a", "do a"]


async def test_a_step_that_hangs_ends_with_its_timeout() -> None:
    world, calls = world_with(Step("a", hangs=True, timeout=0.05))
    async with running(world):
        world.waits(make_pod("slow"))
        await until(lambda: "unreserve a" in calls)
        assert "a: not done within 0.05 s" in {message for _, _, message in world.diary.events}


async def test_nothing_is_undone_while_the_outcome_is_unknown() -> None:
    world, calls = world_with(Step("a"))
    seen: list[list[str]] = []

    def fail(call: str) -> None:
        seen.append(list(calls))
        if call == "bind after":
            raise UnknownOutcome("timeout")

    world.server.fail = fail
    world.waits(make_pod("pod"))
    await world.step()
    assert seen == [["reserve a", "do a"]] * len(seen)
    assert (calls, world.nodes_of()) == (["reserve a", "do a", "post a"], {"pod": "node"})


async def test_a_step_that_cannot_reserve_requires_a_new_decision() -> None:
    @dataclass
    class Contended(Step):
        left: int = 1

        def reserve(self, pod: Pod, placement: Placement) -> None:
            super().reserve(pod, placement)
            if self.left:
                self.left -= 1
                raise Conflict("taken")

    world, calls = world_with(Contended("a"))
    world.waits(make_pod("pod"))
    await world.settle()
    assert (calls, world.nodes_of()) == (["reserve a", "reserve a", "do a", "post a"], {"pod": "node"})


async def test_nothing_is_undone_if_the_process_ends_during_a_bind() -> None:
    """The bind that is cut off may still be carried out, and the pod then needs what the steps wrote."""
    step = Step("a")
    bind_sent = asyncio.Event()

    async def bind() -> None:
        async with pre_bound((step,), make_pod("pod"), Placement("node")):
            bind_sent.set()
            await asyncio.Event().wait()

    binding = asyncio.create_task(bind())
    await bind_sent.wait()
    binding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await binding
    assert step.calls == ["do a"]
