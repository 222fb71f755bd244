"""
Koordinator's topology manager: merge scored hints under a policy and an exclusivity.

``Preferred`` exclusivity acts where hints are made, and the recorded hints are made already: there it changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from koord_numa.core.numa.hints import Answer, mask_of
from koord_numa.core.numa.policies import Decision, NumaExclusivity, NumaOccupancy, decide_koordinator
from koord_numa.core.objects.vocabulary import NumaExclusive, NumaPolicy
from tests.conformance.kubelet.tm import load_answers
from tests.conformance.vectors import Case, Oracle

POLICIES = {
    "none": NumaPolicy.NONE,
    "best-effort": NumaPolicy.BEST_EFFORT,
    "restricted": NumaPolicy.RESTRICTED,
    "single-numa-node": NumaPolicy.SINGLE_NUMA_NODE,
}


@dataclass(frozen=True)
class Merge:
    """One call of a policy."""

    policy: NumaPolicy
    answers: Sequence[Answer]
    nodes: int
    exclusivity: NumaExclusivity


def load(case: Case) -> Merge:
    """Statuses are listed by position, which here is the NUMA id."""
    given = case["in"]
    uses = given.get("status") or ()
    single, shared = (mask_of(numa for numa, use in enumerate(uses) if use == kind) for kind in ("single", "shared"))
    return Merge(
        POLICIES[given.get("policy") or "none"],
        load_answers(given.get("providers")),
        mask_of(given.get("numa") or ()),
        NumaExclusivity(NumaExclusive(given.get("exclusive") or ""), NumaOccupancy(single, shared)),
    )


def answer(given: Merge) -> Decision:
    """Merge and decide."""
    return decide_koordinator(given.policy, given.answers, given.nodes, given.exclusivity)


def as_recorded(ours: Decision) -> dict[str, object]:
    """Our decision in the recorder's words."""
    hint = ours.hint
    return {
        "mask": hint.mask,
        "preferred": hint.preferred,
        "unsatisfied": hint.unsatisfied,
        "score": hint.score,
        "admit": ours.admitted,
        "reasons": ours.refusal.reasons() if ours.refusal else [],
    }


def agrees(case: Case, ours: Decision) -> str | None:
    """``out`` is the answer for the order in the file, and that is the order we merge in: other orders' answers are wrong here."""
    answer = as_recorded(ours)
    return None if answer == case["out"] else f"{answer}, recorded {case['out']}"


ORACLE = Oracle("koord-tm", load, answer, agrees)
