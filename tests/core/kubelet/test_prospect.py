"""States before the last of the pods that a topology shows: which of them lead on to it."""

from collections.abc import Sequence

import pytest

from koord_numa.core.kubelet import reports
from koord_numa.core.kubelet.belief import Belief
from koord_numa.core.kubelet.hypothesis import Hypothesis
from koord_numa.core.kubelet.replay import Arrival
from koord_numa.core.kubelet.reports import Prospect
from koord_numa.core.kubelet.state import KubeletState
from koord_numa.core.objects.node import Zone
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from koord_numa.core.resources import MILLI
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import app, init, node, pod

FIRST, OTHERS = pod(app(4)), {"two": pod(app(2)), "init": pod(init(6), app(1)), "many": pod(app(1), app(2))}


def _after_first(
    policy: KubeletPolicy = KubeletPolicy.SINGLE_NUMA_NODE, scope: KubeletScope = KubeletScope.CONTAINER
) -> Hypothesis:
    """Two NUMA nodes of 8 CPUs, 4 of the first of them in use."""
    on = replace(node("2x1x4x2", policy=policy, scope=scope), ids_are_real=False)
    belief = Belief([Hypothesis(KubeletState.empty(on))])
    belief.arrive("first", FIRST, 0.0)
    (one,) = belief.hypotheses
    return one


def _zones(*used: int) -> list[Zone]:
    whole = {"cpu": 8 * MILLI}
    return [Zone(numa, whole, whole, {"cpu": (8 - count) * MILLI}) for numa, count in enumerate(used)]


def _prospect(used: Sequence[int], others: Sequence[str]) -> Prospect:
    requests: dict[str, PodRequest] = {"first": FIRST, **{uid: OTHERS[uid] for uid in others}}
    arrivals = [Arrival(uid, request, at) for at, (uid, request) in enumerate(requests.items())]
    return Prospect(list(requests), _zones(*used), arrivals)


@pytest.mark.parametrize(
    ("used", "others", "leads_on"),
    [
        ((4, 0), [], True),
        ((6, 0), ["two"], True),
        ((4, 2), ["two"], True),
        ((5, 1), ["two"], False),  # half a pod
        ((3, 3), ["two"], False),  # less than is there
        ((5, 2), ["two", "init"], True),  # a finished init container is not shown
        ((4, 3), ["two", "init"], True),
        ((8, 0), ["two", "init"], False),
        ((5, 2), ["many"], True),  # its containers on two NUMA nodes
    ],
)
def test_what_is_shown_beyond_those_there_is_made_up_of_others(
    used: tuple[int, int], others: list[str], *, leads_on: bool
) -> None:
    assert _prospect(used, others).may_come(_after_first()) is leads_on


def test_under_scope_pod_all_containers_are_on_one_numa_node() -> None:
    one = _after_first(scope=KubeletScope.POD)
    assert not _prospect((5, 2), ["many"]).may_come(one)
    assert _prospect((7, 0), ["many"]).may_come(one)


def test_under_other_policies_a_container_may_be_on_several() -> None:
    assert _prospect((5, 1), ["two"]).may_come(_after_first(KubeletPolicy.RESTRICTED))


def test_nothing_is_ruled_out_by_more_sums_than_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "MOST_SUMS", 1)
    assert _prospect((5, 1), ["two"]).may_come(_after_first())


def test_a_shown_pod_had_not_left_before_later_shown_pods() -> None:
    one = _after_first()
    assert _prospect((4, 0), []).may_come(one)
    assert not _prospect((4, 0), []).may_come(replace(one, gone={"first": None}))
