"""Possible sources of exclusive CPUs, and the CPUs that are taken."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.cpus.kubelet_assignment import assign
from koord_numa.core.cpuset import CpuSet, lowest
from koord_numa.core.kubelet.cpu_manager import CpuReuse, CpuStock, Earlier
from koord_numa.core.kubelet.demand import SMT_ALIGNMENT, UNEXPECTED_ADMISSION, AdmitRejection
from koord_numa.core.kubelet.node_config import NodeConfig
from koord_numa.core.kubelet.state import KubeletNode
from koord_numa.core.objects.node import NodeResourceTopology, Zone
from koord_numa.core.objects.vocabulary import CpuOwner, KubeletPolicy
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import node
from tests.tables import each_row


def stock(some: KubeletNode, free: str, reusable: str = "") -> CpuStock:
    """CPUs in text."""
    return CpuStock(some, CpuSet.parse(free).bits, CpuSet.parse(reusable).bits)


FLAT = node("2x1x4x2")  # CPUs 0-7 on NUMA node 0, 8-15 on 1
QUAD = node("2x2x2x1")  # sockets {0,1} and {2,3}, two CPUs each NUMA node
RESERVED = node("2x1x4x2", reserved="0,8")
BY_SOCKET = node("2x2x2x1", options=("align-by-socket",))

WISHES: dict[str, tuple[CpuStock, int, list[tuple[int, bool]]]] = {
    "all free": (stock(FLAT, "0-15"), 8, [(1, True), (2, True), (3, False)]),
    "one NUMA node is busy": (stock(FLAT, "0-3,8-15"), 8, [(2, True), (3, False)]),
    "reserved CPUs count for the preferred size": (stock(RESERVED, "1-7,9-15"), 8, [(3, False)]),
    "too many for one": (stock(FLAT, "0-15"), 9, [(3, True)]),
    "too many": (stock(FLAT, "0-3"), 5, []),
    "reusable CPUs must be inside": (stock(FLAT, "0-7", "8-9"), 4, [(3, False)]),
    "reusable CPUs count": (stock(FLAT, "0-7", "8-11"), 4, [(2, True), (3, False)]),
    "by socket, wider masks inside one are preferred": (
        stock(BY_SOCKET, "0-7"),
        1,
        [
            (1, True),
            (2, True),
            (4, True),
            (8, True),
            (3, True),
            (5, False),
            (9, False),
            (6, False),
            (10, False),
            (12, True),
        ]
        + [(mask, False) for mask in (7, 11, 13, 14, 15)],
    ),
}


@each_row(("given", "needed", "hints"), WISHES.values(), ids=WISHES)
def test_hints(given: CpuStock, needed: int, hints: list[tuple[int, bool]]) -> None:
    assert [hint[:2] for hint in given.hints(needed).hints()] == hints
    assert list(given.hints(needed).preferred()) == [mask for mask, preferred in hints if preferred]


TAKES: dict[str, tuple[CpuStock, int, int | None, str]] = {
    "inside the mask": (stock(FLAT, "0-15"), 4, 0b10, "8-11"),
    "anywhere": (stock(FLAT, "0-15"), 4, None, "0-3"),
    "the rest from outside": (stock(FLAT, "0-3,8-15"), 6, 0b01, "0-3,8-9"),
    "reusable ones are as good as others": (stock(FLAT, "2-7", "0-1"), 2, 0b01, "0-1"),
    "by socket, from the whole socket first": (stock(BY_SOCKET, "0-7"), 3, 0b0001, "0-2"),
}


@each_row(("given", "needed", "mask", "taken"), TAKES.values(), ids=TAKES)
def test_takes(given: CpuStock, needed: int, mask: int | None, taken: str) -> None:
    bits = given.take(needed, mask)
    assert isinstance(bits, int)
    assert str(CpuSet(bits)) == taken


WHOLE = node("2x1x4x2", options=("full-pcpus-only",), reserved="0")
REFUSALS: dict[str, tuple[CpuStock, int, AdmitRejection]] = {
    "half a core": (stock(WHOLE, "1-15"), 3, AdmitRejection(SMT_ALIGNMENT, "3 CPUs are not a multiple of 2 per core")),
    "the sibling of a reserved CPU is no whole core": (
        stock(WHOLE, "1-15"),
        16,
        AdmitRejection(SMT_ALIGNMENT, "needed 16 CPUs on whole cores, free 14"),
    ),
    "reusable CPUs do not count for whole cores": (
        stock(WHOLE, "2-3", "4-7"),
        4,
        AdmitRejection(SMT_ALIGNMENT, "needed 4 CPUs on whole cores, free 2"),
    ),
    "too few": (stock(FLAT, "0-3"), 6, AdmitRejection(UNEXPECTED_ADMISSION, "needed 6 exclusive CPUs, free 4")),
}


@each_row(("given", "needed", "refusal"), REFUSALS.values(), ids=REFUSALS)
def test_refusals(given: CpuStock, needed: int, refusal: AdmitRejection) -> None:
    assert given.take(needed, None) == refusal


def test_reusable_cpus_can_be_taken_last() -> None:
    assert stock(FLAT, "4-7", "0-3").take(6, 0b01, CpuReuse.LEAST) == CpuSet.parse("0-1,4-7").bits


@given(st.lists(st.integers(1, 12), min_size=1, max_size=4), st.data())
def test_made_up_cpus_of_one_numa_node_are_taken_in_order(sizes: list[int], data: st.DataObject) -> None:
    """On a machine without siblings, the shortcut takes the same CPUs as the kubelet's order."""
    zones = [Zone(numa, *([{"cpu": 1000 * count}] * 3)) for numa, count in enumerate(sizes)]
    made_up = NodeConfig.of(NodeResourceTopology("n", CpuOwner.KUBELET, zones=tuple(zones)), {}).node
    here = made_up.machine.numa_bits[data.draw(st.integers(0, len(sizes) - 1))]
    pool = here & data.draw(st.integers(0, here))
    count = data.draw(st.integers(0, pool.bit_count()))
    assert CpuSet(lowest(pool, count)) == assign(made_up.machine, CpuSet(pool), count, made_up.static_options)


