"""Preferences of users outrank node filling: small clusters with the outcome of kube-scheduler, or a more even one."""

from collections import Counter

import pytest

from koord_numa.core.objects.constraints import (
    Constraints,
    LabelSelector,
    NodeTerm,
    Operator,
    PodTerm,
    PreferredNodeTerm,
    PreferredPodTerm,
    Requirement,
    SpreadConstraint,
    TaintEffect,
)
from koord_numa.core.objects.node import Node, Taint
from koord_numa.core.objects.request import Pod
from koord_numa.core.value_objects import replace
from tests.engine.world import World, bound, make_node, make_pod, make_world

HOST = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
WEB = LabelSelector((Requirement("app", Operator.IN, ("web",)),))
FRIENDS = LabelSelector((Requirement("app", Operator.IN, ("friend",)),))


def host(name: str, **changes: object) -> Node:
    """A large node that is labelled with its name."""
    node = make_node(name, cpu=64, memory=256, labels={HOST: name})
    return replace(node, **{**changes, "allocatable": {**node.allocatable, "pods": 500}})  # type: ignore[arg-type]  # fields of several types


def web(name: str, **constraints: object) -> Pod:
    """A small pod of the application."""
    demands = Constraints(**constraints)  # type: ignore[arg-type]  # fields of several types  # constraints are named fields
    pod = make_pod(name, cpu=100, memory=0, labels=(("app", "web"),))
    return replace(pod, request=replace(pod.request, constraints=demands, labels=pod.labels))


async def placed(world: World, count: int, **constraints: object) -> Counter[str]:
    """Place the replicas one after the other and count them by node."""
    for number in range(count):
        world.waits(web(f"web-{number}", **constraints))
        await world.settle()
    return Counter(node for name, node in world.nodes_of().items() if name.startswith("web-"))


def half_full(*others: Node) -> World:
    """``n0`` is half full, the other nodes are empty."""
    world = make_world(host("n0"), *others)
    world.engine.handlers.bound_pods.observe(None, bound(make_pod("there", cpu=32000, memory=128), "n0"))
    return world


def away(weight: int) -> tuple[PreferredPodTerm, ...]:
    return (PreferredPodTerm(weight, PodTerm(HOST, WEB, ("default",))),)


@pytest.mark.parametrize("weight", [1, 100])
async def test_preferred_anti_affinity_spreads_evenly(weight: int) -> None:
    world = make_world(*(host(f"n{i}") for i in range(3)))
    assert await placed(world, 9, preferred_anti_affinity=away(weight)) == {"n0": 3, "n1": 3, "n2": 3}


@pytest.mark.parametrize("weight", [1, 100])
async def test_it_does_so_though_a_node_is_half_full(weight: int) -> None:
    found = await placed(half_full(host("n1"), host("n2")), 12, preferred_anti_affinity=away(weight))
    assert found == {"n0": 4, "n1": 4, "n2": 4}


def evenly(key: str) -> tuple[SpreadConstraint, ...]:
    return (SpreadConstraint(key, 1, hard=False, selector=WEB),)


async def test_soft_spreading_keeps_nodes_even_though_one_is_half_full() -> None:
    found = await placed(half_full(host("n1"), host("n2")), 12, spread=evenly(HOST))
    assert max(found.values()) - min(found.values()) <= 1


async def test_a_node_without_the_topology_label_comes_last() -> None:
    zoned = [host(f"n{i}", labels={HOST: f"n{i}", ZONE: "ab"[i]}) for i in range(2)]
    found = await placed(make_world(*zoned, host("n2")), 8, spread=evenly(ZONE))
    assert found == {"n0": 4, "n1": 4}


async def test_large_counts_do_not_saturate() -> None:
    world = make_world(*(host(f"n{i}", labels={HOST: f"n{i}", ZONE: f"z{i}"}) for i in range(3)))
    for node, count in (("n0", 150), ("n1", 120), ("n2", 120)):
        for number in range(count):
            world.engine.handlers.bound_pods.observe(None, bound(web(f"there-{node}-{number}"), node))
    assert await placed(world, 60, spread=evenly(ZONE)) == {"n1": 30, "n2": 30}


async def test_a_soft_taint_keeps_pods_away() -> None:
    world = make_world(host("n0", taints=(Taint("slow", TaintEffect.PREFER_NO_SCHEDULE),)), host("n1"), host("n2"))
    world.engine.handlers.bound_pods.observe(None, bound(make_pod("there", cpu=32000, memory=128), "n0"))
    assert (await placed(world, 6))["n0"] == 0


async def test_preferred_node_affinity_decides() -> None:
    fast = NodeTerm(labels=(Requirement("disk", Operator.IN, ("ssd",)),))
    world = half_full(host("n1"), host("n2", labels={HOST: "n2", "disk": "ssd"}))
    assert await placed(world, 6, preferred_nodes=(PreferredNodeTerm(1, fast),)) == {"n2": 6}


async def test_preferred_pod_affinity_decides() -> None:
    world = half_full(host("n1"), host("n2"))
    friend = replace(bound(make_pod("friend", cpu=100, memory=0), "n1"), labels=(("app", "friend"),))
    world.engine.handlers.bound_pods.observe(None, friend)
    near = (PreferredPodTerm(1, PodTerm(HOST, FRIENDS, ("default",))),)
    assert await placed(world, 6, preferred_affinity=near) == {"n1": 6}
