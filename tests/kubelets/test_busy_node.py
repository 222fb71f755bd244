"""
The law of kubelet-owned nodes on a busy node: many pods beside one another, names that come back or never do, schedulers that take over,
refusals of another maker's admission plugin.

Five lives, the same in every run; ``--law-examples`` above a hundred asks for more, other ones.
"""

from pathlib import Path
from random import Random
from typing import Final

import pytest

from koord_numa.sandbox.machines import NodeDescription
from koord_numa.sandbox.machines.description import read_descriptions
from tests.chaos.kinds import MACHINES, any_pod
from tests.kubelets.law import broken
from tests.kubelets.node_life import COINING, OWNER, JsonObject, NodeLife
from tests.kubelets.test_admission_law import FIXED

LENGTH: Final = 200
FEW: Final = 5
ACTIONS: Final = {
    "place": 8,
    "admit": 8,
    "end": 5,
    "hear": 9,
    "scan": 2,
    "deliver": 2,
    "wait": 1,
    "restart": 1,
    "lie": 1,
}
"""Weights of the actions."""


def busy_nodes() -> list[NodeDescription]:
    """One node of each kind of the chaos runs whose kubelet chooses."""
    return [node for node in read_descriptions(MACHINES, Path()) if node.name in ("kubelet-0", "wide-0")]


def life_of(dice: Random, owner: JsonObject = OWNER) -> NodeLife:
    life = NodeLife(dice.choice(busy_nodes()), owner=owner)
    for what in dice.choices(list(ACTIONS), list(ACTIONS.values()), k=LENGTH):
        if what == "place":
            pod, _ = any_pod("any", dice)
            spec = {key: value for key, value in pod["spec"].items() if key != "schedulerName"}
            life.place(spec)
        elif what == "end":
            life.end(dice.randrange(8))
        elif what == "wait":
            life.wait(dice.choice((1.0, 5.0)))
        elif what == "restart":
            life.restart(dice.randrange(3))
        else:
            getattr(life, what)()
    life.settle()
    return life


def test_what_is_placed_on_a_busy_node_is_admitted(pytestconfig: pytest.Config) -> None:
    count = int(pytestconfig.getoption("--law-examples"))
    first, lives = (0, FEW) if count <= FIXED else (Random().randrange(1 << 30), count // 10)
    placed = 0
    for seed in range(first, first + lives):
        life = life_of(Random(seed), COINING if seed % 2 else OWNER)
        placed += life.placed
        found = broken(life)
        assert not found, "\n".join([f"seed {seed}", *found])
    assert placed > 10 * lives


def test_a_pod_with_a_reused_name_is_a_new_pod() -> None:
    """Life 1029 of these gave a NUMA node's huge pages away twice: an old fingerprint had the new pod's name in it."""
    assert not broken(life_of(Random(1029)))
