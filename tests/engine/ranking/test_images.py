"""Nodes that have a pod's images: the columns say what the scalar rule says, and a pod goes there."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.objects.node import Image, Node
from koord_numa.core.score.node_scores import MIB, score_images
from koord_numa.engine.ranking.label_columns import ImageColumns
from tests.engine.world import make_node, make_pod, make_world

NAMES = ("a:1", "b:1", "c:1", "d:1")
CUDA = frozenset({Image(("cuda:12",), 4000 * MIB)})


def random_images(dice: Random) -> frozenset[Image]:
    return frozenset(Image((name,), dice.randrange(1, 2000) * MIB) for name in dice.sample(NAMES, dice.randrange(4)))


@given(seed=st.integers(0, 2**32))
def test_columns_count_as_one_node_after_the_other(seed: int) -> None:
    dice, columns, nodes = Random(seed), ImageColumns(4), dict[int, Node]()
    for step in range(20):
        row = dice.randrange(4 if step < 10 else 8)
        if step == 10:
            columns.grow(8)
        if dice.random() < 0.2:
            nodes.pop(row, None)
            columns.write(row, None)
        else:
            nodes[row] = make_node(f"n{row}", images=random_images(dice))
            columns.write(row, nodes[row].images)
        names = tuple(dice.choices((*NAMES, "", "unknown:1"), k=dice.randint(1, 3)))
        seen, points = columns.seen_by(names), columns.points(names)
        for row, node in nodes.items():
            assert (0 if points is None else points[row]) == score_images(node, seen)


@pytest.mark.parametrize(("weight", "expected"), [(1, "n2"), (0, "n0")])
async def test_a_pod_goes_where_its_image_is(weight: int, expected: str) -> None:
    settings = f"profiles: [{{scoreWeights: {{images: {weight}}}}}]"
    world = make_world(make_node("n0"), make_node("n1"), make_node("n2", images=CUDA), settings=settings)
    world.waits(make_pod("pod", images=("cuda:12",)))
    await world.settle()
    assert world.nodes_of()["pod"] == expected


async def test_pods_with_equal_requests_share_a_class() -> None:
    world = make_world(make_node("n0"), make_node("n1", images=CUDA))
    classes = world.engine.classes
    assert classes.of(make_pod("one", images=("cuda:12",))) is classes.of(make_pod("two", images=("tiny:1",)))
    world.waits(make_pod("one", images=("cuda:12",)))
    await world.settle()
    world.waits(make_pod("two", images=("tiny:1",)))
    await world.settle()
    assert world.nodes_of() == {"one": "n1", "two": "n1"}  # the second one fills the node


async def test_a_pulled_image_counts_and_wakes_no_hopeless_pod() -> None:
    world = make_world(make_node("n0"), make_node("n1"))
    world.waits(make_pod("huge", cpu=64000))
    await world.settle()
    pending = world.engine.handle.pending.get("uid-huge")
    assert pending is not None
    tried = pending.attempts
    world.engine.handlers.nodes.observe("MODIFIED", make_node("n1", images=CUDA))
    world.clock.now += 60
    await world.settle()
    assert pending.attempts == tried
    world.waits(make_pod("pod", images=("cuda:12",)))
    await world.settle()
    assert world.nodes_of()["pod"] == "n1"


async def test_dry_runs_show_the_points() -> None:
    world = make_world(make_node("n0"), make_node("n1", images=CUDA))
    found = world.engine.dry_run(make_pod("pod", images=("cuda:12",)))
    assert found is not None
    parts = {name: getattr(answer, "parts", {})["images"] for name, answer in found.items()}
    assert parts == {"n0": 0, "n1": 100}
