"""Rows selected by name and labels are the nodes that the scalar filters let through, also after nodes have changed, come and gone."""

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.fit.node_filters import fits_node_affinity, fits_node_name
from koord_numa.core.objects.constraints import Constraints, NodeTerm, Operator, Requirement
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.scheduling.request import Profile, scheduling_request
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.cache import DELETED, Cache
from koord_numa.engine.ranking.node_table import NodeTable
from koord_numa.engine.ranking.score_bounds import ScoreBounds, SelectedRows, names_nodes

KEYS, VALUES = ("zone", "disk", "cores"), ("a", "b", "7", "12")
NAMES = tuple(f"n{number}" for number in range(8))


def _requirement(dice: Random) -> Requirement:
    operator = dice.choice(list(Operator))
    if operator in (Operator.GT, Operator.LT):
        return Requirement(dice.choice(KEYS), operator, ("8",))
    values = () if operator in (Operator.EXISTS, Operator.DOES_NOT_EXIST) else tuple(dice.sample(VALUES, 2))
    return Requirement(dice.choice(KEYS), operator, values)


def _term(dice: Random) -> NodeTerm:
    labels = tuple(_requirement(dice) for _ in range(dice.randrange(3)))
    operator = dice.choice((Operator.IN, Operator.NOT_IN))
    fields = (Requirement("metadata.name", operator, (dice.choice(NAMES),)),) if dice.random() < 0.4 else ()
    return NodeTerm(labels=labels, fields=fields)


def _demands(dice: Random) -> Constraints:
    return Constraints(
        node_name=dice.choice((*NAMES, "", "", "", "")),
        node_selector=tuple((key, dice.choice(VALUES)) for key in dice.sample(KEYS, dice.randrange(2))),
        node_terms=tuple(_term(dice) for _ in range(dice.randrange(3))) if dice.random() < 0.7 else None,
    )


def _node(dice: Random, name: str) -> Node:
    labels = {key: dice.choice(VALUES) for key in dice.sample(KEYS, dice.randrange(4))}
    features = dice.choice((None, frozenset[str](), frozenset({"f"})))
    return Node(name, labels=labels, allocatable={"cpu": 8000, "pods": 110}, features=features)


@given(seed=st.integers(0, 2**32))
def test_columns_select_the_nodes_that_the_filters_let_through(seed: int) -> None:
    dice = Random(seed)
    table = NodeTable()
    cache = Cache(lambda _event, info, _pod: table.changed(info))
    requests = [PodRequest(constraints=_demands(dice)) for _ in range(4)]
    chosen = [SelectedRows(request, table.labels) for request in requests]
    for _ in range(12):
        cache.observe_node(DELETED if dice.random() < 0.2 else None, _node(dice, dice.choice(NAMES)))
        table.refresh()
        for request, rows in zip(requests, chosen, strict=True):
            found = rows.mask()
            for name, row in table.row_of.items():
                node = cache.nodes[name].node
                if node is None:
                    raise AssertionError(name)
                fits = fits_node_name(request, node) is None and fits_node_affinity(request, node) is None
                assert found[row] == fits
                assert fits or names_nodes(request)


def test_features_tell_kinds_of_nodes_apart() -> None:
    table = NodeTable()
    cache = Cache(lambda _event, info, _pod: table.changed(info))
    plain = Node("plain", allocatable={"cpu": 8000, "pods": 110}, features=frozenset())
    cache.observe_node(None, plain)
    cache.observe_node(None, replace(plain, name="able", features=frozenset({"f"})))
    table.refresh()
    ask = scheduling_request(PodRequest(constraints=Constraints(features=("f",))), Profile())
    bounds = ScoreBounds(ask, Profile(), table)
    rows = {name: bounds.bounds(np.array([row]))[0] for name, row in table.row_of.items()}
    assert rows["plain"] < 0 <= rows["able"]
