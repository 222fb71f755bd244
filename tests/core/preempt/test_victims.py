"""Whom a pod displaces on one node, case by case."""

from dataclasses import dataclass, field

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import PodKey
from koord_numa.core.objects.verdicts import Alignment, Rejection
from koord_numa.core.preempt import dry_run, victims
from koord_numa.core.preempt.dry_run import EvictionTerms, PreemptionNode, answer_of
from koord_numa.core.preempt.victims import PreemptionCandidate, may_help, select_victims_on_node
from koord_numa.core.scheduling.filters import ScoredPlacement
from koord_numa.core.scheduling.request import Profile, SchedulingRequest
from koord_numa.core.state.inventory import NodeSnapshot
from tests.core.preempt.preemption_nodes import UNEVEN, ask, barred, budget, nominee, owned_site, running, terms
from tests.tables import each_row


@dataclass(frozen=True)
class Case:
    """A pod, a node, and who has to go (``None``: nothing helps)."""

    wants: SchedulingRequest
    site: PreemptionNode
    victims: tuple[str, ...] | None
    terms: EvictionTerms = field(default_factory=lambda: EvictionTerms(Profile()))
    awaited: tuple[str, ...] | None = None


HALF_AND_HALF = (
    running("a", "0-1", 1),
    running("b", "2-3", 1),
    running("c", "4-5", 1, numa=1),
    running("d", "6-7", 1, numa=1),
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


@each_row("case", CASES.values(), ids=CASES.keys())
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


def test_amounts_alone_can_rule_a_node_out() -> None:
    assert may_help(ask(4, 10), owned_site(*HALF_AND_HALF))
    assert not may_help(ask(9, 10), owned_site(*HALF_AND_HALF))
    assert not may_help(ask(4, 1), owned_site(*HALF_AND_HALF))
    assert not may_help(ask(4, 10), owned_site())


def test_rules_are_evaluated_once_for_pods_rejected_by_amounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """With three of four pods away: as things are, without any of them, and with the first one back."""
    pods = [running(f"p{number}", f"{2 * number}-{2 * number + 1}", numa=None) for number in range(4)]
    asked: list[str] = []

    def counting(wants: SchedulingRequest, seen: NodeSnapshot, rules: Profile) -> ScoredPlacement | Rejection:
        asked.append(seen.node.name)
        return answer_of(wants, seen, rules)

    for module in (dry_run, victims):
        monkeypatch.setattr(module, "answer_of", counting)
    found = select_victims_on_node(ask(6, 10, numa=""), owned_site(*pods), terms())
    assert found is not None
    assert [victim.key.name for victim in found.victims] == ["p1", "p2", "p3"]
    assert len(asked) == 3
