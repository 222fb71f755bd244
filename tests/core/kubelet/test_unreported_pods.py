"""Pods that no topology shows yet are subtracted on every possible NUMA node, and nowhere else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.kubelet.inferred_state import hidden_use, shown_where_foreseen, without_hidden
from koord_numa.core.objects.node import KubeletConfig, NodeResourceTopology, Zone
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import CpuOwner, KubeletScope
from koord_numa.core.resources import ResourceList
from koord_numa.core.state.ledger import Holding, Ledger
from tests.core.kubelet.nodes import app, init, pod
from tests.core.kubelet.test_prediction import held, zones
from tests.tables import each_row

Missing = dict[int, ResourceList]

CONTAINER, POD = KubeletScope.CONTAINER, KubeletScope.POD
GPU = "vendor.com/gpu"


def missing(before: tuple[Zone, ...], after: tuple[Zone, ...]) -> Missing:
    """Return the amounts that are no longer available, by NUMA node."""
    found: Missing = {}
    for old, new in zip(before, after, strict=True):
        less = {name: amount - new.available[name] for name, amount in old.available.items()}
        if any(less.values()):
            found[old.numa] = {name: amount for name, amount in less.items() if amount}
    return found


def topology(published: tuple[Zone, ...], scope: KubeletScope, *, closest: bool = False) -> NodeResourceTopology:
    options = {"prefer-closest-numa-nodes": closest}
    return NodeResourceTopology(
        "n", CpuOwner.KUBELET, zones=published, kubelet=KubeletConfig(topology_scope=scope, topology_options=options)
    )


TWO, FOUR = zones(8, 8), zones(8, 8, 8, 8)
GPUS = zones(8, 8, 8, gpu=(0, 4, 4))
WITHOUT = (Zone(0, {"cpu": 8000, GPU: 0}, {"cpu": 8000, GPU: 0}, {"cpu": 8000, GPU: 0}), *GPUS[1:])

WHEREVER: dict[str, tuple[tuple[Zone, ...], KubeletScope, Holding, Missing]] = {
    "on the lowest it stays": (TWO, CONTAINER, held("a", pod(app(2)), (0, {"cpu": 2000})), {0: {"cpu": 2000}}),
    "on another it may be below, not above": (
        FOUR,
        CONTAINER,
        held("a", pod(app(2)), (2, {"cpu": 2000})),
        {numa: {"cpu": 2000} for numa in (0, 1, 2)},
    ),
    "not where there never was such a device": (
        WITHOUT,
        CONTAINER,
        held("a", pod(app(2, gpu=1)), (2, {"cpu": 2000, GPU: 1})),
        {numa: {"cpu": 2000, GPU: 1} for numa in (1, 2)},
    ),
    "containers that are aligned alone move alone": (
        FOUR,
        CONTAINER,
        held("a", pod(app(2), app(6, "b")), (0, {"cpu": 2000}), (1, {"cpu": 6000})),
        {0: {"cpu": 8000}, 1: {"cpu": 6000}},
    ),
    "and part of them may move where not all of them could": (
        WITHOUT,
        CONTAINER,
        held("a", pod(app(2), app(2, "b", gpu=1)), (1, {"cpu": 4000, GPU: 1})),
        {0: {"cpu": 4000, GPU: 1}, 1: {"cpu": 4000, GPU: 1}},
    ),
    "those that are aligned together do not": (
        WITHOUT,
        POD,
        held("a", pod(app(2), app(2, "b", gpu=1)), (1, {"cpu": 4000, GPU: 1})),
        {1: {"cpu": 4000, GPU: 1}},
    ),
    "counted on several": (
        FOUR,
        CONTAINER,
        held("a", pod(app(10)), (1, {"cpu": 10000}), (2, {"cpu": 10000})),
        {numa: {"cpu": 10000} for numa in (0, 1, 2)},
    ),
    "not foreseen": (
        TWO,
        CONTAINER,
        held("a", pod(init(1), app(2))),
        {numa: {"cpu": 3000} for numa in (0, 1)},
    ),
    "holding nothing": (TWO, CONTAINER, held("a", pod(app(0.5))), {}),
}


@each_row(("published", "scope", "holding", "expected"), WHEREVER.values(), ids=WHEREVER.keys())
def test_a_hidden_pod_is_missing_wherever_it_may_be(
    published: tuple[Zone, ...], scope: KubeletScope, holding: Holding, expected: Missing
) -> None:
    assert missing(published, without_hidden(published, by_uid([holding]), topology(published, scope))) == expected


def by_uid(hidden: list[Holding]) -> dict[str, Holding]:
    """As they are known."""
    return {holding.pod.uid: holding for holding in hidden}


def test_a_kubelet_that_prefers_neighbours_may_go_up() -> None:
    wide = held("a", pod(app(10)), (0, {"cpu": 10000}), (1, {"cpu": 10000}))
    found = without_hidden(FOUR, by_uid([wide]), topology(FOUR, CONTAINER, closest=True))
    assert missing(FOUR, found) == {numa: {"cpu": 10000} for numa in range(4)}


def test_hidden_pods_add_up_and_no_hidden_pod_changes_nothing() -> None:
    hidden = [held("a", pod(app(2)), (0, {"cpu": 2000})), held("b", pod(app(1)), (1, {"cpu": 1000}))]
    found = without_hidden(TWO, by_uid(hidden), topology(TWO, POD))
    assert missing(TWO, found) == {0: {"cpu": 3000}, 1: {"cpu": 1000}}
    assert without_hidden(TWO, {}, topology(TWO, POD)) == TWO


HOLDINGS = [
    held("a", pod(app(2)), (0, {"cpu": 2000})),
    held("a", pod(app(2)), (2, {"cpu": 2000})),  # the same pod, counted again
    held("b", pod(app(10)), (1, {"cpu": 10000}), (2, {"cpu": 10000})),
    held("c", pod(init(1), app(2))),
    held("d", pod(app(0.5))),
]


STEPS = st.tuples(st.sampled_from(HOLDINGS), st.sampled_from(["hold", "release", "hide", "show"]), st.booleans())


@given(st.lists(STEPS, max_size=16))
def test_sums_that_are_kept_are_those_of_the_pods_hidden_now(steps: list[tuple[Holding, str, bool]]) -> None:
    """Pods come, change and go, and are hidden or shown, in any order; the sums are asked for at times."""
    published, ledger, hidden, frame = topology(FOUR, CONTAINER), Ledger(), set[str](), object()
    for holding, step, is_asked in steps:
        uid = holding.pod.uid
        match step:
            case "hold":
                ledger.hold(holding)
            case "release":
                ledger.release(uid)
            case "hide":
                hidden.add(uid)
            case _:
                hidden.discard(uid)
        if is_asked:
            kept = without_hidden(FOUR, ledger.holdings, published, hidden_use(ledger, frame), hidden)
            assert kept == without_hidden(FOUR, ledger.holdings, published, hidden=[*hidden])


def test_sums_are_kept_with_the_ledger_for_one_frame() -> None:
    ledger, frame = Ledger(), object()
    assert hidden_use(ledger, frame) is hidden_use(ledger, frame)
    assert hidden_use(ledger, object()) is not hidden_use(ledger, frame)
    assert hidden_use([], frame) is not hidden_use([], frame)


def test_where_nothing_is_published_nothing_is_missing() -> None:
    hidden = [held("a", pod(app(2)), (1, {"cpu": 2000})), held("b", pod(app(2)))]
    assert without_hidden((), by_uid(hidden), topology((), POD)) == ()


@pytest.mark.parametrize(
    ("request_", "numa", "expected"),
    [
        pytest.param(pod(app(2)), [(1, {"cpu": 2000})], {1: {"cpu": 2000}}, id="foreseen"),
        pytest.param(pod(app(2)), [], {0: {"cpu": 2000}, 1: {"cpu": 2000}}, id="not foreseen"),
    ],
)
def test_as_it_would_be_published(
    request_: PodRequest, numa: list[tuple[int, ResourceList]], expected: Missing
) -> None:
    assert missing(TWO, shown_where_foreseen(TWO, [held("a", request_, *numa)])) == expected
