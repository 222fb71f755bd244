"""Topology spread constraints."""

import pytest

from koord_numa.core.fit.pod_placement import crowding, fits_spread, spread_counts
from koord_numa.core.objects.constraints import Constraints, LabelSelector, SpreadConstraint, TaintEffect
from koord_numa.core.objects.node import Taint
from koord_numa.core.score.node_scores import MISSING
from koord_numa.core.value_objects import replace
from tests.core.fit.builders import asks, label, node, placed
from tests.tables import each_row

A1, A2, B1, C1 = node("a1", zone="a"), node("a2", zone="a"), node("b1", zone="b"), node("c1", zone="c")
NODES = (A1, A2, B1, C1)
WEB = LabelSelector((label("app", "web"),))
EVEN = SpreadConstraint("zone", max_skew=1, hard=True, selector=WEB)
THERE = [placed("1", A1, app="web"), placed("2", A2, app="web"), placed("3", B1, app="web"), placed("4", C1, app="db")]


@each_row(
    ("constraint", "there", "where"),
    [
        pytest.param(EVEN, THERE, "c1", id="only-the-emptiest"),
        pytest.param(replace(EVEN, max_skew=2), THERE, "b1 c1", id="wider-skew"),
        pytest.param(EVEN, [], "a1 a2 b1 c1", id="empty-cluster"),
        pytest.param(replace(EVEN, min_domains=4), THERE, "c1", id="too-few-domains-count-from-zero"),
        pytest.param(replace(EVEN, min_domains=4), [*THERE, placed("5", C1, app="web")], "", id="every-domain-is-full"),
        pytest.param(replace(EVEN, hard=False), THERE, "a1 a2 b1 c1", id="soft-never-refuses"),
        pytest.param(replace(EVEN, selector=None), THERE, "a1 a2 b1 c1", id="no-selector-counts-none"),
        pytest.param(replace(EVEN, topology_key="rack"), THERE, "", id="nodes-without-the-label"),
    ],
)
def test_skew(constraint: SpreadConstraint, there: list[tuple[object, object]], where: str) -> None:
    request = asks(Constraints(spread=(constraint,)), app="web")
    view = spread_counts(request, NODES, there)  # type: ignore[arg-type]  # rows are built by ``placed``
    assert [n.name for n in NODES if fits_spread(request, n, view) is None] == where.split()


def test_nodes_that_the_pod_cannot_use_are_no_domains() -> None:
    request = asks(Constraints(spread=(EVEN,), node_selector=(("disk", "ssd"),)), app="web")
    usable = tuple(replace(n, labels={**n.labels, "disk": "ssd"}) for n in (A1, B1))
    there = [placed("1", usable[0], app="web")]
    view = spread_counts(request, (*usable, C1), there)
    assert [n.name for n in usable if fits_spread(request, n, view) is None] == ["b1"]
    assert view.counts[0] == {"a": 1, "b": 0}


def test_tainted_nodes_count_unless_the_constraint_honors_taints() -> None:
    tainted = replace(C1, taints=(Taint("x", TaintEffect.NO_SCHEDULE),))
    ignoring = asks(Constraints(spread=(EVEN,)), app="web")
    honouring = asks(Constraints(spread=(replace(EVEN, honor_taints=True),)), app="web")
    assert set(spread_counts(ignoring, (A1, tainted), []).counts[0]) == {"a", "c"}
    assert set(spread_counts(honouring, (A1, tainted), []).counts[0]) == {"a"}


def test_terminating_pods_and_other_namespaces_do_not_count() -> None:
    request = asks(Constraints(spread=(EVEN,)), app="web")
    on, pod = THERE[0]
    gone = (on, replace(pod, deleting=True))
    foreign = (on, replace(pod, key=replace(pod.key, namespace="other")))
    assert spread_counts(request, NODES, [gone, foreign]).counts[0] == {"a": 0, "b": 0, "c": 0}


def test_crowding_counts_soft_constraints_only() -> None:
    soft = asks(Constraints(spread=(replace(EVEN, hard=False),)), app="web")
    view = spread_counts(soft, NODES, THERE)
    assert [crowding(soft, n, view) for n in NODES] == [3, 3, 2, 0]  # times log(3 + 2), rounded


def test_crowding_weighs_a_constraint_by_its_domains() -> None:
    soft = asks(Constraints(spread=(replace(EVEN, hard=False),)), app="web")
    few = spread_counts(soft, NODES[:1], THERE[:1])
    many = spread_counts(soft, NODES, THERE)
    assert len(few.counts[0]) < len(many.counts[0])
    assert crowding(soft, NODES[0], few) <= crowding(soft, NODES[0], many)
    assert crowding(soft, replace(NODES[0], labels={}), many) == MISSING


def test_an_empty_selector_counts_every_pod() -> None:
    request = asks(Constraints(spread=(replace(EVEN, selector=LabelSelector()),)), app="web")
    counts = spread_counts(request, NODES, THERE)
    assert dict(counts.counts[0]) == {"a": 2, "b": 1, "c": 1}
    assert fits_spread(request, A1, counts) is not None
    assert fits_spread(request, B1, counts) is None


@pytest.mark.parametrize(("name", "app", "fits"), [("c1", "web", False), ("c1", "db", True), ("b1", "web", False)])
def test_room_that_is_kept_for_others_counts(name: str, app: str, fits: bool) -> None:
    request = asks(Constraints(spread=(EVEN,)), app="web")
    there = THERE if name == "c1" else [*THERE, placed("5", C1, app="web")]
    where = next(each for each in NODES if each.name == name)
    counts = spread_counts(request, NODES, there)
    assert fits_spread(request, where, counts) is None
    kept = [placed(f"kept-{i}", where, app=app)[1] for i in range(2)]
    assert (fits_spread(request, where, counts, kept) is None) is fits
