"""
Koordinator's resource manager: its recorded cases in our types, and our answers to them.

Hints, the merge of all of them, the election and the allocation are all made, so that they can be compared with one another.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from koord_numa.core.allocation.allocate import cpu_occupancy, place
from koord_numa.core.allocation.demand import CpuBinding, NodeRules
from koord_numa.core.allocation.numa_offers import NumaOffers, offers
from koord_numa.core.allocation.numa_selection import hints, select_numa_nodes
from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpus.bind_policies import Downgrade
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.numa.hints import Hint
from koord_numa.core.numa.policies import Decision, NumaExclusivity, NumaOccupancy, decide_koordinator
from koord_numa.core.objects.request import PodKey
from koord_numa.core.objects.verdicts import Placement, Rejection
from koord_numa.core.objects.vocabulary import (
    CpuBindPolicy,
    NumaExclusive,
    NumaPolicy,
    RestrictedRule,
    ScoringType,
)
from koord_numa.core.pod_resources import amplify_all
from koord_numa.core.resources import CPU
from koord_numa.core.score.node_scores import Strategy
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.state.ledger import Holding, Ledger
from koord_numa.core.state.numa_free import Accounting, NumaAccounting, accounts
from tests.conformance.koordinator.cpu import exclusive_of, strategy_of
from tests.conformance.vectors import Case
from tests.machines import machine_from_topo


@dataclass(frozen=True, slots=True)
class Question:
    """One pod before one node, and what is asked: hints, an allocation on a mask, or all of it."""

    what: str
    rules: NodeRules
    inventory: Inventory
    ledger: Ledger
    numa_free: NumaAccounting
    exclusive: NumaExclusive
    mask: int | None


@dataclass(frozen=True, slots=True)
class Answer:
    """Ours, and what it was made from."""

    question: Question
    offers: NumaOffers
    hints: Mapping[str, list[Hint]]
    merged: Decision | None
    elected: Decision | None
    allocated: Placement | Rejection | None
    splits: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Splits by set and order that the rules for deviations have computed."""


def load(case: Case) -> Question:
    """
    The question of a case, without what upstream's answers know nothing of.

    That is: pods without NUMA amounts, `Preferred`, the downgrade of NUMANodeLevel, and an even distribution.
    """
    given = case["in"]
    machine = machine_from_topo(given["topo"])
    ratios = given.get("amplification") or {}
    reserved = CpuSet.parse(given.get("reserved") or "")
    request = given["request"]
    binding = CpuBinding(
        policy=CpuBindPolicy(request.get("bind") or ""),
        required=request.get("required", False),
        exclusive=exclusive_of(request.get("excl")),
        downgrade=Downgrade.NONE,
    )
    numa_score = given.get("numa_score")
    exclusive = NumaExclusive(given.get("exclusive") or "")
    return Question(
        what=given["fn"],
        rules=NodeRules(
            amounts=request.get("res") or {},
            binding=binding if request.get("cpu_bind") else None,
            policy=NumaPolicy(given.get("policy") or ""),
            strategy=strategy_of(given.get("label_strategy") or given.get("strategy")),
            scoring=Strategy(ScoringType(numa_score["type"]), numa_score.get("weights") or {}) if numa_score else None,
            accounting=Accounting.RECORDED_AMOUNTS,
            ratio=ratios.get(CPU, 1),
            restricted=RestrictedRule.KOORDINATOR,
        ),
        inventory=Inventory(
            node="n",
            machine=machine,
            zones=tuple((zone["node"], amplify_all(zone.get("res") or {}, ratios)) for zone in given.get("numa") or ()),
            reserved=reserved,
            ratios=ratios,
        ),
        ledger=Ledger.of(_holding(index, pod) for index, pod in enumerate(given.get("pods") or ())),
        numa_free=NumaAccounting(Accounting.RECORDED_AMOUNTS, given.get("max_ref", 0)),
        exclusive=exclusive if exclusive is NumaExclusive.REQUIRED else NumaExclusive.NONE,
        mask=given.get("mask"),
    )


def answer(question: Question) -> Answer:
    """Return the decision of this package."""
    numa_free, rules = question.numa_free, question.rules
    room = offers(
        rules,
        accounts(question.inventory, question.ledger, numa_free),
        cpu_occupancy(question.ledger, numa_free.references),
    )
    if question.what == "allocate":
        return Answer(question, room, {}, None, None, place(rules, room, Placement("n", mask=question.mask)))
    exclusivity = NumaExclusivity(
        question.exclusive, koordinator_occupancy(question.ledger, question.inventory.machine)
    )
    generated = hints(rules, room, exclusivity)
    if question.what == "hints":
        return Answer(question, room, generated, None, None, None)
    merged = decide_koordinator(rules.policy, [generated], room.mask, exclusivity)
    elected = select_numa_nodes(rules, room, exclusivity)
    if rules.policy is NumaPolicy.BEST_EFFORT and exclusivity.wish is NumaExclusive.REQUIRED and not elected.admitted:
        elected = merged  # the row `required-holds-for-best-effort`: upstream places the pod all the same
    allocated = place(rules, room, Placement("n", mask=elected.hint.mask)) if elected.admitted else None
    return Answer(question, room, generated, merged, elected, allocated)


def _holding(index: int, pod: Mapping[str, Any]) -> Holding:
    return Holding(
        pod=PodKey("ns", f"pod-{index}", f"uid-{index}"),
        amounts={},
        cpus=CpuSet.parse(pod.get("cpus") or ""),
        exclusive=exclusive_of(pod.get("excl")),
        numa=tuple((entry["node"], entry.get("res") or {}) for entry in pod.get("numa") or ()),
    )


def koordinator_occupancy(ledger: Ledger, machine: CpuTopology | None) -> NumaOccupancy:
    """Koordinator's node_allocation.go: every pod with CPUs of its own counts, by the NUMA nodes of these, and no other pod."""
    masks = [machine.numa_of(holding.cpus) for holding in ledger if holding.cpus] if machine is not None else []
    shared = single = 0
    for mask in masks:
        if mask.bit_count() > 1:
            shared |= mask
        else:
            single |= mask
    return NumaOccupancy(single & ~shared, shared)
