"""Explanations of large clusters: a rejection by a small pool is not hidden by those of a large pool."""

from collections.abc import Iterator
from random import Random

import numpy as np
import pytest

from koord_numa.core.explain import closest_nodes, describe, explain
from koord_numa.core.objects.constraints import Constraints, TaintEffect
from koord_numa.core.objects.node import Node, Taint
from koord_numa.core.objects.request import Container, NumaSpec, Pod, PodKey, PodRequest
from koord_numa.core.objects.verdicts import NumaNumbers, Reason, Rejection, Unschedulable
from koord_numa.core.objects.vocabulary import ContainerKind, NumaPolicy, QosClass
from koord_numa.core.value_objects import replace
from koord_numa.engine.ranking.node_ranking import DETAILED, RejectionTable
from koord_numa.view.advice import advise
from tests.engine.world import GIB, World, bound, make_node, make_pod, make_topology, make_world
from tests.tables import each_row

CLOSEST = 8
"""Nodes that the page and the advice take at most."""


def wide(cpus: int) -> Pod:
    """A pod of exclusive CPUs of one NUMA node, for the pools y and z."""
    amounts = {"cpu": cpus * 1000, "memory": GIB}
    container = Container("app", ContainerKind.APP, amounts, amounts)
    request = PodRequest(
        containers=(container,),
        qos=QosClass.LSR,
        numa=NumaSpec(policy=NumaPolicy.SINGLE_NUMA_NODE),
        constraints=Constraints(node_selector=(("large", "yes"),)),
    )
    return Pod(PodKey("default", "wide", "uid-wide"), request, scheduler="koord-numa")


def nodes(count: int) -> Iterator[Node]:
    """Mostly small nodes of another pool and tainted nodes, whose names come first, and four nodes of two large pools."""
    for at in range(count - 4):
        if at % 5:
            yield make_node(f"a-{at}", cpu=8)
        else:
            taint = Taint("dedicated", TaintEffect.NO_SCHEDULE, "b")
            yield make_node(f"b-{at}", cpu=8, labels={"large": "yes"}, taints=(taint,))
    for at in range(2):
        yield make_node(f"y-{at}", cpu=48, memory=64, labels={"large": "yes"})
        yield make_node(f"z-{at}", cpu=64, memory=64, labels={"large": "yes"})


def large_world(count: int) -> World:
    world = make_world(*nodes(count))
    for at in range(2):
        world.engine.handlers.topologies.observe(None, make_topology(f"y-{at}", numa=2, cores=12, memory=64))
        world.engine.handlers.topologies.observe(None, make_topology(f"z-{at}", numa=2, cores=16, memory=64))
    return world


def rejections(world: World, pod: Pod) -> tuple[dict[str, Rejection], dict[str, Rejection]]:
    """The rejections of a decision with its bounded memory, and those of a dry run, which keeps every detail."""
    request_class = world.engine.classes.of(pod)
    assert request_class is not None
    verdict = world.engine.handle.selector.decide(request_class)
    assert isinstance(verdict, Unschedulable)
    run = world.engine.dry_run(pod)
    assert run is not None
    return dict(verdict.rejections), {name: it for name, it in run.items() if isinstance(it, Rejection)}


@pytest.mark.parametrize("count", [220, 5000])
async def test_the_nodes_that_could_take_the_pod_are_described(count: int) -> None:
    world, pod = large_world(count), wide(40)
    for change in ("", "z-0", "z-1"):
        if change:  # another node of the same pool becomes the closest
            held = make_pod(f"held-{change}", cpu=3000 if change == "z-0" else 9000)
            world.engine.handlers.bound_pods.observe(None, bound(held, change))
        decided, evaluated = rejections(world, pod)
        assert len(decided) == len(evaluated) == count
        assert explain(decided) == explain(evaluated)
        closest = closest_nodes(decided, CLOSEST)
        assert closest == closest_nodes(evaluated, CLOSEST)
        assert [describe(decided[name]) for name in closest] == [describe(evaluated[name]) for name in closest]
        assert {name[0] for name in closest} == {"y", "z"}
        assert "NUMA 0 has" in explain(decided)
    texts = [remedy.text for remedy in await advise(world.engine, pod, decided)]
    assert texts == [remedy.text for remedy in await advise(world.engine, pod, evaluated)]
    assert any("32 CPUs instead of 40 fits on z-0" in text for text in texts), texts


def random_rejection(dice: Random) -> Rejection:
    total = dice.choice((8000, 16000))
    numbers = tuple(NumaNumbers(numa, "cpu", total, dice.randrange(0, total, 1000), 20000) for numa in range(2))
    return dice.choice(
        (
            Rejection(Reason.NUMA_AFFINITY, "cannot align", "detail", numbers=numbers),
            Rejection(Reason.NUMA_AFFINITY, "cannot align", resolvable=dice.random() < 0.5),
            Rejection(Reason.RESOURCES, "Insufficient cpu", lack=dice.randrange(10) / 10),
            Rejection(Reason.TAINT, f"taint {dice.randrange(3)}", resolvable=False),
        )
    )


