"""Victims for ports, volumes, affinity and spreading, and before kubelets."""

import pytest

from koord_numa.core.fit.pod_placement import pod_affinity_counts, spread_counts
from koord_numa.core.objects.constraints import (
    Constraints,
    HostPort,
    LabelSelector,
    Operator,
    PodTerm,
    Requirement,
    SpreadConstraint,
)
from koord_numa.core.objects.verdicts import Alignment
from koord_numa.core.objects.volumes import PersistentVolume, PersistentVolumeClaim, Storage
from koord_numa.core.preempt.dry_run import PreemptionNode
from koord_numa.core.preempt.victims import select_victims_on_node, still_right
from koord_numa.core.scheduling.request import Profile, SchedulingRequest, scheduling_request
from koord_numa.core.value_objects import replace
from tests.core.preempt.preemption_nodes import ask, kubelet_site, owned_site, request, running, terms
from tests.tables import each_row


def test_a_port_is_freed_with_its_pod() -> None:
    port = Constraints(host_ports=(HostPort(80),))
    site = owned_site(running("web", "0", 1, constraints=port), running("other", "1", 0))
    found = select_victims_on_node(ask(1, 10, constraints=port), site, terms())
    assert found is not None
    assert [pod.key.name for pod in found.victims] == ["web"]


DATA = Constraints(claims=("data",))
CLAIM = ("default", "data")


def wanting_a_volume(users: int, mode: str = "ReadWriteOncePod") -> SchedulingRequest:
    """A small pod of priority 10 whose claim so many placed pods use."""
    claim = PersistentVolumeClaim("default", "data", volume="pv", bound=True, access_modes=frozenset({mode}))
    storage = Storage({CLAIM: claim}, {"pv": PersistentVolume("pv")}, in_use={CLAIM: users})
    return replace(ask(1, 10, constraints=DATA), storage=storage)


@each_row(
    ("wants", "site", "victims"),
    [
        pytest.param(
            wanting_a_volume(1), owned_site(running("user", "0", 5, constraints=DATA), running("b", "4", 0, numa=1)), ("user",), id="here"
        ),
        pytest.param(wanting_a_volume(1), owned_site(running("b", "4", 0, numa=1)), None, id="elsewhere"),
        pytest.param(wanting_a_volume(2), owned_site(running("user", "0", 5, constraints=DATA)), None, id="here-and-elsewhere"),
        pytest.param(wanting_a_volume(1), owned_site(running("user", "0", 10, constraints=DATA)), None, id="as-important"),
        pytest.param(
            wanting_a_volume(1, "ReadWriteOnce"), owned_site(running("user", "0", 5, constraints=DATA)), None, id="may-be-shared"
        ),
        pytest.param(
            wanting_a_volume(1),
            owned_site(running("user", "0", 20, constraints=DATA, deleting=True), running("b", "4", 0, numa=1)),
            (),
            id="leaving",
        ),
    ],
)  # fmt: skip
def test_who_holds_a_volume_for_one_pod_has_to_go(
    wants: SchedulingRequest, site: PreemptionNode, victims: tuple[str, ...] | None
) -> None:
    found = select_victims_on_node(wants, site, terms())
    assert (None if found is None else tuple(victim.key.name for victim in found.victims)) == victims
    assert found is None or still_right(wants, site, terms(), found)


def test_whom_anti_affinity_keeps_apart_has_to_go() -> None:
    term = PodTerm("zone", LabelSelector((Requirement("app", Operator.IN, ("rival",)),)), ("default",))
    wants = request(1, 10, constraints=Constraints(anti_affinity=(term,)))
    rival, bystander = running("rival", "0", 5), running("bystander", "1", 0)
    site = owned_site(rival, bystander)
    near = pod_affinity_counts(wants, [(site.seen.node, rival), (site.seen.node, bystander)], {})
    found = select_victims_on_node(replace(scheduling_request(wants, Profile()), neighbours=near), site, terms())
    assert found is not None
    assert [pod.key.name for pod in found.victims] == ["rival"]


def test_an_affinity_that_needs_a_victim_cannot_be_met() -> None:
    term = PodTerm("zone", LabelSelector((Requirement("app", Operator.IN, ("friend",)),)), ("default",))
    wants = request(4, 10, constraints=Constraints(affinity=(term,)))
    friend, other = running("friend", "0-3", 5), running("other", "4-7", 20, numa=1)
    site = owned_site(friend, other)
    near = pod_affinity_counts(wants, [(site.seen.node, friend), (site.seen.node, other)], {})
    assert select_victims_on_node(replace(scheduling_request(wants, Profile()), neighbours=near), site, terms()) is None


def test_spreading_counts_without_the_victims() -> None:
    apps = LabelSelector((Requirement("app", Operator.IN, ("crowd",)),))
    wants = request(
        1,
        10,
        constraints=Constraints(spread=(SpreadConstraint("kubernetes.io/hostname", 1, hard=True, selector=apps),)),
    )
    crowd = running("one", "0", 5, labels=(("app", "crowd"),)), running("two", "1", 6, labels=(("app", "crowd"),))
    site = owned_site(*crowd, running("low", "2", 0))
    empty = replace(site.seen.node, name="empty", labels={"kubernetes.io/hostname": "empty"})
    wants = replace(wants, labels=(("app", "crowd"),))
    even = spread_counts(wants, [site.seen.node, empty], [(site.seen.node, pod) for pod in crowd])
    found = select_victims_on_node(replace(scheduling_request(wants, Profile()), spread=even), site, terms())
    assert found is not None
    assert [pod.key.name for pod in found.victims] == ["two", "one"]


KUBELET = {
    "foreseen-when-it-was-placed": (
        kubelet_site(running("a", "0-5", 1), running("b", "0-5", 2, numa=1), used=((6, 1), (6, 1))),
        ("a",),
    ),
    "follows-from-what-is-in-use": (
        kubelet_site(running("a", "0-5", 1, numa=None), running("b", "0-2", 20, numa=None), used=((6, 1), (3, 1))),
        ("a",),
    ),
    "place-unknown": (
        kubelet_site(running("a", "0-4", 1, numa=None), running("b", "0-4", 20, numa=None), used=((5, 1), (5, 1))),
        None,
    ),
    "not-certain-under-best-effort": (
        kubelet_site(running("a", "0-11", 1, numa=None), used=((8, 1), (4, 0)), policy="best-effort"),
        None,
    ),
    "published-use-belies-the-forecast": (
        kubelet_site(running("a", "0-5", 1, numa=0), running("b", "0-2", 20, numa=1), used=((3, 1), (6, 1))),
        None,
    ),
    "not-published-yet": (
        kubelet_site(
            running("a", "0-5", 1), running("b", "0-5", 20, numa=1), used=((0, 0), (6, 1)), unpublished=frozenset({"a"})
        ),
        ("a",),
    ),
}  # fmt: skip


@each_row(("site", "victims"), KUBELET.values(), ids=KUBELET.keys())
def test_pods_of_a_kubelet_are_evicted_only_with_certain_gain(
    site: PreemptionNode, victims: tuple[str, ...] | None
) -> None:
    found = select_victims_on_node(ask(6, 10, "", qos="LS"), site, terms())
    assert (None if found is None else tuple(pod.key.name for pod in found.victims)) == victims
    if found is not None:
        assert found.placement.alignment is Alignment.ALIGNED
