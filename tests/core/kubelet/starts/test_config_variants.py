"""Possible sockets if only the distances of NUMA nodes are known."""

from collections.abc import Mapping, Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.kubelet.node_config import socket_partitions
from koord_numa.core.value_objects import replace
from tests.machines import machine
from tests.tables import each_row

# Two dies a socket with links of their own: the other die of a socket is as far as some dies of others.
OPTERON = (
    (10, 16, 16, 22, 16, 22, 16, 22),
    (16, 10, 22, 16, 16, 22, 22, 16),
    (16, 22, 10, 16, 16, 16, 16, 16),
    (22, 16, 16, 10, 16, 16, 22, 22),
    (16, 16, 16, 16, 10, 16, 16, 22),
    (22, 22, 16, 16, 16, 10, 22, 16),
    (16, 22, 16, 22, 16, 22, 10, 16),
    (22, 16, 16, 22, 22, 16, 16, 10),
)
REGULAR = tuple(
    tuple(10 if a == b else 16 if (a ^ b).bit_count() == 1 or a ^ b == 6 else 22 for b in range(8)) for a in range(8)
)

PAIRS = [[0, 1], [2, 3], [4, 5], [6, 7]]
EACH = [[numa] for numa in range(8)]


def _sockets(shape: str, distance: dict[bool, int]) -> list[list[list[int]]]:
    """The sockets of each way, as lists of NUMA nodes; by the machine's own sockets pairs are near (``True``) or far."""
    there = machine(shape)
    socket = {cpu.numa: cpu.socket for cpu in there.cpus}
    there = replace(
        there, distances={(a, b): distance[socket[a] == socket[b]] for a in there.numa_ids for b in there.numa_ids}
    )
    return [_lists(ways) for ways in socket_partitions(there)]


def _lists(ways: Mapping[int, int]) -> list[list[int]]:
    return [[numa for numa in ways if ways[numa] == one] for one in sorted(set(ways.values()))]


def _of_table(table: Sequence[Sequence[int]], *, guessed: bool) -> list[list[list[int]]]:
    numas = range(len(table))
    there = replace(machine(f"1x{len(table)}x1x1"), distances={(a, b): table[a][b] for a in numas for b in numas})
    return [_lists(ways) for ways in socket_partitions(there, guessed=guessed)]


def test_distances_tell_sockets() -> None:
    assert _sockets("2x2x1x1", {True: 12, False: 32}) == [[[0, 1], [2, 3]], [[0, 1, 2, 3]], [[0], [1], [2], [3]]]


@each_row(
    ("shape", "between"),
    [
        pytest.param("1x2x1x1", [], id="two NUMA nodes"),
        pytest.param("2x2x1x1", [[[0, 1], [2, 3]], [[0, 2], [1, 3]]], id="four"),
        pytest.param("1x5x1x1", [], id="five cannot be in several of equal size"),
        pytest.param(
            "2x3x1x1",
            [[[0, 1, 2], [3, 4, 5]], [[0, 2, 4], [1, 3, 5]], [[0, 1], [2, 3], [4, 5]], [[0, 3], [1, 4], [2, 5]]],
            id="six",
        ),
    ],
)
def test_equal_distances_tell_nothing(shape: str, between: list[list[list[int]]]) -> None:
    numas = machine(shape).numa_ids
    assert _sockets(shape, {True: 20, False: 20}) == [[[*numas]], [[numa] for numa in numas], *between]


@each_row("guessed", [True, False])
@each_row(
    ("table", "between"),
    [
        pytest.param(OPTERON, [PAIRS], id="neighbours alone are near"),
        pytest.param(
            REGULAR,
            [[[0, 2, 4, 6], [1, 3, 5, 7]], PAIRS, [[0, 4], [1, 5], [2, 6], [3, 7]]],
            id="so are those in turn",
        ),
    ],
)
def test_links_between_sockets_as_short_as_inside(
    table: Sequence[Sequence[int]], between: list[list[list[int]]], *, guessed: bool
) -> None:
    assert _of_table(table, guessed=guessed) == [*between, [[*range(8)]], EACH]


@given(sockets=st.integers(2, 4), size=st.integers(2, 4), data=st.data(), guessed=st.booleans())
def test_neighbours_in_sockets_are_among_those_that_may_be(
    sockets: int, size: int, data: st.DataObject, *, guessed: bool
) -> None:
    """NUMA node 1 is near 0 and the last, which are not near one another. NUMA nodes of different sockets are at any distance."""
    last = sockets * size - 1
    numas = range(last + 1)
    far = st.sampled_from((16, 22, 32))
    table = [[10 if a == b else 16 for b in numas] for a in numas]
    for a, b in combinations(numas, 2):
        if a // size != b // size:
            table[a][b] = table[b][a] = {(0, last): 22, (1, last): 16}.get((a, b)) or data.draw(far)
    assert [[*numas[at : at + size]] for at in range(0, last, size)] in _of_table(table, guessed=guessed)