@each_row("seed", range(4))
def test_details_are_kept_of_the_nodes_that_are_shown(seed: int) -> None:
    """However rejections come and go, the described nodes are those of a memory without bounds."""
    dice, table, rows = Random(seed), RejectionTable(), 200
    table.resize(rows)
    ranks = np.arange(rows, 0, -1, dtype=np.int64)  # earlier names have larger ranks
    full: dict[int, Rejection] = {}
    for _ in range(60):
        for row in dice.sample(range(rows), 30):
            table.forget(row)
            full.pop(row, None)
            if dice.random() < 0.9:
                full[row] = random_rejection(dice)
                table.add(row, full[row])
        shown = table.representatives(ranks)
        for row in shown:
            if not table.has_details(row):
                table.add(row, full[row])
        known = {f"{row:04}": found for row in range(rows) if (found := table.get(row)) is not None}
        assert known.keys() == {f"{row:04}" for row in full}
        named = {f"{row:04}": rejection for row, rejection in full.items()}
        names = closest_nodes(named, CLOSEST)
        assert {int(name) for name in names} <= set(shown)
        assert [known[name] for name in names] == [named[name] for name in names]
        assert closest_nodes(known, CLOSEST) == names
        assert len(table._detailed) <= DETAILED


def test_the_amount_that_a_whole_node_lacks_counts() -> None:
    """Nodes without NUMA numbers are ordered by what they lack, not by name."""
    world = make_world(*(make_node(f"n-{at}", cpu=4 + at) for at in range(4)))
    for at in range(4):  # full but for one, two, three and four CPUs
        world.engine.handlers.bound_pods.observe(None, bound(make_pod(f"p-{at}", cpu=3000), f"n-{at}"))
    decided, _ = rejections(world, make_pod("waits", cpu=4900))
    assert closest_nodes(decided, 2) == ["n-3", "n-2"]


@pytest.mark.parametrize(
    ("amounts", "text"),
    [
        pytest.param({"example.com/gpus": 2}, "no node has example.com/gpus: with example.com/gpu instead it fits on n", id="misspelled"),
        pytest.param({"example.com/gpus": 9}, "no node has example.com/gpus; nodes have example.com/gpu", id="misspelled-and-too-many"),
        pytest.param({"other.com/nic": 1}, "no node has other.com/nic: is its device plugin running?", id="unknown"),
        pytest.param({"example.com/gpu": 9}, "", id="known"),
    ],
)  # fmt: skip
async def test_a_resource_that_no_node_has(amounts: dict[str, int], text: str) -> None:
    node = make_node("n", cpu=8)
    world = make_world(replace(node, allocatable={**node.allocatable, "example.com/gpu": 4}))
    container = Container("app", ContainerKind.APP, {"cpu": 1000, **amounts}, {"cpu": 1000, **amounts})
    pod = Pod(PodKey("default", "p", "p"), PodRequest(containers=(container,)), scheduler="koord-numa")
    decided, _ = rejections(world, pod)
    texts = [remedy.text for remedy in await advise(world.engine, pod, decided)]
    assert [it for it in texts if it.startswith("no node has")] == ([text] if text else [])


async def test_fractions_of_cpus_are_told_as_they_are() -> None:
    world = make_world(make_node("n", cpu=8))
    world.engine.handlers.topologies.observe(None, make_topology("n", numa=2, cores=2))
    pod = make_pod("p", cpu=2500)
    pod = replace(pod, request=replace(pod.request, qos=QosClass.LSR))
    decided, _ = rejections(world, pod)
    texts = [remedy.text for remedy in await advise(world.engine, pod, decided)]
    assert texts[:2] == [
        "container app with 3 CPUs instead of 2.5 fits on n, NUMA 0 (whole CPUs)",
        "container app with 2 CPUs instead of 2.5 fits on n, NUMA 0",
    ]


async def test_every_kind_of_taint_is_tried() -> None:
    """A hundred small tainted nodes do not hide a large node with another taint."""
    small = Taint("small", TaintEffect.NO_SCHEDULE, "x")
    taint = Taint("team", TaintEffect.NO_SCHEDULE, "b")
    world = make_world(
        *(make_node(f"a-{at:03}", cpu=4, taints=(small,)) for at in range(100)), make_node("z", cpu=32, taints=(taint,))
    )
    pod = make_pod("waits", cpu=9000)
    decided, _ = rejections(world, pod)
    texts = [remedy.text for remedy in await advise(world.engine, pod, decided)]
    assert "tolerating team=b:NoSchedule it fits on z" in texts
