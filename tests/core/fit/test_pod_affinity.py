"""Pods that want to be near or far from other pods."""

import pytest

from koord_numa.core.fit.pod_placement import fits_pod_affinity, pod_affinity_counts, pod_preference
from koord_numa.core.objects.constraints import Constraints, LabelSelector, PodTerm, PreferredPodTerm
from koord_numa.core.objects.request import PodRequest
from tests.core.fit.builders import asks, label, near, node, placed
from tests.tables import each_row

A1, A2, B1 = node("a1", zone="a", host="a1"), node("a2", zone="a", host="a2"), node("b1", zone="b", host="b1")
NODES = (A1, A2, B1)
WEB = near("zone", app="web")
RIVAL = Constraints(anti_affinity=(near("zone", app="web"),))


@each_row(
    ("request_", "there", "where"),
    [
        pytest.param(asks(Constraints(affinity=(WEB,))), [placed("w", A1, app="web")], "a1 a2", id="near"),
        pytest.param(asks(Constraints(affinity=(WEB,))), [placed("w", A1, app="db")], "", id="no-pod-to-be-near-to"),
        pytest.param(asks(Constraints(affinity=(WEB,)), app="web"), [], "a1 a2 b1", id="first-of-its-group"),
        pytest.param(
            asks(Constraints(affinity=(WEB, near("host", tier="x")))),
            [placed("w", A1, app="web", tier="x")],
            "a1",
            id="all-terms-by-one-pod",
        ),
        pytest.param(
            asks(Constraints(affinity=(WEB, near("host", tier="x")))),
            [placed("w", A1, app="web"), placed("x", A1, tier="x")],
            "",
            id="terms-met-by-different-pods-do-not-count",
        ),
        pytest.param(asks(Constraints(anti_affinity=(WEB,))), [placed("w", A1, app="web")], "b1", id="far"),
        pytest.param(asks(Constraints(), app="web"), [placed("r", A1, RIVAL)], "b1", id="others-want-to-be-alone"),
        pytest.param(asks(Constraints(), app="db"), [placed("r", A1, RIVAL)], "a1 a2 b1", id="not-from-this-one"),
        pytest.param(
            asks(Constraints(affinity=(near("rack", app="web"),)), app="web"), [], "", id="nodes-without-the-label"
        ),
    ],
)
def test_required(request_: PodRequest, there: list[tuple[object, object]], where: str) -> None:
    view = pod_affinity_counts(request_, there, {})  # type: ignore[arg-type]  # rows are built by ``placed``
    assert [n.name for n in NODES if fits_pod_affinity(request_, n, view) is None] == where.split()


def test_namespaces_by_selector() -> None:
    term = PodTerm("zone", LabelSelector(), (), LabelSelector((label("team", "blue"),)))
    request = asks(Constraints(anti_affinity=(term,)))
    there = [placed("w", A1, app="web")]
    assert (
        fits_pod_affinity(request, A2, pod_affinity_counts(request, there, {"default": {"team": "blue"}})) is not None
    )
    assert fits_pod_affinity(request, A2, pod_affinity_counts(request, there, {"default": {"team": "red"}})) is None


def test_preferences_pull_and_push_in_both_directions() -> None:
    request = asks(
        Constraints(
            preferred_affinity=(PreferredPodTerm(10, WEB),),
            preferred_anti_affinity=(PreferredPodTerm(3, near("host", app="web")),),
        ),
        app="api",
    )
    fan = Constraints(preferred_affinity=(PreferredPodTerm(2, near("zone", app="api")),))
    view = pod_affinity_counts(request, [placed("w", A1, app="web"), placed("f", B1, fan)], {})
    assert [pod_preference(n, view) for n in NODES] == [7, 10, 2]


def test_who_needs_such_pods_nearby_pulls_them_a_little() -> None:
    follower = Constraints(affinity=(near("zone", app="api"),))
    view = pod_affinity_counts(asks(Constraints(), app="api"), [placed("f", A1, follower), placed("g", B1)], {})
    assert [pod_preference(n, view) for n in NODES] == [1, 1, 0]
    assert fits_pod_affinity(asks(Constraints(), app="api"), B1, view) is None
