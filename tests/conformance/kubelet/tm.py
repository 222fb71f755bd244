"""The kubelet's topology manager: merge the hints of all providers under a policy and admit or not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from koord_numa.core.numa.hints import Answer, Distances, Hint, HintRule, hints_of, mask_of
from koord_numa.core.numa.policies import Decision
from koord_numa.core.objects.vocabulary import KubeletPolicy
from tests.conformance.vectors import Case, Oracle
from tests.core.numa.kubelet_decisions import decide_kubelet


@dataclass(frozen=True)
class Merge:
    """One call of a policy."""

    policy: KubeletPolicy
    answers: Sequence[Answer]
    nodes: int
    distances: Distances | None


def load(case: Case) -> Merge:
    """Distances count only when the option is on."""
    given = case["in"]
    return Merge(
        KubeletPolicy(given.get("policy") or "none"),
        load_answers(given.get("providers")),
        mask_of(given.get("numa") or ()),
        _distances(given) if given.get("prefer_closest") and given.get("numa") else None,
    )


def load_answers(providers: Sequence[Sequence[Any] | None] | None) -> list[Answer]:
    """A hint is ``[mask, preferred]``, Koordinator's also has ``unsatisfied`` and ``score``."""
    return [_answer(provider) for provider in providers or ()]


def _answer(provider: Sequence[Any] | None) -> Answer:
    if provider is None:
        return None
    return {resource: None if hints is None else [_hint(*hint) for hint in hints] for resource, hints in provider}


def _hint(mask: int | None, preferred: int = 0, unsatisfied: int = 0, score: int = 0) -> Hint:
    return Hint(mask, bool(preferred), bool(unsatisfied), score)


def _distances(given: Mapping[str, Any]) -> Distances:
    return {
        (numa, other): cost
        for numa, row in zip(given["numa"], given.get("distances") or (), strict=False)
        for other, cost in enumerate(row)
    }


def answer(given: Merge) -> Decision:
    """Merge and decide, by the recorded lists and by rules that say the same, as the kubelet's managers give them here."""
    listed = decide_kubelet(given.policy, given.answers, given.nodes, given.distances)
    ruled = decide_kubelet(given.policy, [_by_rule(one) for one in given.answers], given.nodes, given.distances)
    assert listed == ruled, f"by lists {listed}, by rules {ruled}"
    return listed


def _by_rule(answer: Answer) -> Answer:
    """Lists that hold "any" stay lists: no manager gives such a hint."""
    if answer is None or any(
        hints is not None and any(hint.mask is None for hint in hints_of(hints)) for hints in answer.values()
    ):
        return answer
    return {
        resource: None
        if hints is None
        else _rule(
            {hint.mask or 0: hint.preferred for hint in sorted(hints_of(hints), key=lambda hint: hint.preferred)}
        )
        for resource, hints in answer.items()
    }


def _rule(hints: Mapping[int, bool]) -> HintRule:
    nodes = 0
    for mask in hints:
        nodes |= mask
    return HintRule(nodes, size=0, fits=hints.__contains__, also=lambda mask: hints.get(mask, False), grows=False)


def agrees(case: Case, ours: Decision) -> str | None:
    """The mask, whether it is preferred, and the verdict."""
    answer = {"mask": ours.hint.mask, "preferred": ours.hint.preferred, "admit": ours.admitted}
    recorded = {name: case["out"].get(name, False) for name in ("preferred", "admit")}
    recorded["mask"] = case["out"]["mask"]
    return None if answer == recorded else f"{answer}, recorded {recorded}"


ORACLE = Oracle("kubelet-tm", load, answer, agrees)
