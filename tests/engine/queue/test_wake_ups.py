"""
No lost wake-up: for every kind of change and every reason to wait, the real engine places a pod as soon as it fits.

The model is a fresh engine that is told the same facts: after each change, what it would place must have been placed.
"""

import asyncio
from random import Random

import pytest

from koord_numa.core.objects.constraints import (
    Constraints,
    HostPort,
    LabelSelector,
    Namespace,
    Operator,
    PodTerm,
    Requirement,
    SpreadConstraint,
    TaintEffect,
)
from koord_numa.core.objects.node import KubeletConfig, Node, Taint
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Reason
from koord_numa.core.objects.vocabulary import CpuOwner, KubeletPolicy, QosClass
from koord_numa.core.scheduling.filters import EVENTS, ClusterEvent
from koord_numa.core.value_objects import replace
from koord_numa.engine.event_handlers import MOST_UNDECIDED, UNTOLD_SECONDS
from koord_numa.engine.object_events import FAILED
from koord_numa.engine.queue.scheduling_queue import RESOLVED_BY
from tests.engine.world import World, bound, make_node, make_pod, make_topology, make_world

APP = LabelSelector((Requirement("app", Operator.IN, ("a",)),))
NEAR = PodTerm("zone", APP, ("default",))


def test_every_reason_says_what_may_lift_it() -> None:
    assert set(RESOLVED_BY) == set(Reason)
    assert set(EVENTS) <= set(Reason)
    assert all(ClusterEvent.NODE_ADDED in events for events in RESOLVED_BY.values())


def random_pod(dice: Random, number: int) -> Pod:
    """Draw a pod that waits for one of many reasons."""
    constraints = dice.choice(
        (
            Constraints(),
            Constraints(node_selector=(("zone", dice.choice("ab")),)),
            Constraints(anti_affinity=(NEAR,)),
            Constraints(affinity=(NEAR,)),
            Constraints(host_ports=(HostPort(8080),)),
            Constraints(spread=(SpreadConstraint("zone", 1, hard=True, selector=APP),)),
        )
    )
    pod = make_pod(f"pod-{number}", dice.choice((0, 500, 1000, 3000, 5000)), dice.choice((1, 4, 12)))
    labels = (("app", "a"),) if dice.random() < 0.6 else ()
    qos = dice.choice((QosClass.NONE, QosClass.NONE, QosClass.LSR)) if pod.request.containers else QosClass.NONE
    request = replace(pod.request, constraints=constraints, labels=labels, qos=qos, priority=dice.choice((0, 0, 9)))
    return replace(pod, request=request, labels=labels, preempts=False)


