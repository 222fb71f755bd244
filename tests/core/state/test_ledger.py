"""Laws of the ledger: hold and release are inverse, and what is rebuilt equals what lived."""

from collections import Counter
from operator import eq, ne

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import Assignment, Container, CpuBind, Pod, PodKey, PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, CpuExclusivePolicy
from koord_numa.core.state.ledger import Holding, Ledger, holding_of
from koord_numa.core.value_objects import replace
from tests.tables import each_row

amounts = st.dictionaries(st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), st.integers(0, 9000), max_size=3)


HOLDINGS = st.builds(
    Holding,
    pod=st.builds(PodKey, st.just("ns"), st.just("pod"), st.sampled_from("abcdef")),
    amounts=amounts,
    cpus=st.integers(0, 0xFFFF).map(CpuSet),
    numa=st.dictionaries(st.integers(0, 3), amounts, max_size=3).map(lambda numa: tuple(sorted(numa.items()))),
)
"""Any holding, also an odd one: amounts on a NUMA node that the pod never asked for, CPUs that another pod holds."""


@given(st.lists(HOLDINGS, unique_by=lambda it: it.pod.uid), HOLDINGS)
def test_release_undoes_hold(others: list[Holding], last: Holding) -> None:
    others = [holding for holding in others if holding.pod.uid != last.pod.uid]
    ledger = Ledger.of(others)
    ledger.hold(last)
    ledger.release(last.pod.uid)
    assert ledger == Ledger.of(others)


@given(st.lists(HOLDINGS))
def test_only_the_final_holdings_matter(history: list[Holding]) -> None:
    ledger = Ledger.of(history)
    final = list({holding.pod.uid: holding for holding in history}.values())
    assert ledger == Ledger.of(final)
    assert ledger == Ledger.of(reversed(final))


@given(st.lists(HOLDINGS))
def test_every_pod_released_leaves_nothing(history: list[Holding]) -> None:
    ledger = Ledger.of(history)
    for holding in history:
        ledger.release(holding.pod.uid)
    assert ledger == Ledger()


@given(st.lists(HOLDINGS), st.data())
def test_every_cpu_knows_by_how_many_it_is_held(history: list[Holding], data: st.DataObject) -> None:
    ledger = Ledger.of(history)
    for holding in history:
        if data.draw(st.booleans()):
            ledger.release(holding.pod.uid)
    counts = Counter(cpu for holding in ledger for cpu in holding.cpus)
    assert (ledger.references, ledger.cpus) == (dict(counts), CpuSet.of(counts))
    assert ledger.shared == CpuSet.of(cpu for cpu, count in counts.items() if count > 1)


def test_each_change_has_a_revision_of_its_own() -> None:
    holding = Holding(PodKey("ns", "a", "u"), {"cpu": 1000})
    ledger = Ledger.of([holding])
    before = ledger.revision
    ledger.hold(holding)
    held_again = ledger.revision
    ledger.release("u")
    released = ledger.revision
    ledger.release("u")
    assert before < held_again < released == ledger.revision


def test_holdings_are_the_same_whoever_carries_the_request_along() -> None:
    holding = Holding(PodKey("ns", "a", "u"), {"cpu": 1000})
    same, other = replace(holding, request=PodRequest()), replace(holding, created=1.0)
    # Each of the two operators by itself: a struct has one of its own for either.
    assert (eq(holding, same), ne(holding, same)) == (True, False)
    assert (eq(holding, other), ne(holding, other)) == (False, True)
    assert hash(holding) == hash(same)


@each_row(
    ("holding", "unplaced", "unrecorded"),
    [
        pytest.param({"cpu": 1000, "memory": 5}, {"cpu": 1000, "memory": 5}, {}, id="no-policy"),
        pytest.param({"cpu": 2000, "memory": 5, "cpus": "0-1"}, {"memory": 5}, {"u": 3}, id="cpus-only"),
        pytest.param({"cpu": 2000, "memory": 5, "numa": {0: {"cpu": 1500, "memory": 5}}}, {"cpu": 500}, {}, id="part"),
        pytest.param({"cpu": 2000, "cpus": "0-1", "numa": {0: {"cpu": 2000}}}, {}, {}, id="cpus-and-amounts"),
        pytest.param({"cpu": 2000, "cpus": "0-1", "numa": {0: {"memory": 1}}}, {}, {"u": 3}, id="memory-amounts-only"),
    ],
)
def test_what_no_numa_amount_speaks_of(holding: dict[str, object], unplaced: object, unrecorded: object) -> None:
    given = dict(holding)
    cpus, numa = str(given.pop("cpus", "")), given.pop("numa", {})
    assert isinstance(numa, dict)
    wanted = {name: value for name, value in given.items() if isinstance(value, int)}
    ledger = Ledger.of([Holding(PodKey("ns", "a", "u"), wanted, cpus=CpuSet.parse(cpus), numa=tuple(numa.items()))])
    assert (ledger.unplaced, ledger.unrecorded) == (unplaced, unrecorded)


def test_a_pod_read_back_holds_what_was_placed() -> None:
    request = PodRequest(
        containers=(Container("c", ContainerKind.APP, {"cpu": 2000}),),
        bind=CpuBind(exclusive=CpuExclusivePolicy.PCPU_LEVEL),
    )
    placed = Assignment(cpus=CpuSet.of([0, 1]), numa=((0, {"cpu": 2000}),))
    key = PodKey("ns", "a", "u")
    waiting, bound = Pod(key, request), Pod(key, request, node="n", assignment=placed)
    assert holding_of(waiting, placed) == holding_of(bound)
    assert holding_of(bound) == Holding(
        key, {"cpu": 2000}, CpuSet.of([0, 1]), CpuExclusivePolicy.PCPU_LEVEL, placed.numa, request
    )
    assert holding_of(waiting).cpus == CpuSet()
