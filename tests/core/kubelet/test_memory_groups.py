"""Reading memory groups from what is in use and what pods asked for."""

from collections.abc import Mapping

from koord_numa.core.kubelet.inferred_state import UNCLEAR, Block, explain_use
from koord_numa.core.resources import ResourceList
from tests.tables import each_row


def block(amount: int, *, may: bool = True, must: bool = False, pages: int = 0) -> Block:
    """A block of memory, perhaps with huge pages."""
    more = {"hugepages-2Mi": pages} if pages else {}
    return Block({"memory": amount, **more}, may_span=may, must_span=must)


ALONE = {0: 1, 1: 2, 2: 4}
CASES: dict[str, tuple[list[ResourceList], list[Block], Mapping[int, int] | None]] = {
    "nothing in use": ([{}, {}, {}], [], ALONE),
    "each on its own": ([{"memory": 5}, {"memory": 7}, {}], [block(5), block(3), block(4)], ALONE),
    "a block over two": ([{"memory": 10}, {"memory": 2}, {"memory": 1}], [block(12), block(1)], {0: 3, 1: 3, 2: 4}),
    "two groups of two": (
        [{"memory": 10}, {"memory": 1}, {"memory": 9}, {"memory": 4}],
        [block(11, must=True), block(13, must=True)],
        {0: 3, 1: 3, 2: 12, 3: 12},
    ),
    "group unknown": (
        [{"memory": 10}, {"memory": 2}, {"memory": 10}, {"memory": 2}],
        [block(12, must=True), block(12, must=True)],
        dict.fromkeys(range(4), UNCLEAR),
    ),
    "an unused NUMA node may belong to it": (
        [{"memory": 10}, {}, {}],
        [block(10, must=True)],
        {0: UNCLEAR, 1: UNCLEAR, 2: UNCLEAR},
    ),
    "a block over two beside one alone": (
        [{"memory": 10}, {"memory": 3}, {"memory": 5}],
        [block(15), block(3)],
        {0: 5, 1: 2, 2: 5},
    ),
    "what cannot span does not explain it": ([{"memory": 10}, {"memory": 2}, {}], [block(12, may=False)], None),
    "less in use than asked for": ([{"memory": 4}, {}, {}], [block(5)], None),
    "more in use than asked for": ([{"memory": 6}, {}, {}], [block(5)], None),
    "types go together": (
        [{"memory": 5, "hugepages-2Mi": 4}, {"memory": 3}, {}],
        [block(3, pages=4), block(5)],
        {0: 3, 1: 3, 2: 4},
    ),
}


@each_row(("used", "blocks", "groups"), CASES.values(), ids=CASES)
def test_explanations(used: list[ResourceList], blocks: list[Block], groups: Mapping[int, int] | None) -> None:
    assert explain_use(dict(enumerate(used)), blocks) == groups


def test_a_hopeless_search_gives_up() -> None:
    used = {numa: {"memory": 1_000_001} for numa in range(8)}
    blocks = [block(200_000 + 2 * i) for i in range(39)]
    blocks.append(block(8 * 1_000_001 - sum(one.amounts["memory"] for one in blocks)))
    assert explain_use(used, blocks) is None