class Churn:
    """Random changes of a small cluster, told to one engine; another that is told the end of it is the model."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.world = make_world(settings="{preemption: {enabled: false}}")
        self.nodes: dict[str, Node] = {}
        self.kubelets: set[str] = set()
        self.versions = 0
        for number in range(3):
            self.change_node(f"n{number}")

    def change_node(self, name: str) -> None:
        dice = self.dice
        taints = (Taint("t", TaintEffect.NO_SCHEDULE, "1"),) if dice.random() < 0.2 else ()
        labels = {"zone": dice.choice("ab"), "kubernetes.io/hostname": name}
        node = make_node(
            name,
            dice.choice((4, 8)),
            dice.choice((8, 16)),
            taints=taints,
            labels=labels,
            unschedulable=dice.random() < 0.2,
        )
        self.nodes[name] = node
        self.world.engine.handlers.nodes.observe(None, node)

    def change_topology(self, name: str) -> None:
        topology = make_topology(name, cores=self.dice.choice((1, 2)))
        self.versions += 1
        if self.dice.random() < 0.5:
            policy = KubeletConfig(KubeletPolicy.SINGLE_NUMA_NODE, cpu_policy="static")
            topology = replace(topology, owner=CpuOwner.KUBELET, machine=None, kubelet=policy)
        event = "DELETED" if self.dice.random() < 0.3 else None
        self.world.engine.handlers.topologies.observe(event, replace(topology, resource_version=str(self.versions)))

    def change_pods(self, number: int) -> None:
        dice, engine = self.dice, self.world.engine
        what = dice.choice(("come", "come", "come", "leave", "leave", "going", "foreign"))
        placed = sorted(engine.cache.node_of)
        if what == "come":
            self.world.waits(random_pod(dice, number))
        elif what == "foreign":
            pod = replace(random_pod(dice, number), scheduler="other")
            engine.handlers.bound_pods.observe(None, bound(pod, dice.choice(sorted(self.nodes))))
        elif placed:
            found = engine.cache.pod(dice.choice(placed))
            assert found is not None
            if what == "leave":
                engine.handlers.bound_pods.observe("DELETED", found)
                self.world.server.pods.pop(found.key.uid, None)
            else:
                engine.handlers.bound_pods.observe(None, replace(found, deleting=True))

    def step(self, number: int) -> None:
        dice, engine = self.dice, self.world.engine
        kind = dice.choice(("node", "topology", "pods", "pods", "pods", "lock", "line", "namespace", "gone"))
        name = dice.choice(sorted(self.nodes))
        if kind == "node":
            self.change_node(dice.choice((name, f"n{dice.randrange(6)}")))
        elif kind == "topology":
            self.change_topology(name)
        elif kind == "pods":
            self.change_pods(number)
        elif kind == "lock":
            engine.cache.lock(name, dice.choice(("", "", "a rebind")))
        elif kind == "line":
            engine.cache.set_bind_line(name, dice.random() < 0.3)
        elif kind == "namespace":
            engine.handlers.namespaces.observe(None, Namespace("default", {"v": dice.choice("xy")}))
        elif len(self.nodes) > 1:
            engine.handlers.nodes.observe("DELETED", self.nodes.pop(name))

    def fresh(self) -> World:
        """An engine that is told what there is now."""
        old = self.world.engine
        model = make_world(settings="{preemption: {enabled: false}}")
        for node in self.nodes.values():
            model.engine.handlers.nodes.observe(None, node)
        for info in old.cache.nodes.values():
            if info.published is not None:
                model.engine.handlers.topologies.observe(None, info.published)
            model.engine.cache.lock(info.name, info.locked)
            model.engine.cache.set_bind_line(info.name, info.long_bind_line)
        model.engine.cache.index.namespaces.update(old.cache.index.namespaces)
        for uid in old.cache.node_of:
            pod = old.cache.pod(uid)
            assert pod is not None
            model.engine.handlers.bound_pods.observe(None, pod)
        for name, info in old.cache.nodes.items():  # what a topology shows is not the question here
            model.engine.cache.nodes[name].unreported = info.unreported
            model.engine.cache.nodes[name].touch()
            model.engine._node_table.changed(model.engine.cache.nodes[name])
        return model


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", range(25))
async def test_no_waiting_pod_fits_by_the_word_of_a_fresh_engine(seed: int) -> None:
    churn = Churn(seed)
    for number in range(50):
        churn.step(number)
        for _ in range(2):  # what is placed may wake what has just been tried
            churn.world.clock.now += 11.0  # longer than any pause and far shorter than the flush after 300 s
            await churn.world.settle(10_000)
        model = churn.fresh().engine
        for pending in churn.world.engine.handle.pending:
            request_class = model.classes.of(pending.pod)
            assert request_class is not None
            assert model.handle.selector.choose(request_class) is None, (
                f"step {number}: {pending.pod.key} fits and waits"
            )


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", range(25))
async def test_no_pod_waits_without_event_and_condition(seed: int) -> None:
    """After any events between two attempts, every waiting pod gets a message within the interval of two checks."""
    churn = Churn(seed)
    world, dice = churn.world, churn.dice
    writing = asyncio.create_task(world.engine.handle.conditions.run())
    for number in range(0, 200, 4):
        for step in range(dice.randint(1, 4)):
            churn.step(number + step)
            if dice.random() < 0.4:
                await world.step()
        world.clock.now += dice.choice((2.0, 11.0))
        if dice.random() < 0.5:
            await world.settle(10_000)
        world.clock.now += UNTOLD_SECONDS
        world.engine.handlers.pending_pods.tell_untold()
        for _ in range(200):
            await asyncio.sleep(0)
        waiting = {pending.pod.key.name for pending in world.engine.handle.pending}
        assert waiting <= {name for name, reason, _ in world.diary.events if reason == FAILED}
        assert waiting <= {call.split()[1].rstrip(":") for call in world.server.calls if call.startswith("condition")}
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)


async def test_a_pod_that_comes_while_its_class_is_tried_again_is_told() -> None:
    """The class is active: the pod cannot be told a verdict when it comes, and the next verdict is no news for the class."""
    world = make_world(make_node("node"))
    first, second = make_pod("first", cpu=99_000), make_pod("second", cpu=99_000)
    world.waits(first)
    await world.settle()
    world.engine.handle.queue.wake(ClusterEvent.NODE_CHANGED, world.clock() + 30)
    assert world.engine.handle.queue.is_active(world.pending(first).request_class)
    world.waits(second)
    await world.settle()
    assert world.pending(second).message == world.pending(first).message != ""


async def test_a_pod_that_joins_a_parked_class_after_a_pause_is_told() -> None:
    """Its bind failed; meanwhile another pod of the class was rejected, and the verdict was told without it."""
    world = make_world(make_node("node", cpu=2))
    failed, other = make_pod("failed", cpu=1500), make_pod("other", cpu=1500)
    queue, clock = world.engine.handle.queue, world.clock
    world.waits(failed)
    queue.back_off(world.pending(failed), clock() + 2)
    world.engine.handlers.bound_pods.observe(None, bound(make_pod("big", cpu=2000), "node"))
    world.waits(other)
    await world.settle()
    clock.now += 3
    assert await world.step() is None
    assert world.pending(failed).message == ""
    world.engine.handlers.pending_pods.tell_untold()
    assert world.pending(failed).message == world.pending(other).message != ""


async def test_pods_that_are_not_tried_are_told_so() -> None:
    world = make_world(make_node("node"))
    world.waits(*(make_pod(f"pod-{number}") for number in range(2 * MOST_UNDECIDED)))
    tell = world.engine.handlers.pending_pods.tell_untold
    tell()
    assert world.diary.events == []
    world.clock.now += UNTOLD_SECONDS
    tell()
    told = [message for _, _, message in world.diary.events]
    assert told == ["the pod has not been tried yet; 40 pods are in the active queue"] * MOST_UNDECIDED


async def test_only_the_leader_tells() -> None:
    world = make_world(make_node("node"))
    world.waits(make_pod("pod"))
    world.lease.held = False
    world.clock.now += 60
    world.engine.handlers.pending_pods.tell_untold()
    world.lease.held = True
    world.clock.now += UNTOLD_SECONDS / 2
    world.engine.handlers.pending_pods.tell_untold()
    assert world.diary.events == []
