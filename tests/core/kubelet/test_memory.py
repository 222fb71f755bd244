"""Memory groups: who may join whom, how blocks are drained and given back."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.kubelet.admit import MemoryStock
from koord_numa.core.kubelet.demand import UNEXPECTED_ADMISSION, AdmitRejection
from koord_numa.core.kubelet.state import ContainerAffinity, MemoryBlock, MemoryTable
from tests.tables import each_row

ANY = ContainerAffinity(None, preferred=False)


def table(*blocks: tuple[int, int], numa: int = 3, supply: int = 10) -> MemoryTable:
    """NUMA nodes of so much memory each, with (amount, mask) blocks taken."""
    made = MemoryTable.of({i: {"memory": supply} for i in range(numa)})
    for amount, mask in blocks:
        made.take(MemoryBlock("memory", amount, mask), covered=0)
    return made


HINTS: dict[str, tuple[MemoryTable, int, list[tuple[int, bool]]]] = {
    "an empty machine": (table(numa=2), 6, [(1, True), (2, True), (3, False)]),
    "too big for one": (table(numa=2), 12, [(3, True)]),
    "a used NUMA node joins no group": (table((2, 1), numa=2), 9, [(2, True)]),
    "a grouped NUMA node is never alone": (table((12, 3)), 1, [(4, True), (3, False)]),
    "the very same group may be shared": (table((12, 3)), 8, [(4, True), (3, False)]),
    "no other group with a member of it": (table((12, 3)), 15, []),
    "beyond everything": (table(), 31, []),
}


@each_row(("given_", "amount", "hints"), HINTS.values(), ids=HINTS)
def test_hints(given_: MemoryTable, amount: int, hints: list[tuple[int, bool]]) -> None:
    assert [hint[:2] for hint in MemoryStock(given_, {}).hints({"memory": amount}).hints()] == hints


def test_what_an_init_container_left_counts_for_its_mask_only() -> None:
    full = table((10, 1), (10, 2), numa=2)
    assert [hint[:2] for hint in MemoryStock(full, {(1, "memory"): 4}).hints({"memory": 4}).hints()] == [(1, True)]


CHOICES: dict[str, tuple[MemoryTable, int, ContainerAffinity, int | AdmitRejection]] = {
    "the hint": (table(), 6, ContainerAffinity(0b10, preferred=True), 0b10),
    "its own best without a hint": (table((9, 1)), 6, ANY, 0b10),
    "widened when too small": (table(), 15, ContainerAffinity(0b10, preferred=False), 0b11),
    "a preferred hint is not widened to one that is not": (
        table((5, 1), (5, 2), numa=2),
        6,
        ContainerAffinity(0b01, preferred=True),
        AdmitRejection(UNEXPECTED_ADMISSION, "no set around NUMA nodes 0 has 6 memory"),
    ),
    "no place at all": (
        table((5, 1), (5, 2), numa=2),
        6,
        ANY,
        AdmitRejection(UNEXPECTED_ADMISSION, "no set of NUMA nodes has free 6 memory"),
    ),
    "single-numa-node wants a preferred one": (
        table((5, 1), (5, 2), (5, 4)),
        11,
        ContainerAffinity(None, preferred=True),
        AdmitRejection(UNEXPECTED_ADMISSION, "no set of NUMA nodes has free 11 memory"),
    ),
    "a forced mask across single users": (
        table((1, 1)),
        2,
        ContainerAffinity(0b11, preferred=False),
        AdmitRejection(UNEXPECTED_ADMISSION, "NUMA nodes 0, 1 are bound to other groups already"),
    ),
    "a forced single NUMA node inside a group is let through": (
        table((12, 3)),
        2,
        ContainerAffinity(0b10, preferred=False),
        0b10,
    ),
}


@each_row(("given_", "amount", "hint", "expected"), CHOICES.values(), ids=CHOICES)
def test_choices(given_: MemoryTable, amount: int, hint: ContainerAffinity, expected: int | AdmitRejection) -> None:
    assert MemoryStock(given_, {}).choose({"memory": amount}, hint) == expected


def test_a_block_drains_low_ids_first() -> None:
    assert table((12, 0b110)).free == {0: {"memory": 10}, 1: {"memory": 0}, 2: {"memory": 8}}


def test_covered_bytes_are_not_taken_twice() -> None:
    made = table()
    made.take(MemoryBlock("memory", 6, 1), covered=4)
    assert made.free[0] == {"memory": 8}


def test_a_forced_block_splits_a_group_for_good() -> None:
    """As the kubelet: the recorded sequences with a leak depend on it."""
    made = table((12, 0b11), numa=2)
    forced = MemoryBlock("memory", 1, 0b10)
    made.take(forced, covered=0)
    made.release(forced)
    assert made.groups == {0: 0b11, 1: 0b10}


@st.composite
def loads(draw: st.DrawFn) -> tuple[int, list[MemoryBlock]]:
    """Blocks that the table would choose by itself, one after the other."""
    numa = draw(st.integers(1, 4))
    made = table(numa=numa)
    blocks = []
    for amount in draw(st.lists(st.integers(0, 22), max_size=8)):
        mask = MemoryStock(made, {}).choose({"memory": amount}, ANY)
        if isinstance(mask, int):
            blocks.append(MemoryBlock("memory", amount, mask))
            made.take(blocks[-1], covered=0)
    return numa, blocks


@given(loads(), st.randoms(use_true_random=False))
def test_releases_in_any_order_restore_the_initial_state(load: tuple[int, list[MemoryBlock]], random: Any) -> None:
    numa, blocks = load
    made = table(*((block.amount, block.mask) for block in blocks), numa=numa)
    random.shuffle(blocks)
    for block in blocks:
        made.release(block)
    assert made == table(numa=numa)


@given(loads())
def test_a_copy_is_independent(load: tuple[int, list[MemoryBlock]]) -> None:
    numa, blocks = load
    made = table(numa=numa)
    draft = made.copy()
    for block in blocks:
        draft.take(block, covered=0)
    assert made == table(numa=numa)
