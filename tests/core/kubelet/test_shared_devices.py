"""Numbers of devices near NUMA nodes: how they are dealt out, and what two kinds of exporters say of those in use."""

from itertools import combinations_with_replacement

import pytest

from koord_numa.core.kubelet.hypothesis import SharedDevices, deal, fewest_free, most_used
from koord_numa.core.objects.node import Zone
from tests.kubelets.strategies import GPU

NUMA = 3
MASKS = range(1, 1 << NUMA)


def counts(masks: tuple[int, ...] | list[int]) -> dict[int, int]:
    return {numa: sum(mask >> numa & 1 for mask in masks) for numa in range(NUMA)}


def test_devices_are_dealt_out_with_the_numbers_that_exist() -> None:
    for masks in combinations_with_replacement(MASKS, 4):
        dealt = deal(counts(masks), len(masks))
        assert counts(dealt) == counts(masks)
        assert all(dealt)


def test_a_device_in_use_is_charged_to_every_numa_node() -> None:
    assert fewest_free(SharedDevices({0: 2, 1: 4, 2: 3}, 6), 3) == {0: 0, 1: 1, 2: 0}


@pytest.mark.parametrize(
    ("available", "in_full", "most"),
    [
        ((1, 1, 2), True, {0: 1, 1: 1, 2: 0}),  # counted on each NUMA node near it
        ((2, 0, 2), False, {0: 1, 1: 2, 2: 1}),  # NFD: twice on the last of two NUMA nodes
        ((2, 0, 2), None, {0: 1, 1: 2, 2: 1}),
    ],
)
def test_exporters_bound_the_devices_in_use(
    available: tuple[int, ...], in_full: bool | None, most: dict[int, int]
) -> None:
    zones = [Zone(numa, {GPU: 2}, {GPU: 2}, {GPU: free}) for numa, free in enumerate(available)]
    assert most_used(GPU, zones, 4, in_full=in_full) == most