WHOLE = node("2x1x8x2", KubeletPolicy.NONE, options=("full-pcpus-only",))


@given(st.integers(0, WHOLE.machine.bits), st.lists(st.sampled_from([2, 4, 6, 8, 10, 14]), min_size=2, max_size=4))
def test_the_smaller_of_two_core_choices_is_part_of_the_larger(pool: int, counts: list[int]) -> None:
    """The kubelet's own order, on any CPUs that are free; which is why init containers' CPUs come first again."""
    chosen = [assign(WHOLE.machine, CpuSet(pool), count, WHOLE.static_options) for count in sorted(counts)]
    taken = [each.bits for each in chosen if isinstance(each, CpuSet)]
    assert not any(less & ~more for less, more in pairwise(taken))


@pytest.mark.parametrize(("needed", "left"), [(2, 2), (4, 0), (8, 0)])
def test_whole_cores_of_init_containers_come_first_again(needed: int, left: int) -> None:
    """Also where a scheduler does not know the CPUs' ids: what an init container leaves behind is then no question."""
    made_up = replace(WHOLE, ids_are_real=False, takes_whole_cores=True)
    given_ = replace(stock(made_up, "4-31", "0-3"), earlier=Earlier(None, 32, ((True, 4),)))
    for order in (CpuReuse.LEAST, CpuReuse.MOST):
        taken = given_.take(needed, None, order)
        assert isinstance(taken, int)
        assert (0b1111 & ~taken).bit_count() == left


def test_init_containers_lose_a_numa_node_taken_as_a_whole() -> None:
    """takeFullFirstLevel: from the size of a NUMA node on the rule does not hold, and the worst order is taken."""
    made_up = replace(WHOLE, ids_are_real=False, takes_whole_cores=True)
    given_ = replace(stock(made_up, "4-31", "0-3"), earlier=Earlier(None, 32, ((True, 4),)))
    taken = given_.take(16, None, CpuReuse.LEAST)
    assert isinstance(taken, int)
    assert not taken & 0b1111
