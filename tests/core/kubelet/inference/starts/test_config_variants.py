"""Which sockets there may be, where only distances of NUMA nodes are known."""

from dataclasses import replace

import pytest

from koord_numa.core.kubelet.inference.config_variants import socket_partitions
from tests.machines import machine


def _sockets(shape: str, distance: dict[bool, int]) -> list[list[list[int]]]:
    """The sockets of each way, as lists of NUMA nodes; by the machine's own sockets pairs are near (``True``) or far."""
    there = machine(shape)
    socket = {cpu.numa: cpu.socket for cpu in there.cpus}
    there = replace(
        there, distances={(a, b): distance[socket[a] == socket[b]] for a in there.numa_ids for b in there.numa_ids}
    )
    return [
        [[numa for numa in there.numa_ids if ways[numa] == one] for one in sorted(set(ways.values()))]
        for ways in socket_partitions(there)
    ]


def test_distances_tell_sockets() -> None:
    assert _sockets("2x2x1x1", {True: 12, False: 32}) == [[[0, 1], [2, 3]], [[0, 1, 2, 3]], [[0], [1], [2], [3]]]


@pytest.mark.parametrize(
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
