"""Whom a pod displaces on one node, case by case."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.fit.pod_affinity import pod_affinity_counts
from koord_numa.core.fit.spread import spread_counts
from koord_numa.core.objects.constraints import (
    Constraints,
    HostPort,
    LabelSelector,
    Operator,
    PodTerm,
    Requirement,
    SpreadConstraint,
)
from koord_numa.core.objects.request import PodKey
from koord_numa.core.objects.verdicts import Alignment, Reason, Rejection
from koord_numa.core.objects.volumes import PersistentVolume, PersistentVolumeClaim, Storage
from koord_numa.core.preempt.dry_run import EvictionTerms
from koord_numa.core.preempt.node import PreemptionNode
from koord_numa.core.preempt.victims import PreemptionCandidate, may_help, select_victims_on_node, still_right
from koord_numa.core.scheduling.request import Profile, SchedulingRequest, scheduling_request
from tests.core.preempt.preemption_nodes import ask, budget, kubelet_site, nominee, owned_site, request, running, terms


@dataclass(frozen=True)
class Case:
    """A pod, a node, and who has to go (``None``: nothing helps)."""

    wants: SchedulingRequest
    site: PreemptionNode
    victims: tuple[str, ...] | None
    terms: EvictionTerms = field(default_factory=lambda: EvictionTerms(Profile()))
    awaited: tuple[str, ...] | None = None


def barred(site: PreemptionNode) -> PreemptionNode:
    """The same node, locked."""
    return replace(site, seen=replace(site.seen, barred=Rejection(Reason.LOCKED, "locked", resolvable=False)))


HALF_AND_HALF = (
    running("a", "0-1", 1),
    running("b", "2-3", 1),
    running("c", "4-5", 1, numa=1),
    running("d", "6-7", 1, numa=1),
)
UNEVEN = (
    running("a", "0-1", 5),
    running("b", "2-3", 1),
    running("c", "4-5", 2, numa=1),
    running("d", "6-7", 2, numa=1),
)
SPREAD_OUT = (running("a", "0-1", 1), running("b", "4-5", 1, numa=1))

CASES = {
    "the-least-important-on-one-numa-node": Case(ask(4, 10), owned_site(*UNEVEN), ("c", "d")),
    "amounts-would-do-with-one-but-alignment-needs-this-one": Case(
        ask(3, 10), owned_site(running("a", "0-1", 3), running("b", "4-7", 1, numa=1)), ("b",)
    ),
    "a-pod-that-is-not-in-the-way-stays-though-it-counts-less": Case(
        ask(4, 10), owned_site(running("low", "0", 0), running("high", "4-7", 9, numa=1), running("mid", "1", 5)), ("mid", "low")
    ),
    "fits-as-things-are": Case(ask(2, 10), owned_site(*SPREAD_OUT), None),
    "none-of-lower-priority": Case(ask(4, 1), owned_site(*HALF_AND_HALF), None),
    "equal-priority-is-not-lower": Case(ask(4, 1), owned_site(*SPREAD_OUT), None),
    "too-large-for-any-numa-node": Case(ask(5, 10), owned_site(*SPREAD_OUT), None),
    "a-static-pod-stays": Case(ask(4, 10), owned_site(running("a", "0-3", mirror=True), running("b", "4", numa=1)), ("b",)),
    "only-static-pods": Case(ask(4, 10), owned_site(running("a", "0", mirror=True), running("b", "4", mirror=True, numa=1)), None),
    "an-unconfirmed-bind-is-no-victim": Case(
        ask(4, 10), owned_site(running("a", "0"), running("b", "4", 5, numa=1), assumed=frozenset({"a"})), ("b",)
    ),
    "who-is-leaving-is-waited-for": Case(
        ask(4, 10), owned_site(running("a", "0", 20, deleting=True), running("b", "4", numa=1)), (), awaited=("a",)
    ),
    "of-two-who-are-leaving-one-is-enough": Case(
        ask(4, 10),
        owned_site(running("a", "0", 1, deleting=True), running("b", "4", 0, deleting=True, numa=1)),
        (),
        awaited=("b",),
    ),
    "a-protected-pod-is-spared": Case(
        ask(4, 10), owned_site(running("a", "0", 1), running("b", "4", 5, numa=1)), ("b",), terms(budget("pdb", 0, "a"))
    ),
    "a-protected-pod-is-named-when-nothing-else-helps": Case(
        ask(4, 10), owned_site(running("a", "0-3", 1), running("b", "4-7", 20, numa=1)), ("a",), terms(budget("pdb", 0, "a"))
    ),
    "an-older-pod-stays": Case(
        ask(4, 10), owned_site(running("old", "0", 1, created=1.0), running("new", "4", 1, created=2.0, numa=1)), ("new",)
    ),
    "a-nomination-of-less-is-no-obstacle": Case(
        ask(4, 10), owned_site(running("a", "0-3", 20), nominees=(nominee("n", "4-7", 5, numa=1),)), ()
    ),
    "a-nomination-of-as-much-is": Case(
        ask(4, 10), owned_site(running("a", "0-3", 1), nominees=(nominee("n", "4-7", 10, numa=1),)), ("a",)
    ),
    "devices-on-the-right-numa-node": Case(
        ask(1, 10, gpus=2),
        owned_site(running("a", "0", 1, gpus=2), running("b", "1-3", 0), running("c", "4-7", 2, gpus=1, numa=1), gpus=2),
        ("a",),
    ),
    "barred": Case(ask(4, 10), barred(owned_site(*HALF_AND_HALF)), None),
    "malformed-topology": Case(ask(4, 10), owned_site(*HALF_AND_HALF, topology={"problem": "cpu-topology is not JSON"}), None),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_who_has_to_go(case: Case) -> None:
    found = select_victims_on_node(case.wants, case.site, case.terms)
    assert (None if found is None else tuple(pod.key.name for pod in found.victims)) == case.victims
    if found is not None:
        expected = case.victims if case.awaited is None else case.awaited
        assert found.awaited == set(expected or ())


def test_a_clearance_says_everything() -> None:
    site = owned_site(*UNEVEN, nominees=(nominee("n", "0-3", 3),))
    protects = terms(budget("pdb", 0, "a", "c"))
    found = select_victims_on_node(ask(4, 10), site, protects)
    assert found is not None
    assert found == PreemptionCandidate(
        node="node",
        placement=found.placement,
        victims=(site.pods["c"], site.pods["d"]),
        violations=1,
        displaced=(PodKey("default", "n", "n"),),
        awaited=frozenset({"c", "d"}),
    )
    assert (found.placement.cpus, found.placement.mask) == (CpuSet.parse("4-7"), 0b10)
    assert found.placement.alignment is Alignment.ALIGNED


def test_alignment_is_kept_when_it_costs_no_further_victim() -> None:
    site = owned_site(running("a", "0-1", 2), running("b", "4-5", 1, numa=1))
    either = select_victims_on_node(ask(4, 10, "BestEffort"), site, terms())
    assert either is None  # four CPUs are free, if apart, and that is all this pod insists on
    full = owned_site(running("a", "0-3", 1), running("b", "4-5", 1, numa=1), running("c", "6-7", 1, numa=1))
    found = select_victims_on_node(ask(4, 10, "BestEffort"), full, terms())
    assert found is not None
    assert ([pod.key.name for pod in found.victims], found.placement.alignment) == (["c", "b"][::-1], Alignment.ALIGNED)


def test_alignment_evicts_no_further_victim() -> None:
    site = owned_site(
        running("a", "0-2", 20), running("b", "3", 1), running("c", "4", 1, numa=1), running("d", "5-7", 20, numa=1)
    )
    found = select_victims_on_node(ask(2, 10, "BestEffort"), site, terms())
    assert found is not None
    assert [pod.key.name for pod in found.victims] == ["b", "c"]
    assert found.placement.alignment is Alignment.UNALIGNED


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


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(("site", "victims"), KUBELET.values(), ids=KUBELET.keys())
def test_a_kubelets_pods_go_only_when_it_is_certain_what_that_frees(
    site: PreemptionNode, victims: tuple[str, ...] | None
) -> None:
    found = select_victims_on_node(ask(6, 10, "", qos="LS"), site, terms())
    assert (None if found is None else tuple(pod.key.name for pod in found.victims)) == victims
    if found is not None:
        assert found.placement.alignment is Alignment.ALIGNED


def test_amounts_alone_can_rule_a_node_out() -> None:
    assert may_help(ask(4, 10), owned_site(*HALF_AND_HALF))
    assert not may_help(ask(9, 10), owned_site(*HALF_AND_HALF))
    assert not may_help(ask(4, 1), owned_site(*HALF_AND_HALF))
    assert not may_help(ask(4, 10), owned_site())


def test_a_clearance_stays_right_while_victims_leave() -> None:
    site, wants = owned_site(*UNEVEN), ask(4, 10)
    found = select_victims_on_node(wants, site, terms())
    assert found is not None
    leaving = [replace(pod, deleting=pod.key.name == "c") for pod in UNEVEN]
    gone = [pod for pod in UNEVEN if pod.key.name != "c"]
    assert still_right(wants, site, terms(), found)
    assert still_right(wants, owned_site(*leaving), terms(), found)
    assert still_right(wants, owned_site(*gone), terms(), found)


CHANGED = {
    "locked": lambda: barred(owned_site(*UNEVEN)),
    "a-more-important-pod-has-come": lambda: owned_site(
        *UNEVEN[:2], running("d", "6-7", 2, numa=1), running("rival", "4-5", 20, numa=1)
    ),
    "a-victim-is-not-needed-any-more": lambda: owned_site(*UNEVEN[2:]),
    "a-victim-is-as-important-now": lambda: owned_site(
        *UNEVEN[:2], running("c", "4-5", 10, numa=1), running("d", "6-7", 2, numa=1)
    ),
    "a-victim-is-just-being-bound": lambda: owned_site(*UNEVEN, assumed=frozenset({"c"})),
    "the-room-is-kept-for-another": lambda: owned_site(*UNEVEN, nominees=(nominee("n", "4-7", 10, numa=1),)),
}


@pytest.mark.parametrize("now", CHANGED.values(), ids=CHANGED.keys())
def test_a_clearance_is_not_right_any_more(now: Callable[[], PreemptionNode]) -> None:
    found = select_victims_on_node(ask(4, 10), owned_site(*UNEVEN), terms())
    assert found is not None
    assert not still_right(ask(4, 10), now(), terms(), found)


def test_a_clearance_is_not_right_when_a_budget_has_come() -> None:
    site, wants = owned_site(*UNEVEN), ask(4, 10)
    found = select_victims_on_node(wants, site, terms())
    assert found is not None
    assert not still_right(wants, site, terms(budget("pdb", 1, "c", "d")), found)
    assert still_right(wants, site, terms(budget("pdb", 2, "c", "d")), found)
